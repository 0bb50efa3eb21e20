"""What can be packed: one file a kind of input, and the table of them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardkit.corpus.arrays import ArrayCorpus
from shardkit.corpus.arrow import SavedCorpus
from shardkit.corpus.base import Corpus, Run
from shardkit.corpus.census import ONE_FILE, detect, require_folder
from shardkit.corpus.images import ImageCorpus
from shardkit.corpus.jsonl import JsonlCorpus
from shardkit.corpus.paired import PairedCorpus
from shardkit.corpus.parquet import ParquetCorpus
from shardkit.corpus.text import TextCorpus
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

__all__ = ["CORPORA", "Corpus", "Run", "detect", "from_spec", "open_corpus"]

_Kind = (
    type[ImageCorpus]
    | type[PairedCorpus]
    | type[TextCorpus]
    | type[JsonlCorpus]
    | type[ArrayCorpus]
    | type[ParquetCorpus]
    | type[SavedCorpus]
)

CORPORA: dict[str, _Kind] = {
    "images": ImageCorpus,
    "paired": PairedCorpus,
    "text": TextCorpus,
    "jsonl": JsonlCorpus,
    "arrays": ArrayCorpus,
    "parquet": ParquetCorpus,
    "hf": SavedCorpus,
}
"""Every kind of input, by the name ``--corpus`` knows it by."""


def open_corpus(
    source: str | Path,
    kind: str | None = None,
    labels: str | Path | None = None,
    text_field: str | None = None,
) -> Corpus:
    """The corpus at ``source``; its kind is detected unless given.

    Raises:
        CorpusError: no such input, of no or several kinds, or an option that its kind has not.
        StorageError: a folder cannot be listed.
    """
    source = Path(source)
    if kind is not None and kind not in CORPORA:
        raise CorpusError(f"{kind!r} is no kind of corpus; choose one of {', '.join(CORPORA)}")
    if kind is None:
        kind = detect(source)
    elif kind not in ONE_FILE or not source.is_file():
        require_folder(source)
    made = CORPORA[kind]
    given = {"labels": labels, "text_field": text_field}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in options.keys() - made.options:
        raise CorpusError(
            f"--{name.replace('_', '-')} does not go with {kind}, which is what"
            f" {show_path(source)} is taken for; leave it out, or choose with --corpus"
        )
    return made(source, **options)


def from_spec(source: Path, spec: dict[str, Any]) -> Corpus:
    """The corpus whose ``spec()`` this is, made without looking at the input; for reading runs."""
    if spec["kind"] == "dataset":  # this and the next: what `convert` packs from
        from shardkit.corpus.dataset import DatasetCorpus
        from shardkit.shards.locate import locate

        place = locate(source)
        return DatasetCorpus(place.folder, place.info)
    if spec["kind"] == "tokens":
        from shardkit.corpus.tokens import TokenFileCorpus

        return TokenFileCorpus.from_spec(source, spec)
    return CORPORA[spec["kind"]].from_spec(source, spec)
