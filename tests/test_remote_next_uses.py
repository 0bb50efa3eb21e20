"""What is needed next, as a cache is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardkit.remote.cached_split import NEVER, BlockMap
from shardkit.remote.lookahead import MOST_RESTING, AnnouncedLoop, Lookahead, NextUses
from shardkit.system.file_io import BLOCK_BYTES

NUM_BLOCKS = 5


class Split:
    """Of so many blocks, of which nothing else is looked at."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = range(num_blocks)


chunks = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, NUM_BLOCKS - 1)), max_size=20),
        st.integers(0, 4),
    ),
    max_size=12,
)


@given(chunks)
def test_next_uses_are_those_of_a_search(told: list[tuple[list[tuple[int, int]], int]]) -> None:
    plan, known, step, last = NextUses(NUM_BLOCKS), [], 0, 0
    for uses, moved in told:
        rows = []
        for more, block in uses:
            last += more
            rows.append((max(last, step), block))
        last = max([last, *(at for at, _ in rows)])
        known += rows
        plan.tell(*np.array(rows, np.int64).reshape(-1, 2).T)
        step += moved
        plan.move(step)
        known = [(at, block) for at, block in known if at >= step]
        expected = [
            min((at - step for at, one in known if one == block), default=NEVER)
            for block in range(NUM_BLOCKS)
        ]
        assert plan.distances(np.arange(NUM_BLOCKS)).tolist() == expected
        _, steps, blocks = plan.uses(0, 1 << 20)
        assert list(zip(steps.tolist(), blocks.tolist(), strict=True)) == known


def test_of_loops_that_have_ended_the_last_few_are_remembered() -> None:
    """A process may make a loader for each evaluation, and none says that it is gone."""
    split: Any = Split(8)
    ahead, uses = Lookahead(), np.arange(8, dtype=np.int64)
    for number in range(3 * MOST_RESTING):
        loop = ahead.loops[f"{number}", split] = AnnouncedLoop(1, split)
        loop.plan.tell(uses, uses)
        if number:  # the first goes on and on
            ahead.move(f"{number}", 0, True)
    last = range(2 * MOST_RESTING, 3 * MOST_RESTING)
    assert [name for name, _ in ahead.loops] == ["0", *map(str, last)]


def test_a_loop_over_two_splits_has_a_plan_for_each() -> None:
    """As one over a mix: blocks of one would be taken for the other's."""
    splits: list[Any] = [Split(4), Split(4)]
    ahead = Lookahead()
    for number, split in enumerate(splits):
        loop = ahead.loops["loop", split] = AnnouncedLoop(0, split)
        loop.plan.tell(np.array([2, 5]), np.array([number, 3]))
    ahead.move("loop", 2, False)
    found = [ahead.next_steps(split, np.arange(4)).tolist() for split in splits]
    assert found == [[0, NEVER, NEVER, 3], [NEVER, 0, NEVER, 3]]


def test_the_rest_comes_once_little_is_missing() -> None:
    split: Any = SimpleNamespace(
        blocks=BlockMap(["a"], [20 * BLOCK_BYTES]), stamps=np.zeros(21, np.uint32), num_there=0
    )
    loop = AnnouncedLoop(1, split)
    found = []
    for count in (6, 18, 20):
        split.stamps[:count], split.num_there = 1, count
        found.append(loop.rest().tolist())
    assert found == [[], [18, 19], []]
