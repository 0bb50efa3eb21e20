"""Blocks of datasets that nobody has opened since this server began: they count, and go first."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shardkit.index.manifest import INDEX_NAME
from shardkit.remote.cached_split import STAMPS, punch
from shardkit.remote.private_folder import open_own, open_plain
from shardkit.remote.protocol import ORIGIN

DATASET = re.compile(r"[0-9a-f]{32}")
"""What the folder of a dataset in a cache is called."""

_SHARD = re.compile(r"(.+?)-\d{5,}\..+")

_SECTOR = 512

EMPTY_S = 86_400
"""How long the files of a dataset stay that hold nothing: readers that run may still map them."""


def datasets_in(cache: Path) -> list[Path]:
    """Their folders: those that say so themselves, since others may be called likewise."""
    try:
        return sorted(path for path in cache.iterdir() if _is_dataset(path))
    except FileNotFoundError:
        return []


def _is_dataset(path: Path) -> bool:
    return _is_ours(path) and (path / INDEX_NAME).is_file()


def _is_ours(path: Path) -> bool:
    is_named = DATASET.fullmatch(path.name) and not path.is_symlink()
    return bool(is_named) and (path / ORIGIN).is_file()


def kept_bytes(folder: Path) -> dict[str, int]:
    """Bytes that the blocks of each split of a dataset take on the disk."""
    return {split: sum(files.values()) for split, files in _files_of(folder).items()}


def _files_of(folder: Path) -> dict[str, dict[str, int]]:
    """Split -> its files, and what they take."""
    found: dict[str, dict[str, int]] = {}
    for path in folder.iterdir():
        split = _SHARD.fullmatch(path.name)
        if split is not None:
            taken = path.lstat().st_blocks * _SECTOR
            found.setdefault(split[1], {})[path.name] = taken
    return found


@dataclass(frozen=True)
class _Split:
    """``files``: name -> bytes of those that take room."""

    folder: Path
    name: str
    files: dict[str, int]
    used_ns: int


class OrphanedSplits:
    """Of one cache, the splits that were not opened since the server began.

    Attributes:
        num_bytes: that they take.
    """

    def __init__(self, cache: Path) -> None:
        self._splits: dict[tuple[str, str], _Split] = {}
        _remove_empty(cache)
        for folder in datasets_in(cache):
            for name, files in _files_of(folder).items():
                stamps = folder / f"{name}.{STAMPS}"
                used_ns = stamps.stat().st_mtime_ns if stamps.exists() else 0
                self._splits[folder.name, name] = _Split(folder, name, files, used_ns)
        self.num_bytes = sum(sum(split.files.values()) for split in self._splits.values())

    def adopt(self, folder: Path, name: str) -> None:
        """It is opened: others count its blocks from now on."""
        split = self._splits.pop((folder.name, name), None)
        if split is not None:
            self.num_bytes -= sum(split.files.values())

    def drop_oldest(self) -> None:
        """All blocks of a file, of the split that was not used for longest."""
        split = min(self._splits.values(), key=lambda split: split.used_ns)
        if split.files:
            self._drop_file(split, max(split.files))
        else:
            self.adopt(split.folder, split.name)

    def clear(self, folder: Path) -> None:
        """All that is kept of a dataset which nobody has opened since.

        Its files stay, empty: who reads it since before goes on with them once they are filled.
        """
        for split in [one for one in self._splits.values() if one.folder == folder]:
            while split.files:
                self._drop_file(split, max(split.files))
            self.adopt(folder, split.name)
        for path in folder.iterdir():
            is_mapped = _SHARD.fullmatch(path.name) or path.name.endswith(f".{STAMPS}")
            if not is_mapped and path.name != ORIGIN:
                path.unlink()

    def _drop_file(self, split: _Split, name: str) -> None:
        """Readers of an earlier server may still look at the stamps, and have the files mapped: so
        first there are no blocks, and the file that comes to hold others is the same."""
        self.num_bytes -= split.files.pop(name)
        at = open_own(split.folder)
        try:
            with suppress(FileNotFoundError), _opened(f"{split.name}.{STAMPS}", at) as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))
            with suppress(FileNotFoundError), _opened(name, at) as file:  # someone deleted it
                punch(file.fileno(), 0, max(os.fstat(file.fileno()).st_size, 1))
        finally:
            os.close(at)


def _opened(name: str, at: int) -> BinaryIO:
    return open(open_plain(name, os.O_RDWR, at), "r+b")


def _remove_empty(cache: Path) -> None:
    """Datasets of which all was removed, a day later."""
    for folder in filter(_is_ours, cache.iterdir()):
        is_old = time.time() - folder.stat().st_mtime > EMPTY_S
        if is_old and not _is_dataset(folder):
            shutil.rmtree(folder, ignore_errors=True)
