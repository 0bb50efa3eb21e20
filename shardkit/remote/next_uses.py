"""What loops will read, as far as they have told: the order is arithmetic, so the future is known.

Who knows it drops the block that is needed last, which costs the fewest fetches that any cache of
that size could have (L. A. Belady, A study of replacement algorithms for a virtual-storage
computer, IBM Systems Journal 5(2), 1966).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shardkit.arrays import Integers

NEVER = np.iinfo(np.int64).max
"""The step at which a block is needed that no loop has told of."""


class NextUses:
    """The blocks of one split that one loop reads, step by step.

    Attributes:
        step: the one that the loop is at. is_resting: it has ended, and may go on later.
    """

    def __init__(self, num_blocks: int) -> None:
        self.step = 0
        self.is_resting = False
        self._steps = _Queue()
        self._blocks = _Queue()
        self._following = _Queue()  # number of the next use of the same block
        self._next = np.full(num_blocks, NEVER)  # of each block: number of its next use
        self._last = np.full(num_blocks, -1, np.int64)

    @property
    def is_empty(self) -> bool:
        return not len(self._steps.values())

    def tell(self, steps: Integers, blocks: Integers) -> None:
        """Go on with these uses: (K,) int64 each, steps ascending, none before those told."""
        numbers = self._blocks.end + np.arange(len(blocks), dtype=np.int64)
        self._steps.put(steps)
        self._blocks.put(blocks)
        self._following.put(np.full(len(blocks), NEVER))
        by_block = np.argsort(blocks, kind="stable")
        ordered, uses = blocks[by_block], numbers[by_block]
        is_first = np.ones(len(blocks), bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        is_later = ~is_first
        self._following.set(uses[:-1][is_later[1:]], uses[1:][is_later[1:]])
        firsts, before = uses[is_first], self._last[ordered[is_first]]
        is_known = before >= self._blocks.begin
        self._following.set(before[is_known], firsts[is_known])
        new = ordered[is_first][~is_known]
        self._next[new] = firsts[~is_known]
        self._last[ordered] = uses  # of equal ones the last stays

    def move(self, step: int) -> None:
        """The loop has reached this step: what was needed before is needed no more."""
        self.step = max(self.step, step)
        count = int(self._steps.values().searchsorted(self.step))
        if count:
            self._next[self._blocks.values()[:count]] = self._following.values()[:count]
            for queue in (self._steps, self._blocks, self._following):
                queue.take(count)

    def distances(self, blocks: Integers) -> Integers:
        """In how many steps each is needed next; :data:`NEVER` where that is not known."""
        uses = self._next[blocks]
        is_known = uses != NEVER
        found = np.full(len(blocks), NEVER)
        found[is_known] = self._steps.get(uses[is_known]) - self.step
        return found

    def uses(self, first: int, count: int) -> tuple[int, Integers, Integers]:
        """(number of the first, steps, blocks) of so many uses from number ``first`` on, or from
        the first that is left."""
        begin = max(first, self._blocks.begin)
        part = slice(begin - self._blocks.begin, begin - self._blocks.begin + count)
        return begin, self._steps.values()[part], self._blocks.values()[part]


class _Queue:
    """(N,) int64 numbers, put at the end and taken from the front; each keeps its number."""

    def __init__(self) -> None:
        self._data: np.ndarray[Any, np.dtype[np.int64]] = np.empty(64, np.int64)
        self._first = 0  # where in the data the queue begins
        self.begin = 0
        self.end = 0

    def values(self) -> Integers:
        return self._data[self._first : self._first + self.end - self.begin]

    def get(self, numbers: Integers) -> Integers:
        return self._data[numbers - self.begin + self._first]

    def set(self, numbers: Integers, values: Integers) -> None:
        self._data[numbers - self.begin + self._first] = values

    def put(self, values: Integers) -> None:
        held = self.end - self.begin
        if self._first + held + len(values) > len(self._data):
            data = np.empty(max(2 * (held + len(values)), 64), np.int64)
            data[:held] = self.values()
            self._data, self._first = data, 0
        self._data[self._first + held : self._first + held + len(values)] = values
        self.end += len(values)

    def take(self, count: int) -> None:
        self._first += count
        self.begin += count
