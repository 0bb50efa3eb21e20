"""Blocks are fetched before they are asked for: what is needed next first.

The order of a loop is arithmetic, so its future is known. Who knows it drops the block that is
needed last, which costs the fewest fetches that any cache of that size could have (L. A. Belady, A
study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5(2), 1966).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from shardkit.arrays import Integers
from shardkit.remote.cached_split import NEVER, CachedSplit
from shardkit.remote.dataset_cache import DatasetSplit
from shardkit.system.file_io import BLOCK_BYTES

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
        step: the one that the loop is at. is_resting: it has ended, and may resume.
    """

    def __init__(self, num_blocks: int) -> None:
        self.step = 0
        self.is_resting = False
        self._begin = 0  # number of the first use that is left
        # Rows: step, block, number of the next use of the same block. The columns in use lie in
        # [first, end).
        self._data = np.empty((3, 64), np.int64)
        self._first = self._end = 0
        self._next = np.full(num_blocks, NEVER)  # of each block: number of its next use
        self._last = np.full(num_blocks, -1, np.int64)

    @property
    def is_empty(self) -> bool:
        return self._first == self._end

    def tell(self, steps: Integers, blocks: Integers) -> None:
        """Add uses: (K,) int64 each, steps ascending, none before those told."""
        held, count = self._end - self._first, len(blocks)
        if self._end + count > self._data.shape[1]:
            data = np.empty((3, max(2 * (held + count), 64)), np.int64)
            data[:, :held] = self._data[:, self._first : self._end]
            self._data, self._first, self._end = data, 0, held
        numbers = self._begin + held + np.arange(count, dtype=np.int64)
        new = self._data[:, self._end : self._end + count]
        new[0], new[1], new[2] = steps, blocks, NEVER
        self._end += count
        by_block = np.argsort(blocks, kind="stable")
        ordered, uses = blocks[by_block], numbers[by_block]
        is_first = np.ones(count, bool)
        is_first[1:] = ordered[1:] != ordered[:-1]
        is_later = ~is_first
        self._follow(uses[:-1][is_later[1:]], uses[1:][is_later[1:]])
        firsts, before = uses[is_first], self._last[ordered[is_first]]
        is_known = before >= self._begin
        self._follow(before[is_known], firsts[is_known])
        self._next[ordered[is_first][~is_known]] = firsts[~is_known]
        self._last[ordered] = uses  # of equal ones the last stays

    def _follow(self, uses: Integers, following: Integers) -> None:
        self._data[2, uses - self._begin + self._first] = following

    def move(self, step: int) -> None:
        """Note that the loop has reached this step: uses before it are over."""
        self.step = max(self.step, step)
        left = self._data[:, self._first : self._end]
        count = int(left[0].searchsorted(self.step))
        self._next[left[1, :count]] = left[2, :count]
        self._first += count
        self._begin += count

    def distances(self, blocks: Integers) -> Integers:
        """Return in how many steps each is needed next; :data:`NEVER` if that is not known."""
        uses = self._next[blocks]
        is_known = uses != NEVER
        found = np.full(len(blocks), NEVER)
        columns = uses[is_known] - self._begin + self._first
        found[is_known] = self._data[0, columns] - self.step
        return found

    def uses(self, first: int, count: int) -> tuple[int, Integers, Integers]:
        """Return (number of the first, steps, blocks) of so many uses from number ``first`` on, or
        from the first that is left."""
        begin = max(first, self._begin)
        at = self._first + begin - self._begin
        stop = min(at + count, self._end)
        return begin, self._data[0, at:stop], self._data[1, at:stop]


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
    split: DatasetSplit
    plan: NextUses = field(init=False)
    asked: int = 0
    distance: int = 0
    reach: int = 0
    coming: list[asyncio.Task[None]] = field(default_factory=list)

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
        return np.unique(blocks)

    @property
    def is_waiting(self) -> bool:
        """Return True while it asks for no more, because what it asked for has not come."""
        is_growing = self.reach < AHEAD_BLOCKS
        return is_growing and not all(task.done() for task in self.coming)

    def with_neighbours(self, numbers: Integers) -> Integers:
        """Add their neighbours that will be needed, too: fewer and larger requests."""
        groups = np.unique(numbers // GROUP_BLOCKS)
        found: Integers = (groups[:, None] * GROUP_BLOCKS + np.arange(GROUP_BLOCKS)).ravel()
        found = found[found < len(self.split.blocks)]
        wanted: Integers = found[self.plan.distances(found) != NEVER]
        return wanted

    def rest(self) -> Integers:
        """Return the blocks that are missing, if they hold few bytes, which nobody needs: the end
        of a tar, the small files of npy. When all are there, nobody has to look at each."""
        blocks, num_there = self.split.blocks, self.split.num_there
        few = int(blocks.sizes.sum()) // REST
        at_least = (len(blocks) - num_there - len(blocks.names)) * BLOCK_BYTES
        missing: Integers = np.empty(0, np.int64)
        if at_least <= few:  # else nobody need look at each
            missing = np.flatnonzero(self.split.stamps[:-1] == 0)
        return missing if int(blocks.bytes_of(missing).sum()) <= few else missing[:0]

    @property
    def num_ahead(self) -> int:
        """Return the uses from where the loop is to the last that was asked for."""
        return self.asked - self.plan.uses(0, 0)[0]


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
        """Return the loop that has asked for the least ahead of itself."""
        running = [loop for loop in self.loops.values() if len(loop.plan.uses(loop.asked, 1)[1])]
        return min(running, key=lambda loop: (loop.plan.is_resting, loop.distance), default=None)

    def move(self, name: str, step: int, is_resting: bool) -> None:
        """Note that a loop has reached this step in all that it reads, or has ended and may resume.

        The last few that ended are remembered: one whose loader is gone does not say so, and each
        takes 16 bytes a block.
        """
        for key, loop in [one for one in self.loops.items() if one[0][0] == name]:
            loop.plan.move(step)
            loop.plan.is_resting = is_resting
            if is_resting:
                del self.loops[key]
                if not loop.plan.is_empty:
                    self.loops[key] = loop  # as the last
        resting = [key for key, loop in self.loops.items() if loop.plan.is_resting]
        for key in resting[:-MOST_RESTING]:
            del self.loops[key]

    def forget(self, owner: int) -> None:
        """Note that a connection has ended."""
        for name in [name for name, loop in self.loops.items() if loop.owner == owner]:
            del self.loops[name]
