"""A packed dataset as a corpus: what ``convert`` packs from. One shard of it is one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from shardkit.errors import StorageError
from shardkit.inputs.base import Corpus, Run
from shardkit.remote.urls import Url
from shardkit.samples.sample import SampleBatch
from shardkit.shards.locate import Located, locate, locate_remote
from shardkit.shards.restarted import samples_to_undo
from shardkit.shards.stored import ShardReader


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
        """Raises StorageError if another dataset lies behind the URL by now."""
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
