"""Eviction from a cache: who holds which blocks, and which go when others come."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import StorageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.remote.cached_split import NEVER, STAMPS, CachedSplit
from shardkit.remote.connection import ORIGIN
from shardkit.remote.private_folder import open_own
from shardkit.system.file_io import BLOCK_BYTES

RESERVE_BYTES = 1 << 30
"""Space that a cache without a stated size leaves to others."""

AT_ONCE = 64
"""Blocks go in lots of this part of the cache: finding those that are needed last takes 10 ms for
each million of blocks."""

COPY_S = 0.2
"""How long blocks stay for a reader that was told that they are there. Copying takes
milliseconds, and who comes late asks again."""

DATASET = re.compile(r"[0-9a-f]{32}")
"""Names of folders of datasets in a cache."""

_SHARD = re.compile(r"(.+?)-\d{5,}\..+")

_SECTOR = 512

NextSteps = Callable[[CachedSplit, Integers], Integers]
"""Tells in how many steps each block of a split is needed; NEVER if no loop has announced it."""


class Evictor:
    """The blocks that take space in one cache. What is needed last goes first; of what no loop has
    announced, which goes before, what was asked for longest ago.

    Splits that nobody has opened since this began are orphans: their blocks go before all others.

    Attributes:
        most_bytes: of blocks, at most; None for all that is free but :data:`RESERVE_BYTES`.
    """

    def __init__(self, folder: Path, next_steps: NextSteps) -> None:
        self.most_bytes: int | None = None
        self._folder = folder
        self._next_steps = next_steps
        self._splits: list[CachedSplit] = []
        self._used = 0
        self._clock = 0
        self._held: dict[int, tuple[CachedSplit, Integers]] = {}
        self._copying: dict[int, float] = {}  # since when those who hold have what they asked for
        datasets = sorted(datasets_in(folder), key=lambda one: one.stat().st_mtime_ns)
        self._orphans = {  # oldest first
            (dataset, name): num_bytes
            for dataset in datasets
            for name, num_bytes in kept_bytes(dataset).items()
        }

    def capacity(self) -> int:
        """Return how many bytes blocks may take together."""
        if self.most_bytes is not None:
            return self.most_bytes
        free = shutil.disk_usage(self._folder).free
        return self._used + sum(self._orphans.values()) + max(free - RESERVE_BYTES, 0)

    def _too_small(self, needed: str, instead: str) -> StorageError:
        """Return the error that says what the cache holds, and why so little."""
        shown = f"the cache {self._folder} holds {self.capacity()} bytes"
        if self.most_bytes is None:
            free = shutil.disk_usage(self._folder).free
            shown += f" (its disk has {free} free, of which {RESERVE_BYTES} are left to others)"
        return StorageError(
            f"{shown}, and {needed}: make cache_bytes larger, or use a cache_dir on another disk,"
            f" {instead}"
        )

    def free(self) -> int:
        """Return the bytes that can come while none goes."""
        return self.capacity() - self._used

    def holds_all(self, split: CachedSplit) -> bool:
        """Return True if what is missing of a split fits, while none goes."""
        missing = len(split.blocks) - np.count_nonzero(split.takes_space)
        return int(missing) * BLOCK_BYTES <= self.free()

    # --- who holds what -------------------------------------------------------------------

    def hold(self, reader: int, split: CachedSplit, numbers: Integers) -> bool:
        """Keep these until the reader holds others, or none. Return False, and keep none, while
        others hold so much that these have no space.

        Raises:
            StorageError: they alone are more than the cache holds.
        """
        self.release(reader)
        self._release_copied()
        needed, most = int(split.blocks.bytes_of(numbers).sum()), self.capacity()
        if needed > most:
            raise self._too_small(f"one batch needs {needed}", "or smaller batches")
        if self._held_bytes() + needed > most:
            return False
        self._held[reader] = split, numbers
        np.add.at(split.held, numbers, 1)
        return True

    def _held_bytes(self) -> int:
        return sum(int(s.blocks.bytes_of(n).sum()) for s, n in self._held.values())

    def _release_copied(self) -> None:
        now = time.monotonic()
        for reader in [one for one, since in self._copying.items() if now - since > COPY_S]:
            self.release(reader)

    def release(self, reader: int) -> None:
        """Let go what a reader held."""
        self._copying.pop(reader, None)
        if reader in self._held:
            split, numbers = self._held.pop(reader)
            np.subtract.at(split.held, numbers, 1)

    def note_copying(self, reader: int) -> None:
        """Note that a reader has all that it holds, and copies that now. It does not say when it
        has; one that has not asks again."""
        self._copying[reader] = time.monotonic()

    def touch(self, split: CachedSplit, numbers: Integers) -> None:
        """Note that blocks were asked for."""
        self._clock += 1
        split.touched[numbers] = self._clock

    # --- what is there --------------------------------------------------------------------

    def add(self, split: CachedSplit, numbers: Integers) -> None:
        """Count blocks that take space from now on."""
        if split not in self._splits:
            self._splits.append(split)
        new = numbers[~split.takes_space[numbers]]
        split.takes_space[new] = True
        self._used += int(split.blocks.bytes_of(new).sum())

    def reserve(self, split: CachedSplit, numbers: Integers) -> None:
        """Count blocks, and keep them, while they are written. Raises as :meth:`make_space`."""
        new = numbers[~split.takes_space[numbers]]
        split.held[numbers] += 1
        try:
            self.make_space(int(split.blocks.bytes_of(new).sum()))
        except BaseException:
            split.held[numbers] -= 1
            raise
        self.add(split, numbers)

    def written(self, split: CachedSplit, numbers: Integers, *, is_there: bool) -> None:
        """Let go blocks that were written, or drop them if that failed."""
        split.held[numbers] -= 1
        if not is_there:
            self.drop(split, numbers)

    def make_space(self, num_bytes: int) -> None:
        """Drop what is needed last, until so many bytes are free.

        Raises:
            StorageError: readers hold too many.
        """
        most = self.capacity()
        while self._orphans and self._used + sum(self._orphans.values()) + num_bytes > most:
            self._drop_orphan(*next(iter(self._orphans)))
        if self._used + num_bytes <= most:
            return
        self._release_copied()
        slack, dropped = min(most // AT_ONCE, most // 2), 1
        while (excess := self._used + num_bytes - most) > 0 and dropped:
            dropped = 0  # some blocks have less bytes than a full one
            for split, numbers in self._last_needed(-(-(excess + slack) // BLOCK_BYTES)):
                self.drop(split, numbers)
                dropped += len(numbers)
        if self._used + num_bytes > most:
            needed = f"the batches that {len(self._held)} readers are making need"
            needed += f" {self._held_bytes()}"
            raise self._too_small(needed, "fewer workers or smaller batches")

    def drop(self, split: CachedSplit, numbers: Integers | None = None) -> None:
        """Drop these blocks of a split, or all."""
        if numbers is None:
            numbers = np.flatnonzero(split.takes_space)
        split.drop(numbers)
        numbers = numbers[split.takes_space[numbers]]
        split.takes_space[numbers] = False
        self._used -= int(split.blocks.bytes_of(numbers).sum())

    def _last_needed(self, count: int) -> list[tuple[CachedSplit, Integers]]:
        """Return so many blocks that nobody holds, as far as there are, by their splits."""
        droppable, keys = [], [np.empty(0, np.int64)]
        for split in self._splits:
            numbers = np.flatnonzero(split.takes_space & (split.held == 0))
            key = self._next_steps(split, numbers)
            is_unknown = key == NEVER
            key[is_unknown] = NEVER - split.touched[numbers[is_unknown]]
            droppable.append(numbers)
            keys.append(key)
        joined = np.concatenate(keys)
        is_chosen = np.ones(len(joined), bool)
        if len(joined) > count:
            is_chosen[np.argpartition(joined, len(joined) - count)[: len(joined) - count]] = False
        bounds = np.cumsum([len(key) for key in keys[:-1]])
        parts = zip(self._splits, droppable, np.split(is_chosen, bounds)[1:], strict=True)
        return [(split, numbers[chosen]) for split, numbers, chosen in parts if chosen.any()]

    # --- what nobody has opened -----------------------------------------------------------

    def adopt(self, folder: Path, name: str) -> None:
        """Note that a split is no orphan any more: it is opened."""
        self._orphans.pop((folder, name), None)

    def clear_orphans(self, folder: Path) -> None:
        """Remove all of a dataset but what was opened. Its folder goes if nothing is left in it."""
        for key in [key for key in self._orphans if key[0] == folder]:
            self._drop_orphan(*key)
        for path in folder.iterdir():
            is_opened = _SHARD.fullmatch(path.name) or path.name.endswith(f".{STAMPS}")
            if not is_opened and path.name != ORIGIN:
                path.unlink()

    def _drop_orphan(self, folder: Path, name: str) -> None:
        """Remove the files of a split. Readers of an earlier server keep what they have mapped:
        both the stamps and the blocks are files without a name then, and stay as they are."""
        del self._orphans[folder, name]
        at = open_own(folder)
        try:
            for file in os.listdir(folder):
                split = _SHARD.fullmatch(file)
                if file == f"{name}.{STAMPS}" or (split and split[1] == name):
                    with suppress(FileNotFoundError):  # somebody deleted it
                        os.unlink(file, dir_fd=at)
        finally:
            os.close(at)


def datasets_in(cache: Path) -> list[Path]:
    """Return the folders of datasets: those that say so themselves, since others may be called
    likewise."""

    def is_dataset(path: Path) -> bool:
        is_named = DATASET.fullmatch(path.name) is not None and not path.is_symlink()
        return is_named and all((path / name).is_file() for name in (ORIGIN, INDEX_NAME))

    try:
        return sorted(filter(is_dataset, cache.iterdir()))
    except FileNotFoundError:
        return []


def kept_bytes(folder: Path) -> dict[str, int]:
    """Return the bytes that the blocks of each split of a dataset take on the disk."""
    found: dict[str, int] = {}
    for path in folder.iterdir():
        if split := _SHARD.fullmatch(path.name):
            found[split[1]] = found.get(split[1], 0) + path.lstat().st_blocks * _SECTOR
    return found
