"""What ``convert`` packs from: a packed dataset, third-party tars where they lie, or token ids.

One shard of a dataset is one run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.errors import CorpusError, StorageError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.index.rows import RowIndex
from shardkit.inputs.corpus import Corpus, Run
from shardkit.inputs.folders import split_of
from shardkit.inputs.sample_files import Cell, RecordFiles, SampleFile
from shardkit.remote.urls import Url
from shardkit.samples.encoding import TOKENS, npy_header
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.shards.locate import Located, locate, locate_remote
from shardkit.shards.restarted import samples_to_undo
from shardkit.shards.stored import ShardReader
from shardkit.system.paths import first_few, show_path
from shardkit.tokens.id_files import TokenFile, open_token_file

TARS_KIND = "tars"
"""The kind of input that a dataset made of third-party tars records."""

_RECIPES = "docs/recipes/records.md"

_TARS = frozenset({"tar", "tar.gz", "tgz", "tar.zst", "tzst", "tar.bz2", "tar.xz"})
"""Fields of members that are tars themselves."""


class DatasetCorpus(Corpus):
    """Yields the samples of a dataset unchanged: keys, paths and canonical values.

    ``tars``: names of the tars it is made of, where the source is one of several in its folder.
    """

    kind = "dataset"
    has_pictures = True
    has_text = True
    keeps_shards = True

    def __init__(self, located: Located, tars: list[str] | None = None) -> None:
        self.info = info = located.info
        self.classes = info.classes
        self.has_restarts = info.provenance.has_restarts
        self.ignored = info.provenance.passed
        self._located = located
        self._tars = tars
        self._readers: dict[str, ShardReader] = {}

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        """Return the corpus. Raises StorageError if another dataset lies behind the URL by now."""
        if "url" not in spec:
            return cls(locate(source, tars=spec.get("tars")), spec.get("tars"))
        located = locate_remote(Url(spec["url"]))
        if located.folder.name != source.name:
            raise StorageError(
                f"{located.url} has been replaced by another dataset since it was opened"
            )
        return cls(located, spec.get("tars"))

    def spec(self) -> dict[str, Any]:
        splits = self.info.splits
        fingerprints = {name: split.fingerprint for name, split in splits.items()}
        names = {name: own.files[own.index_file("names")][1] for name, own in splits.items()}
        spec: dict[str, Any] = {"kind": self.kind, "fingerprints": fingerprints, "names": names}
        if self._tars is not None:
            spec["tars"] = self._tars
        if self._located.url is not None:
            spec["url"] = self._located.url.text
        return spec

    def splits(self) -> list[str]:
        return list(self.info.splits)

    def runs(self, scratch: Path) -> Iterator[Run]:
        """Yield one run for each shard, with one entry for each row."""
        for name, split in self.info.splits.items():
            start = 0
            for number, shard in enumerate(split.shards):
                stop = start + shard.num_rows
                rows = [b"%d" % row for row in range(start, stop)]
                sizes = [sum(shard.file_bytes.values()) // max(len(rows), 1)] * len(rows)
                yield Run(name, str(number), None, rows, [b""] * len(rows), sizes, [0] * len(rows))
                start = stop

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        start = int(run.locators[0]) if len(run) else 0
        return samples_to_undo(self.reader(run.split), start, start + len(run))

    def reader(self, split: str) -> ShardReader:
        """Return the reader of a split, opened once."""
        if split not in self._readers:
            self._readers[split] = ShardReader(
                self._located.storage, self.info, self.info.splits[split]
            )
        return self._readers[split]


def dataset_corpus(located: Located, tars: list[str] | None = None) -> DatasetCorpus:
    """Return the corpus of a dataset, or of third-party tars where they lie. A note on these says
    which splits and classes their folders seem to tell: folders are parts of keys.

    Raises:
        CorpusError: the tars hold nothing but tars.
    """
    made, info, names = DatasetCorpus(located, tars), located.info, set[str]()
    if not located.tars:
        return made
    if {*info.fields} <= _TARS:
        raise CorpusError(
            f"{show_path(next(iter(located.tars.values())))} holds tars, not samples:"
            f" {_RECIPES}, A tar of tars"
        )
    for split in info.splits.values():
        index = RowIndex(located.storage, info, split)
        keys = (os.fsdecode(index.name(row)[0]) for row in range(split.num_rows))
        folders = {tuple(part for part in key.split("/")[:-1] if part != ".") for key in keys}
        depth = len(os.path.commonprefix([*folders]))  # noqa: RUF071 (of parts, not letters)
        below = {each[depth] for each in folders if len(each) > depth}
        names |= below if len(folders) > 1 else set()
    shown = (
        f"folders in the tars ({first_few(sorted(names))})" if names else "no folder in the tars"
    )
    are_images = all("." + field in IMAGE_EXTENSIONS for field in info.fields)
    if any(map(split_of, names)):
        told = f"{shown} are no splits: unpack the tars, and pack the folder, or see {_RECIPES}"
        made.notes = [told]
    elif "cls" not in info.fields and (names or are_images):
        told = f"no cls: {shown} tells a class; if folders or tars are classes, see {_RECIPES}"
        made.notes = [told]
    return made


class TokenFileCorpus(RecordFiles):
    """Field ``tokens``: a ``.npy`` of a document's ids, in the dtype that was chosen. The key is
    the document's number."""

    kind = "tokens"
    noun = "token ids"
    unit = "document"
    kept = {"dtype": "_dtype", "stored_dtype": "_stored_dtype"}  # noqa: RUF012

    def __init__(
        self, source: Path, dtype: str, documents: TokenFile, stored_dtype: str | None = None
    ) -> None:
        super().__init__(source)
        self._dtype, self._documents, self._stored_dtype = dtype, documents, stored_dtype
        self._files = [SampleFile("train", "")]

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = super().from_spec(source, spec)
        made._documents = open_token_file(source, stored_dtype=made._stored_dtype)
        return made

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "fingerprint": self._documents.fingerprint}

    def _path(self, base: str) -> Path:
        return self._documents.files[0]

    def entries(self, file: SampleFile, plain: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        data = self._documents.data
        at = plain.stat().st_size - data.nbytes
        begin = 0
        for number, end in enumerate(map(int, self._documents.sample_ends)):
            size = (end - begin) * data.itemsize
            yield b"%012d" % number, (at, size)
            begin, at = end, at + size

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        ids = np.frombuffer(value, self._documents.dtype)
        data = ids.astype(self._dtype, copy=False).tobytes()
        return [(TOKENS, npy_header(self._dtype, ids.shape) + data, b"")]

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        return lambda key, cells: pack_paths(key, [])
