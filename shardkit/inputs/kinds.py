"""The table of all kinds of input.

A kind is loaded when it is asked for: a process that packs pictures should not wait until the
readers of tables are imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from shardkit.inputs.base import Corpus, Input

C = TypeVar("C", bound=Corpus)


class KindTable(Mapping[str, type[C]], Generic[C]):
    """Names of kinds, each with its class, which is imported on first use."""

    def __init__(self, homes: Mapping[str, str]) -> None:
        """``homes``: name -> module below :mod:`shardkit.inputs` and class, ``module:Class``."""
        self._homes = homes

    def __getitem__(self, name: str) -> type[C]:
        module, _, made = self._homes[name].partition(":")
        found: type[C] = getattr(import_module(f"shardkit.inputs.{module}"), made)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


CORPORA: KindTable[Input] = KindTable(
    {
        "images": "images:ImageCorpus",
        "paired": "paired:PairedCorpus",
        "parallel": "annotations.parallel:ParallelCorpus",
        "companions": "annotations.companions:CompanionCorpus",
        "metadata": "annotations.metadata:MetadataCorpus",
        "coco": "annotations.coco:CocoCorpus",
        "yolo": "annotations.yolo:YoloCorpus",
        "captions": "annotations.captions:CaptionsCorpus",
        "text": "text:TextCorpus",
        "jsonl": "tables.jsonl:JsonlCorpus",
        "arrays": "arrays:ArrayCorpus",
        "parquet": "tables.parquet:ParquetCorpus",
        "hf": "tables.arrow:SavedCorpus",
        "rows": "rows.row_corpus:RowCorpus",
        "tfrecord": "containers.tfrecord:TfRecordCorpus",
        "lmdb": "containers.lmdb_files:LmdbCorpus",
        "media": "binaries:MediaCorpus",
        "files": "binaries:BinaryCorpus",
    }
)
"""What ``pack`` takes, by the name ``--corpus`` knows it by."""

CONVERTED: KindTable[Corpus] = KindTable(
    {
        "objects": "objects.rows:RowsCorpus",
        "stream": "objects.stream:StreamCorpus",
        "dataset": "containers.dataset:DatasetCorpus",
        "tokens": "containers.tokens:TokenFileCorpus",
        "tar folders": "containers.tar_folders:TarFolderCorpus",
        "packed tars": "containers.packed_tars:PackedTarCorpus",
    }
)
"""Kinds for Python objects, which ``pack`` takes, and for packed data, which ``convert`` takes."""


def from_spec(source: Path, spec: dict[str, Any]) -> Corpus:
    """The corpus whose ``spec()`` this is, made without looking at the input; for reading runs."""
    kind = spec["kind"]
    made: type[Corpus] = CORPORA[kind] if kind in CORPORA else CONVERTED[kind]
    return made.from_spec(source, spec)
