"""The files of a split that are in the cache, as far as they are, as readers have them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shardkit.arrays import Array, Bytes, Integers
from shardkit.errors import StorageError
from shardkit.memory import buffers
from shardkit.memory.maps import mapped
from shardkit.remote.cached_split import STAMPS, Stamps, blocks_of
from shardkit.storage.base import Turn
from shardkit.storage.local_files import (
    CopiedFiles,
    CopiedPiece,
    CopiedRanges,
    MappedRanges,
    map_limit,
)
from shardkit.storage.opened import Opened
from shardkit.system.file_io import OpenFile, open_file
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

TRIES = 100
"""How often blocks may go between being asked for and being copied: each time another reader, or
many, needed the space."""

ALL = -1
"""Of the stamps, the one that is not 0 while all blocks are there."""


class BlockSource(Protocol):
    """What these files need of :class:`shardkit.remote.storage.Remote`; errors as there."""

    @property
    def cache(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    def place(self, names: Sequence[str]) -> tuple[str, Integers]: ...
    def ask(self, do: str, numbers: Integers, *, split: str) -> object: ...
    def tell(self, do: str, numbers: Integers, *, split: str) -> object: ...
    def foresee(self, split: str, blocks: Integers, turn: Turn) -> None: ...


class CachedFiles:
    """:class:`shardkit.storage.base.Files` of one split, of which some blocks are in the cache.

    It gives out copies: :mod:`shardkit.remote.cached_split` says how it is known to be good.
    """

    def __init__(
        self,
        remote: BlockSource,
        names: Sequence[str],
        sizes: Sequence[int],
        *,
        copied: bool = False,
    ) -> None:
        self._remote = remote
        self._split, self._firsts = remote.place(names)
        self._maps = Opened(remote.folder, names, sizes, self._map_file, map_limit)
        self._advice = f"delete {show_path(remote.folder)}, and open the dataset again"
        self._copies: CopiedFiles | None = None
        if copied:
            self._copies = CopiedFiles(remote.folder, names, sizes, self._open_file, self._advice)
        self.sizes = self._maps.sizes
        self._stamps: Stamps | None = None
        self._stamps_file = (0, 0)

    def read(
        self, numbers: Integers, starts: Integers, sizes: Integers
    ) -> CachedRanges | CopiedRanges:
        asked = sizes
        if np.count_nonzero(sizes) != len(sizes):
            some = sizes > 0  # a file is there once something of it was fetched: none has no bytes
            numbers, starts, sizes = numbers[some], starts[some], sizes[some]
        ranges = MappedRanges(self._maps, numbers, starts, sizes)
        found = CachedRanges(self, ranges, numbers, starts, sizes, asked)
        return found if self._copies is None else found.copied()

    def copy(
        self, out: Bytes, numbers: Integers, starts: Integers, sizes: Integers, ranges: MappedRanges
    ) -> None:
        """Copy ranges whose blocks are there, from the maps or, to be safe, from the files."""
        if self._copies is None:
            ranges.copy_to(out)
        else:
            self._copies.read_into(out, numbers, starts, sizes)

    def piece(self, number: int, start: int, stop: int) -> CopiedPiece:
        return CopiedPiece(self.read_one, number, start, stop)

    def read_one(self, number: int, start: int, size: int) -> memoryview:
        """Return one range."""
        one = np.array([[number, start, size]], np.int64)
        return self.read(one[:, 0], one[:, 1], one[:, 2]).slices()[0]

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        blocks = blocks_of(self._firsts[numbers], starts, sizes)
        if turn is not None:
            self._remote.foresee(self._split, blocks, turn)
        elif len(blocks) and (self._stamps is None or not self._stamps[blocks].all()):
            self._remote.tell("soon", blocks, split=self._split)

    def is_cold(self) -> bool:
        """Return True while something is missing."""
        return self._stamps is None or not self._stamps[ALL]

    def wait_for(
        self, numbers: Integers, starts: Integers, sizes: Integers
    ) -> tuple[Integers | int, Stamps | np.uint32]:
        """Return numbers of stamps, and their values, once all blocks of these ranges are there."""
        if self._stamps is not None and (all_there := self._stamps[ALL]):
            return ALL, all_there
        blocks = blocks_of(self._firsts[numbers], starts, sizes)
        if not len(blocks):
            return blocks, np.empty(0, np.uint32)
        for tried in range(TRIES):
            if tried or self._stamps is None:
                self._remote.ask("need", blocks, split=self._split)
            if tried == 1:
                self._refuse_deleted()
            if self._stamps is None:
                self._stamps = self._open_stamps()
            if (found := self._stamps[blocks]).all():
                return blocks, found
        raise StorageError(
            f"the cache {self._remote.cache} loses blocks before they are read: make cache_bytes"
            " larger, or let fewer jobs share it"
        )

    def are_still(self, blocks: Integers | int, stamps: Stamps | np.uint32) -> bool:
        """Return True if they were there all the time since."""
        if self._stamps is None:
            return True
        now = self._stamps[blocks] == stamps
        return bool(now if isinstance(blocks, int) else now.all())

    def _open_stamps(self) -> Stamps:
        with self._deleted():
            file = open_file(self._remote.folder / f"{self._split}.{STAMPS}")
            status = os.fstat(file.fd)
            self._stamps_file = status.st_dev, status.st_ino
            with closing(file):
                return np.frombuffer(mapped(file.fd, status.st_size), np.uint32)

    def _map_file(self, path: Path, num_bytes: int) -> memoryview:
        with (
            closing(self._open_file(path, num_bytes)) as file,
            os_errors(f"mapping {show_path(path)}"),
        ):
            return mapped(file.fd, num_bytes)

    def _open_file(self, path: Path, num_bytes: int) -> OpenFile:
        """Open a file. Raises StorageError if it is not the file that the stamps tell of."""
        with self._deleted():
            file = open_file(path, num_bytes)
            self._refuse_deleted()
        return file

    def _refuse_deleted(self) -> None:
        """Raise StorageError if there is another file of stamps by now."""
        with self._deleted():
            status = (self._remote.folder / f"{self._split}.{STAMPS}").stat()
            if (status.st_dev, status.st_ino) != self._stamps_file:
                raise FileNotFoundError

    @contextmanager
    def _deleted(self) -> Iterator[None]:
        """Raise StorageError instead of FileNotFoundError."""
        try:
            yield
        except FileNotFoundError as error:
            raise StorageError(
                f"the cache {self._remote.cache} was deleted while it was read from; open the"
                " dataset again"
            ) from error


@dataclass(slots=True)
class CachedRanges:
    """:class:`shardkit.storage.base.Ranges` of the cache.

    Attributes:
        numbers, starts, sizes: of the ranges that have bytes. asked: (B,) int64, sizes of all.
    """

    _files: CachedFiles
    _ranges: MappedRanges
    _numbers: Integers
    _starts: Integers
    _sizes: Integers
    _asked: Integers

    def slices(self) -> list[memoryview]:
        return self.copied().slices()

    def copied(self) -> CopiedRanges:
        """Return the same ranges, read now."""
        ends = self._asked.cumsum()
        out: Bytes = buffers.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        self.copy_to(out)
        return CopiedRanges(out, ends)

    def copy_to(self, out: Bytes) -> None:
        places = self._numbers, self._starts, self._sizes
        self._copy(lambda: self._files.copy(out, *places, self._ranges))

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        self._copy(lambda: self._ranges.widen_to(out, dtype))

    def _copy(self, copy: Callable[[], None]) -> None:
        """Copy until the blocks stay meanwhile."""
        for _ in range(TRIES):
            seen = self._files.wait_for(self._numbers, self._starts, self._sizes)
            copy()
            if self._files.are_still(*seen):
                return
        raise StorageError("the cache loses blocks while they are read: make cache_bytes larger")

    def joined(self, size: int) -> Bytes:
        out: Bytes = buffers.empty((len(self._asked), size), np.uint8)
        self.copy_to(out.reshape(-1))
        return out
