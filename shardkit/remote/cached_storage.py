"""A dataset behind a URL as a :class:`shardkit.storage.interface.Storage`, read from the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Array, Bytes, Integers
from shardkit.errors import DataError, ShardMissingError, StorageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import DatasetInfo, read_info
from shardkit.memory import buffers
from shardkit.memory.maps import map_file, mapped
from shardkit.order.epochs import Order
from shardkit.remote.cached_split import STAMPS, BlockMap, Stamps, blocks_of
from shardkit.remote.connection import NO_NUMBERS, ask, tell
from shardkit.remote.private_folder import make_own
from shardkit.remote.urls import RemoteOptions, Url, default_cache, settings_of
from shardkit.storage.interface import Files, Turn
from shardkit.storage.local_files import (
    CopiedFiles,
    CopiedPiece,
    CopiedRanges,
    MappedRanges,
    map_limit,
)
from shardkit.storage.opened import Opened
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.file_io import BLOCK_BYTES, OpenFile, open_file
from shardkit.system.file_systems import is_remote
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

TRIES = 100
"""How often something may go between being fetched and being copied, or mapped: each time another
reader, or many, needed the space."""

RETRY_S = 120.0
"""Seconds in which a request is tried again after errors of the server or the network."""


@dataclass(frozen=True)
class Remote:
    """The dataset that lies behind a URL.

    Attributes:
        url: where. name: the dataset that was found there. cache: folder of the cache.
        most_bytes: of blocks in the cache; None for what is free.
        retry_s: how long a request is tried again after errors of the server or the network.
        settings: in place of the environment's.
    """

    url: Url
    name: str
    cache: str
    most_bytes: int | None
    retry_s: float
    settings: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        """Return the folder where the files of the dataset are kept, as far as they are."""
        return Path(self.cache, self.name)

    @cached_property
    def info(self) -> DatasetInfo:
        return read_info(self.folder)

    @cached_property
    def _splits(self) -> dict[str, tuple[str, BlockMap]]:
        """Return name of a shard file -> its split, and that split's blocks."""
        found: dict[str, tuple[str, BlockMap]] = {}
        for split in self.info.splits.values():
            blocks = BlockMap.of(split)
            found |= dict.fromkeys(blocks.names, (split.name, blocks))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, tuple(getattr(self, one.name) for one in fields(self))

    def ask(self, do: str, numbers: Integers = NO_NUMBERS, **said: Any) -> dict[str, Any]:
        """Ask the cache server something of the dataset. Errors as of
        :func:`shardkit.remote.connection.ask`."""
        return ask(self.cache, self._message(do, said), numbers)

    def tell(self, do: str, numbers: Integers, **said: Any) -> object:
        """Tell the cache server something of the dataset; returns at once, and by which
        connection."""
        return tell(self.cache, self._message(do, said), numbers)

    def _message(self, do: str, said: dict[str, Any]) -> dict[str, Any]:
        place = place_of(self.url, self.most_bytes, self.retry_s, self.settings)
        return {"do": do, **said, "name": self.name, "place": place}

    def forget(self) -> None:
        """Have all fetched anew that is read from now on, by anybody."""
        self.ask("forget")

    def fetched_bytes(self) -> int:
        """Return how many bytes of blocks were fetched, of all datasets, for anybody."""
        return int(self.ask("stats")["bytes"])

    def fetch_unlisted(self, name: str) -> None:
        """Have a file in the folder that shardkit.json does not list, if it can be read."""
        self.ask("unlisted", file=name)

    def capacity(self) -> int:
        """Return how many bytes of blocks the cache may hold, of all datasets together."""
        stats = self.ask("stats")
        if "capacity" not in stats:
            raise DataError("the cache's server is another one; two versions of shardkit share it")
        return int(stats["capacity"])

    def foresee(self, split: str, blocks: Integers, turn: Turn) -> None:
        """Tell the cache server what a loop will need at which step; returns at once."""
        numbers = np.concatenate([np.full(len(blocks), turn.step), blocks])
        self._is_known(turn, self.tell("follow", numbers, split=split, loop=turn.loop))

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        """Do as :meth:`shardkit.storage.interface.Foresees.reached` says."""
        said = {"loop": turn.loop, "step": turn.step, "is_resting": is_resting}
        return self._is_known(turn, self.tell("at", NO_NUMBERS, **said))

    def _is_known(self, turn: Turn, by: object) -> bool:
        """Return True if all that a loop told went by this one connection."""
        if self._loops.setdefault(turn.loop, by) is not by:
            self._loops[turn.loop] = None
        return by is not None and self._loops[turn.loop] is by

    @cached_property
    def _loops(self) -> dict[str, object]:
        return {}

    def contents(self, name: str, num_bytes: int, *, copied: bool = False) -> memoryview:
        """Return a file of the cache, where nobody writes to it again. It may go before it is
        mapped: `verify` and `cache --clear` remove it, and then it is fetched again."""
        path = self.folder / name
        for _ in range(TRIES if name != INDEX_NAME else 0):
            self.ask("index file", file=name)
            with suppress(ShardMissingError):
                return map_file(path, num_bytes, copied=copied)
        return map_file(path, num_bytes, copied=copied)

    def size(self, name: str) -> int:
        if name == INDEX_NAME:
            return (self.folder / name).stat().st_size
        try:
            return self.info.file_bytes[name]
        except KeyError as error:
            raise ShardMissingError(f"{self.show(name)}: there is no such file") from error

    def files(self, names: Sequence[str], sizes: Sequence[int], *, copied: bool = False) -> Files:
        return CachedFiles(self, names, sizes, copied=copied or is_remote(self.folder))

    def show(self, name: str) -> str:
        return str(self.url / name)

    def place(self, names: Sequence[str]) -> tuple[str, Integers]:
        """Return the split of these files, and the first block of each; a file that is not there
        has none."""
        known = next((self._splits[name] for name in names if name in self._splits), None)
        if known is None:
            return "", np.zeros(len(names), np.int64)
        split, blocks = known
        first = dict(zip(blocks.names, blocks.firsts.tolist(), strict=False))
        return split, np.array([first.get(name, 0) for name in names], np.int64)


def open_remote(url: Url, options: RemoteOptions) -> Remote:
    """Open what lies there now.

    Raises:
        ShardMissingError: no shardkit.json. StorageError: the network, the credentials, the cache.
    """
    folder, most = str(make_own(options.cache_dir or default_cache())), options.most_bytes
    place = place_of(url, most, RETRY_S, options.settings)
    answer = ask(folder, {"do": "open", "place": place})
    return Remote(url, answer["name"], folder, most, RETRY_S, options.settings)


def ask_place(
    url: Url, cache: Path, said: dict[str, Any], numbers: Integers = NO_NUMBERS
) -> dict[str, Any]:
    """Ask the cache server something of a URL where no dataset lies. Errors as of :func:`ask`."""
    said = {**said, "place": place_of(url, None, RETRY_S, {})}
    return ask(str(make_own(cache)), said, numbers)


def place_of(
    url: Url, most_bytes: int | None, retry_s: float, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a message says of a URL: with the environment of this moment, but for these
    settings."""
    settings = settings_of({**os.environ, **settings})
    return {"url": url.text, "settings": settings, "most_bytes": most_bytes, "retry_s": retry_s}


# --- files of a split ---------------------------------------------------------------------

Places = tuple[Integers, Integers, Integers]
"""(B,) int64 each: number of the file, first byte, number of bytes."""

ALL = -1
"""The place of the stamp that is not 0 while all blocks are there."""


class CachedFiles:
    """:class:`shardkit.storage.interface.Files` of a split, of which some blocks are in the cache.

    It gives out copies: :mod:`shardkit.remote.cached_split` says how it is known to be good.
    """

    def __init__(
        self,
        remote: Remote,
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
        found = CachedRanges(self, ranges, self._copies, (numbers, starts, sizes), asked)
        return found if self._copies is None else found.copied()

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

    def copy(self, places: Places, copy: Callable[[], None]) -> None:
        """Wait for all blocks of these ranges, and copy until they stay meanwhile. Bytes are right
        if the stamps of their blocks are the same before and after."""
        blocks: Integers | None = None
        for tried in range(TRIES):
            if self._stamps is not None and (all_there := self._stamps[ALL]):
                copy()
                if self._stamps[ALL] == all_there:
                    return
                continue
            if blocks is None:
                numbers, starts, sizes = places
                blocks = blocks_of(self._firsts[numbers], starts, sizes)
            if not len(blocks):
                return copy()
            if tried or self._stamps is None:
                self._remote.ask("need", blocks, split=self._split)
            if tried == 1:
                self._refuse_deleted()
            if self._stamps is None:
                self._stamps = self._open_stamps()
            if (found := self._stamps[blocks]).all():
                copy()
                if (self._stamps[blocks] == found).all():
                    return
        raise StorageError(
            f"the cache {self._remote.cache} loses blocks before they are read: make cache_bytes"
            " larger, or let fewer jobs share it"
        )

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
    """:class:`shardkit.storage.interface.Ranges` of the cache.

    Attributes:
        places: of the ranges that have bytes. asked: (B,) int64, sizes of all.
    """

    _files: CachedFiles
    _ranges: MappedRanges
    _copies: CopiedFiles | None
    _places: Places
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
        """Copy from the maps or, to be safe, from the files."""
        if self._copies is None:
            self._files.copy(self._places, lambda: self._ranges.copy_to(out))
        else:
            read_into = self._copies.read_into
            self._files.copy(self._places, lambda: read_into(out, *self._places))

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        self._files.copy(self._places, lambda: self._ranges.widen_to(out, dtype))

    def joined(self, size: int) -> Bytes:
        return self.copied().joined(size)


# --- an order that does not fit the cache -------------------------------------------------

WORTH_SAYING = {"full": 8.0, "block": 1.5}
"""Times the bytes of the dataset that an epoch fetches. A full shuffle has its price, and a block
order is chosen to avoid it."""


def why_repeated(shown: str, order: Order, num_bytes: int, cache_bytes: int) -> str | None:
    """Return a warning if an epoch fetches much of the dataset again, else None.

    Each sample that is not cached costs the blocks that it lies in.
    """
    if order.shuffle is None or not order.num_rows:
        return None
    each, rows = num_bytes / order.num_rows, order.num_rows
    if order.shuffle == "block":
        rows = min(order.block_rows * order.window_blocks, rows)
    mixed = max(int(rows * each), 1)
    times = max(1 - cache_bytes / mixed, 0.0) * (1 + rows * BLOCK_BYTES / mixed)
    if times < WORTH_SAYING[order.shuffle]:
        return None
    enough = int(min(1.25 * rows * each, num_bytes) / 1e6) + 1
    return (
        f"{shown}: shuffle={order.shuffle!r} mixes {format_bytes(rows * each)}, and the cache holds"
        f" {format_bytes(cache_bytes)}, so an epoch fetches up to {times:.1f} times the dataset."
        f" cache_bytes='{enough}MB' fetches each byte about once, and so does shuffle='block',"
        f" {fitting_window(each, cache_bytes, order)}, which is another order"
    )


def fitting_window(each: float, cache_bytes: int, order: Order) -> str:
    """Return the arguments of a block order of which half of the cache holds a window: the rest is
    for batches in the making, and for the beginning of the next window."""
    rows = max(int(cache_bytes / 2 / each), 1)
    if rows >= order.block_rows:
        return f"window_blocks={rows // order.block_rows}"
    return f"window_blocks=4, block_rows={max(rows // 4, 1)}"
