"""Files that are open now: each opened on first use, the oldest closed when there are many.

And which of their bytes are worth announcing to the kernel before they are read.
"""

from __future__ import annotations

import mmap
import resource
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from shardkit.arrays import Integers
from shardkit.system.paths import show_path

T = TypeVar("T")
Check = Callable[[], object]


class OpenLimit:
    """How many files a process keeps open, whosever they are: a mix has many datasets.

    Args:
        most: says how many, each time one more is opened.
    """

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._oldest_first: deque[tuple[weakref.ref[Opened[Any]], int]] = deque()

    def add(self, owner: Opened[Any], number: int) -> None:
        self._oldest_first.append((weakref.ref(owner), number))

    def make_room(self) -> None:
        """Close the oldest until one more may be opened."""
        most = self._most()
        while len(self._oldest_first) >= most:
            try:
                reference, number = self._oldest_first.popleft()
            except IndexError:  # another thread was faster
                return
            if (owner := reference()) is not None:
                owner.now.pop(number, None)


class Opened(Generic[T]):
    """Numbered files of one folder. Threads may share it: two that open one file at once both do,
    and one of the two is dropped.

    Args:
        open_file: opens a path of a known size; what it returns is closed when nobody refers to it.
        check: called after each is opened: raises if they are not the files that they were.

    Attributes:
        sizes: (F,) int64 bytes of each. now: number -> what is open.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        sizes: Sequence[int],
        open_file: Callable[[Path, int], T],
        limit: OpenLimit,
        check: Check = int,
    ) -> None:
        self.sizes = np.array(sizes, np.int64)
        self.now: dict[int, T] = {}
        self._folder = folder
        self._names = names
        self._open_file = open_file
        self._limit = limit
        self._check = check

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> T:
        found = self.now.get(number)
        if found is None:
            self._limit.make_room()
            path = self._folder / self._names[number]
            try:
                found = self._open_file(path, int(self.sizes[number]))
            finally:
                self._check()
            self.now[number] = found
            self._limit.add(self, number)
        return found

    def held(self, numbers: Iterable[int]) -> dict[int, T]:
        """Return these files. One closed meanwhile stays open until this is dropped."""
        return {number: self[number] for number in dict.fromkeys(numbers)}

    def show(self, number: int) -> str:
        return show_path(self._folder / self._names[number])


class Warmth:
    """A judge of whether to announce values: while page faults, or announced values, went to disk.

    Announcing a 110 KB value costs 2 us, copying it 4 us, so a warm epoch should not pay for it.
    """

    BATCHES = 64
    """Batches announced after one that went to the disk, and at first; then one is not."""

    ASKED_EVERY = 8
    """Batches, while they are not announced: it takes 1 us, and a batch of tokens 27."""

    def __init__(self) -> None:
        self._seen = (0, 0)
        self._left = self.BATCHES
        self._quiet = 0

    def is_cold(self) -> bool:
        """Return True if announcing pays; it is asked once a batch."""
        if self._quiet > 0:
            self._quiet -= 1
            return False
        usage = resource.getrusage(resource.RUSAGE_SELF)
        seen = (usage.ru_majflt, usage.ru_inblock)
        if seen != self._seen:
            self._seen, self._left = seen, self.BATCHES
        self._left = max(self._left - 1, 0)
        self._quiet = 0 if self._left else self.ASKED_EVERY - 1
        return self._left > 0


def merged(
    numbers: Integers, starts: Integers, sizes: Integers, most_gap: int = mmap.PAGESIZE
) -> tuple[Integers, Integers, Integers]:
    """Return one range for those that follow one another in a file with at most a gap between."""
    ends = starts + sizes
    gaps = starts[1:] - ends[:-1]
    is_first = np.ones(len(numbers), np.bool_)
    is_first[1:] = (numbers[1:] != numbers[:-1]) | (gaps < 0) | (gaps > most_gap)
    firsts = np.flatnonzero(is_first)
    lasts = np.append(firsts, len(numbers))[1:] - 1
    return numbers[firsts], starts[firsts], ends[lasts] - starts[firsts]


def worth_announcing(
    numbers: Integers, starts: Integers, sizes: Integers, at_least: int
) -> tuple[Integers, Integers, Integers]:
    """Return the :func:`merged` ranges of those that have so many bytes, and any at all."""
    large = sizes >= max(at_least, 1)
    return merged(numbers[large], starts[large], sizes[large])
