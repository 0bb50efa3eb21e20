"""Blocks of splits that nobody has opened since the server began: they count, and go first."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from shardkit.index.manifest import INDEX_NAME
from shardkit.remote.cached_split import STAMPS
from shardkit.remote.private_folder import open_own
from shardkit.remote.protocol import ORIGIN

DATASET = re.compile(r"[0-9a-f]{32}")
"""Names of folders of datasets in a cache."""

_SHARD = re.compile(r"(.+?)-\d{5,}\..+")

_SECTOR = 512


def datasets_in(cache: Path) -> list[Path]:
    """Return the folders of datasets: those that say so themselves, since others may be called
    likewise."""
    try:
        return sorted(path for path in cache.iterdir() if _is_dataset(path))
    except FileNotFoundError:
        return []


def _is_dataset(path: Path) -> bool:
    is_named = DATASET.fullmatch(path.name) and not path.is_symlink()
    return bool(is_named) and (path / ORIGIN).is_file() and (path / INDEX_NAME).is_file()


def kept_bytes(folder: Path) -> dict[str, int]:
    """Return the bytes that the blocks of each split of a dataset take on the disk."""
    found: dict[str, int] = {}
    for path in folder.iterdir():
        if split := _SHARD.fullmatch(path.name):
            found[split[1]] = found.get(split[1], 0) + path.lstat().st_blocks * _SECTOR
    return found


class OrphanedSplits:
    """The splits in one cache that were not opened since the server began."""

    def __init__(self, cache: Path) -> None:
        datasets = sorted(datasets_in(cache), key=lambda folder: folder.stat().st_mtime_ns)
        self._bytes = {
            (folder, name): num_bytes
            for folder in datasets
            for name, num_bytes in kept_bytes(folder).items()
        }

    @property
    def num_bytes(self) -> int:
        """How many bytes they take."""
        return sum(self._bytes.values())

    def adopt(self, folder: Path, name: str) -> None:
        """Count a split no more: it is opened."""
        self._bytes.pop((folder, name), None)

    def drop_oldest(self) -> None:
        """Remove the files of a split of the dataset that was changed longest ago."""
        self._drop(*next(iter(self._bytes)))

    def clear(self, folder: Path) -> None:
        """Remove all of a dataset but what was opened. Its folder goes if nothing is left in it."""
        for key in [key for key in self._bytes if key[0] == folder]:
            self._drop(*key)
        for path in folder.iterdir():
            is_opened = _SHARD.fullmatch(path.name) or path.name.endswith(f".{STAMPS}")
            if not is_opened and path.name != ORIGIN:
                path.unlink()

    def _drop(self, folder: Path, name: str) -> None:
        """Readers of an earlier server keep what they have mapped: both the stamps and the blocks
        are files that have no name any more, and stay as they are."""
        del self._bytes[folder, name]
        at = open_own(folder)
        try:
            for file in os.listdir(folder):
                split = _SHARD.fullmatch(file)
                if file == f"{name}.{STAMPS}" or (split and split[1] == name):
                    with suppress(FileNotFoundError):  # somebody deleted it
                        os.unlink(file, dir_fd=at)
        finally:
            os.close(at)
