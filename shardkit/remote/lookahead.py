"""Blocks are fetched before they are asked for: what is needed next first.

The order of a loop is arithmetic, so its future is known. Who knows it drops the block that is
needed last, which costs the fewest fetches that any cache of that size could have (L. A. Belady, A
study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5(2), 1966).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.remote.blocks import NEVER
from shardkit.remote.cached_split import CachedSplit
from shardkit.remote.dataset_cache import DatasetCache
from shardkit.system.blocks import BLOCK_BYTES

GROUP_BLOCKS = 4
"""Of 1 MB: requests of 256 KiB cost twice the time of this process that these do, and larger ones
let a loop wait for what it needs last."""

AHEAD_BLOCKS = 512
"""Blocks on their way before anybody asked for them: 128 MB. In requests of 4 MB, half of that left
lines of 5 Gbit/s unused when packets were lost."""

REST = 8
"""What few bytes are: this part of a split, and no more."""

MOST_RESTING = 8
"""Loops that have ended and are remembered."""

RESTING = 1 << 40
"""Steps until a loop that has ended may need something: after all that others need."""


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


@dataclass(eq=False)
class AnnouncedLoop:
    """A loop that tells what it will read of a split, and how far that has been asked for.

    Attributes:
        owner: the connection that told. asked: uses before this number have been asked for.
        distance: steps from where the loop is to the last that was asked for.
        reach: uses that it may ask for at once: first those of one step, so that a slow line brings
            its first batch before all others, and twice as many whenever these have come.
        coming: what was asked for last.
    """

    owner: int
    dataset: DatasetCache
    split: CachedSplit
    plan: NextUses = field(init=False)
    asked: int = 0
    distance: int = 0
    reach: int = 0
    coming: list[asyncio.Future[None]] = field(default_factory=list)
    _rest_from: int = 0  # so many blocks must be there before little can be missing

    def __post_init__(self) -> None:
        self.plan = NextUses(len(self.split.blocks))

    def next_uses(self, count: int) -> Integers:
        """Return the blocks of at most so many uses that were not asked for yet, each once; at
        first of all that the loop's first step has."""
        count = min(count, self.reach) if self.reach else AHEAD_BLOCKS
        begin, steps, blocks = self.plan.uses(self.asked, count)
        if not self.reach:
            blocks = blocks[: steps.searchsorted(steps[0], "right")]
        self.asked = begin + len(blocks)
        self.distance = int(steps[len(blocks) - 1]) - self.plan.step
        self.reach = min(2 * max(self.reach, len(blocks)), AHEAD_BLOCKS)
        return _each_once(np.sort(blocks))

    @property
    def is_waiting(self) -> bool:
        """Return True while it asks for no more, because what it asked for has not come."""
        is_growing = self.reach < AHEAD_BLOCKS
        return is_growing and not all(future.done() for future in self.coming)

    def with_neighbours(self, numbers: Integers) -> Integers:
        """And those beside them that will be needed, too: fewer and larger requests."""
        groups = _each_once(numbers // GROUP_BLOCKS)
        found: Integers = (groups[:, None] * GROUP_BLOCKS + np.arange(GROUP_BLOCKS)).ravel()
        found = found[found < len(self.split.blocks)]
        wanted: Integers = found[self.plan.distances(found) != NEVER]
        return wanted

    def rest(self) -> Integers:
        """The blocks of which nobody needed a byte, if they hold few: the end of a tar, the small
        files of npy. When all are there, nobody has to look at each."""
        missing: Integers = np.flatnonzero(self.split.stamps[:-1] == 0)
        blocks = self.split.blocks
        too_many = int(blocks.bytes_of(missing).sum()) - int(blocks.sizes.sum()) // REST
        # Until as many came as that at least takes, nobody need look at all that is missing.
        self._rest_from = self.split.num_there + max(-(-too_many // BLOCK_BYTES), 1)
        return missing[:0] if too_many > 0 else missing

    @property
    def may_have_rest(self) -> bool:
        """Whether :meth:`rest` may have others than when it was last asked for: a loop that is told
        piece by piece has a rest only when it knows of all."""
        return self.split.num_there >= self._rest_from

    @property
    def num_ahead(self) -> int:
        """Uses from where the loop is to the last that was asked for."""
        return self.asked - self.plan.uses(0, 0)[0]

    @property
    def has_more(self) -> bool:
        return bool(len(self.plan.uses(self.asked, 1)[1]))


class Lookahead:
    """All loops, by the names that they gave themselves, and the splits that they read: a loop over
    a mix reads several."""

    def __init__(self) -> None:
        self.loops: dict[tuple[str, CachedSplit], AnnouncedLoop] = {}

    def next_steps(self, split: CachedSplit, numbers: Integers) -> Integers:
        """Return in how many steps each block is needed next by any loop; NEVER if none told."""
        found = np.full(len(numbers), NEVER)
        for loop in self.loops.values():
            if loop.split is split:
                distances = loop.plan.distances(numbers)
                if loop.plan.is_resting:
                    distances[distances != NEVER] += RESTING
                np.minimum(found, distances, out=found)
        return found

    def nearest(self) -> AnnouncedLoop | None:
        """The loop that has asked for the least ahead of itself."""
        running = [loop for loop in self.loops.values() if loop.has_more]
        return min(running, key=lambda loop: (loop.plan.is_resting, loop.distance), default=None)

    def before(self, split: CachedSplit, numbers: Integers) -> list[asyncio.Future[None]]:
        """Return what must come before these blocks are asked for: the first batch of a loop,
        which other workers, that make its next batches, would slow down."""
        found: list[asyncio.Future[None]] = []
        for loop in self.loops.values():
            is_first = loop.split is split and loop.distance == 0 and loop.is_waiting
            if is_first and loop.plan.distances(numbers).any():
                found += loop.coming
        return found

    def move(self, name: str, step: int, is_resting: bool) -> None:
        """A loop has reached this step in all that it reads."""
        for key, loop in [one for one in self.loops.items() if one[0][0] == name]:
            loop.plan.move(step)
            loop.plan.is_resting = is_resting
            if is_resting and loop.plan.is_empty:
                del self.loops[key]
            elif is_resting:
                self._rest(key)

    def _rest(self, key: tuple[str, CachedSplit]) -> None:
        """A loop has ended, and may go on later. The last few are remembered: one whose loader is
        gone does not say so, and each takes 16 bytes a block."""
        self.loops[key] = self.loops.pop(key)
        resting = [name for name, loop in self.loops.items() if loop.plan.is_resting]
        for old in resting[:-MOST_RESTING]:
            del self.loops[old]

    def forget(self, owner: int) -> None:
        """A connection has ended."""
        for name in [name for name, loop in self.loops.items() if loop.owner == owner]:
            del self.loops[name]


def _each_once(ascending: Integers) -> Integers:
    """As :func:`numpy.unique`, which first imports what takes longer than all blocks of a batch."""
    is_other = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=is_other[1:])
    found: Integers = ascending[is_other]
    return found
