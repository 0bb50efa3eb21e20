"""The table of all kinds of input."""

from __future__ import annotations

from shardkit.corpus.arrays import ArrayCorpus
from shardkit.corpus.arrow import SavedCorpus
from shardkit.corpus.base import Corpus, Input
from shardkit.corpus.dataset import DatasetCorpus
from shardkit.corpus.images import ImageCorpus
from shardkit.corpus.jsonl import JsonlCorpus
from shardkit.corpus.paired import PairedCorpus
from shardkit.corpus.parquet import ParquetCorpus
from shardkit.corpus.text import TextCorpus
from shardkit.corpus.tokens import TokenFileCorpus

CORPORA: dict[str, type[Input]] = {
    "images": ImageCorpus,
    "paired": PairedCorpus,
    "text": TextCorpus,
    "jsonl": JsonlCorpus,
    "arrays": ArrayCorpus,
    "parquet": ParquetCorpus,
    "hf": SavedCorpus,
}
"""What ``pack`` takes, by the name ``--corpus`` knows it by."""

CONVERTED: dict[str, type[Corpus]] = {"dataset": DatasetCorpus, "tokens": TokenFileCorpus}
"""What ``convert`` takes besides."""
