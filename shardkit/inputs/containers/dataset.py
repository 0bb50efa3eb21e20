"""A packed dataset as a corpus: what ``convert`` packs from. One shard of it is one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

from shardkit.errors import StorageError
from shardkit.images.restarting import FIELD
from shardkit.images.restarts import annotate, has_restarts
from shardkit.inputs.base import Corpus, Run
from shardkit.remote.urls import Url
from shardkit.samples.sample import SampleBatch
from shardkit.shards.locate import Located, locate, locate_remote
from shardkit.shards.stored import ShardReader


def located_again(source: Path, spec: dict[str, Any]) -> Located:
    """What a spec of :class:`DatasetCorpus` tells of.

    Raises:
        StorageError: another dataset lies behind the URL by now.
    """
    if "url" not in spec:
        return locate(source, tars=spec.get("tars"))
    located = locate_remote(Url(spec["url"]))
    if located.folder.name != source.name:
        raise StorageError(
            f"{located.url} has been replaced by another dataset since it was opened"
        )
    return located


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
        return cls(located_again(source, spec), spec.get("tars"))

    def spec(self) -> dict[str, Any]:
        fingerprints = {name: split.fingerprint for name, split in self.info.splits.items()}
        names = {
            name: split.files[split.index_file("names")][1]
            for name, split in self.info.splits.items()
        }
        spec: dict[str, Any] = {"kind": self.kind, "fingerprints": fingerprints, "names": names}
        if self._tars is not None:
            spec["tars"] = self._tars
        if self._located.url is not None:
            spec["url"] = self._located.url.text
        return spec

    def splits(self) -> list[str]:
        return list(self.info.splits)

    def runs(self, scratch: Path) -> Iterator[Run]:
        """One run a shard, one entry a row."""
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
        """The reader of a split, opened once."""
        if split not in self._readers:
            self._readers[split] = ShardReader(
                self._located.storage, self.info, self.info.splits[split]
            )
        return self._readers[split]


def samples_to_undo(reader: ShardReader, start: int, stop: int) -> SampleBatch:
    """Return rows as if all shards had been given restart markers: a note in a JPEG of one that was
    not is the input's own. It gets one more, so that removing one of each gives the originals."""
    batch = reader.samples(start, stop)
    shards = [reader.index.split.shards[n] for n in reader.index.shard_of(np.arange(start, stop))]
    values = batch.columns.get(FIELD, [])
    for i, (shard, value) in enumerate(zip(shards, values, strict=False)):
        if not shard.has_restarts and value is not None and has_restarts(value):
            values[i] = annotate(value)
    return batch
