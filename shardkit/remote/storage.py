"""A dataset behind a URL as a :class:`shardkit.storage.base.Storage`: read from the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import ShardMissingError
from shardkit.index.manifest import INDEX_NAME, DatasetInfo, read_info
from shardkit.memory.maps import map_file
from shardkit.remote.cached_files import CachedFiles
from shardkit.remote.cached_split import BlockMap
from shardkit.remote.connection import ask, tell
from shardkit.remote.options import RemoteOptions, default_cache, settings_of
from shardkit.remote.private_folder import make_own
from shardkit.remote.protocol import NO_NUMBERS
from shardkit.remote.urls import Url
from shardkit.storage.base import Files, Turn
from shardkit.system.file_systems import is_remote

TRIES = 100
"""How often a file of the index may go between being fetched and being mapped."""

RETRY_S = 120.0
"""How long a request is tried again after errors of the server or the network."""


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

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

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
        return int(self.ask("capacity")["bytes"])

    def foresee(self, split: str, blocks: Integers, turn: Turn) -> None:
        """Tell the cache server what a loop will need at which step; returns at once."""
        numbers = np.concatenate([np.full(len(blocks), turn.step), blocks])
        self._is_known(turn, self.tell("follow", numbers, split=split, loop=turn.loop))

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        """As :meth:`shardkit.storage.base.Foresees.reached`."""
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


def ask_place(url: Url, cache: Path, said: dict[str, Any]) -> dict[str, Any]:
    """Ask the cache server something of a URL where no dataset lies. Errors as of :func:`ask`."""
    return ask(str(make_own(cache)), {**said, "place": place_of(url, None, RETRY_S, {})})


def place_of(
    url: Url, most_bytes: int | None, retry_s: float, settings: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a message says of a URL: with the environment of this moment, but for these
    settings."""
    settings = settings_of({**os.environ, **settings})
    return {"url": url.text, "settings": settings, "most_bytes": most_bytes, "retry_s": retry_s}
