"""A packed dataset as a corpus: what ``convert`` packs from. One shard of it is one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from shardkit.corpus.base import Corpus, Run
from shardkit.index.manifest import DatasetInfo
from shardkit.samples.sample import SampleBatch
from shardkit.shards.locate import locate
from shardkit.shards.stored import ShardReader
from shardkit.storage.folder import Folder


class DatasetCorpus(Corpus):
    """Yields the samples of a dataset unchanged: keys, paths and canonical values.

    ``tars``: names of the tars it is made of, where the source is one of several in its folder.
    """

    kind = "dataset"
    has_pictures = True
    has_text = True
    keeps_shards = True

    def __init__(self, folder: Path, info: DatasetInfo, tars: list[str] | None = None) -> None:
        self.info = info
        self.classes = info.classes
        self.has_restarts = info.provenance.has_restarts
        self.ignored = info.provenance.passed
        self._folder = folder
        self._tars = tars
        self._readers: dict[str, ShardReader] = {}

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        located = locate(source, tars=spec.get("tars"))
        return cls(located.folder, located.info, spec.get("tars"))

    def spec(self) -> dict[str, Any]:
        fingerprints = {name: split.fingerprint for name, split in self.info.splits.items()}
        names = {name: split.files[f"{name}.names"][1] for name, split in self.info.splits.items()}
        spec: dict[str, Any] = {"kind": self.kind, "fingerprints": fingerprints, "names": names}
        return spec if self._tars is None else {**spec, "tars": self._tars}

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
        return self.reader(run.split).samples(start, start + len(run))

    def reader(self, split: str) -> ShardReader:
        """The reader of a split, opened once."""
        if split not in self._readers:
            self._readers[split] = ShardReader(
                Folder(self._folder), self.info, self.info.splits[split]
            )
        return self._readers[split]
