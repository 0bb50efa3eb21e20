"""Compressed tars that others made: decompressed once a pack, and then read as any tars."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError, FormatError
from shardkit.index.assembling import check_unique_keys
from shardkit.index.rows import RowIndex
from shardkit.inputs.base import Corpus, Run
from shardkit.inputs.containers.dataset import DatasetCorpus
from shardkit.inputs.containers.tar_classes import find_classes
from shardkit.inputs.containers.tar_folders import TarFolderCorpus
from shardkit.inputs.lines import plain_copy
from shardkit.samples.sample import SampleBatch
from shardkit.shards.locate import Located, locate
from shardkit.system.paths import show_path
from shardkit.system.stamps import size_and_stamp
from shardkit.tars.find import can_be_unpacked, is_compressed, is_packed
from shardkit.tars.write_index import tar_splits

_ENDING = re.compile(r"\.(tar\.(gz|zst)|tgz|tzst)$", re.IGNORECASE)

PLACE = "tars"
"""In the scratch folder, where the decompressed tars lie, under their names."""


class PackedTarCorpus(Corpus):
    """Tars of one folder, some of them compressed. Classes are known when they are listed.

    The scratch folder holds all of them at once: a sample is read from its place in a tar.
    """

    kind = "packed tars"
    has_pictures = True
    has_text = True
    keeps_shards = True

    def __init__(self, folder: Path, tars: Sequence[str]) -> None:
        """Raises CorpusError where one is compressed as ``convert`` does not unpack it, or two
        would have one name."""
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self._folder = folder
        self._tars = [*tars]
        self._read: DatasetCorpus | None = None
        names = [plain_tar_name(name) for name in self._tars]
        for name, packed in zip(names, self._tars, strict=True):
            if is_compressed(packed) and not can_be_unpacked(packed):
                raise CorpusError(
                    f"{show_path(folder / packed)}: only .tar.gz and .tar.zst are decompressed;"
                    " decompress it (bunzip2, unxz ...) first"
                )
            if names.count(name) > 1:
                raise CorpusError(
                    f"{show_path(folder)} holds {show_path(name)} twice, compressed and not, or in"
                    " two ways; name those that are meant"
                )

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(source if source.is_dir() else source.parent, spec["tars"])

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "tars": self._tars}

    def stamps(self) -> dict[str, list[int]]:
        """Size and stamp of each tar, by name. Raises OSError."""
        return {name: [*size_and_stamp(self._folder / name)] for name in self._tars}

    def splits(self) -> list[str]:
        return sorted(set(tar_splits([plain_tar_name(name) for name in self._tars])))

    def runs(self, scratch: Path) -> Iterator[Run]:
        located = self._unpacked(scratch)
        for split in located.info.splits.values():
            check_unique_keys(RowIndex(located.storage, located.info, split))
        found, why = find_classes(located)
        corpus: DatasetCorpus
        if found is None:
            corpus = DatasetCorpus(located)
            corpus.notes = [why] if why else []
        else:
            corpus = TarFolderCorpus(located, classes=found)
        self.classes, self.notes = corpus.classes, corpus.notes
        yield from corpus.runs(scratch)
        self.ignored.clear()
        self.ignored.update(corpus.ignored)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        if self._read is None:
            located = self._unpacked(scratch)
            has_classes = len(run) > 0 and b":" in run.locators[0]
            self._read = TarFolderCorpus(located) if has_classes else DatasetCorpus(located)
        return self._read.read(run, scratch)

    def _unpacked(self, scratch: Path) -> Located:
        """The tars in the scratch folder, decompressed there if they are not yet."""
        place = scratch / PLACE
        scratch.mkdir(exist_ok=True)
        place.mkdir(exist_ok=True)
        for name in self._tars:
            link = place / plain_tar_name(name)
            link.parent.mkdir(exist_ok=True)
            if not link.exists():
                _link(link, self._plain(name, scratch))
        return locate(place)

    def _plain(self, name: str, scratch: Path) -> Path:
        path = (self._folder / name).absolute()
        if not is_packed(path):
            return path
        _, stamp = size_and_stamp(path)
        try:
            return plain_copy(path, name, stamp, scratch).absolute()
        except FormatError as error:
            raise FormatError(f"{show_path(path)} {error}") from error


def plain_tar_name(name: str) -> str:
    """``a.tar.gz`` and ``a.tgz`` are ``a.tar``."""
    return _ENDING.sub(".tar", name)


def _link(link: Path, target: Path) -> None:
    """Another process may do it at the same time."""
    part = link.with_name(f"{link.name}.{os.uname().nodename}-{os.getpid()}")
    part.unlink(missing_ok=True)
    part.symlink_to(target)
    part.replace(link)
