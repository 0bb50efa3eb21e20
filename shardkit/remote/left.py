"""What earlier keepers left of datasets that nobody has opened since: it counts, and goes first."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from shardkit.remote.cached import STAMPS
from shardkit.remote.keeper_files import ORIGIN

DATASET = re.compile(r"[0-9a-f]{32}")
"""What the folder of a dataset in a cache is called."""

_SHARD = re.compile(r"(.+)-\d{5,}\..+")

_SECTOR = 512


def datasets_in(cache: Path) -> list[Path]:
    """Their folders: those that say so themselves, since others may be called likewise."""
    try:
        return sorted(path for path in cache.iterdir() if _is_dataset(path))
    except FileNotFoundError:
        return []


def _is_dataset(path: Path) -> bool:
    is_ours = DATASET.fullmatch(path.name) and not path.is_symlink()
    return bool(is_ours) and (path / ORIGIN).is_file()


def kept_bytes(folder: Path) -> dict[str, int]:
    """Bytes that the blocks of each split of a dataset take on the disk."""
    found: dict[str, int] = {}
    for path in folder.iterdir():
        split = _SHARD.fullmatch(path.name)
        if split is not None:
            taken = path.stat().st_blocks * _SECTOR
            found[split[1]] = found.get(split[1], 0) + taken
    return found


@dataclass(frozen=True)
class _Split:
    folder: Path
    name: str
    num_bytes: int
    used_ns: int


class LeftSplits:
    """Of one cache, the splits that were not opened since the keeper began.

    Attributes:
        num_bytes: that they take.
    """

    def __init__(self, cache: Path) -> None:
        self._splits: dict[tuple[str, str], _Split] = {}
        for folder in datasets_in(cache):
            for name, num_bytes in kept_bytes(folder).items():
                stamps = folder / f"{name}.{STAMPS}"
                used_ns = stamps.stat().st_mtime_ns if stamps.exists() else 0
                self._splits[folder.name, name] = _Split(folder, name, num_bytes, used_ns)
        self.num_bytes = sum(split.num_bytes for split in self._splits.values())

    def take(self, folder: Path, name: str) -> None:
        """It is opened: others count its blocks from now on."""
        split = self._splits.pop((folder.name, name), None)
        if split is not None:
            self.num_bytes -= split.num_bytes

    def drop_oldest(self) -> None:
        """All blocks of the split that was not used for longest."""
        self._drop(min(self._splits.values(), key=lambda split: split.used_ns))

    def drop(self, folder: Path) -> None:
        """All blocks of a dataset, as far as nobody has opened it."""
        for split in [one for one in self._splits.values() if one.folder == folder]:
            self._drop(split)

    def _drop(self, split: _Split) -> None:
        stamps = split.folder / f"{split.name}.{STAMPS}"
        if stamps.exists():  # readers of an earlier keeper may still look at them
            with stamps.open("r+b") as file:
                file.write(bytes(stamps.stat().st_size))
        for path in split.folder.glob(f"{split.name}-*"):
            found = _SHARD.fullmatch(path.name)
            if found is not None and found[1] == split.name:
                path.unlink()
        self.take(split.folder, split.name)


def remove_dataset(folder: Path) -> None:
    """A folder of a dataset, with all that is in it."""
    for path in folder.iterdir():
        path.unlink()
    os.rmdir(folder)
