"""What is needed next, as a cache is told of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardkit.remote.ahead import MOST_RESTING, Ahead, Follower
from shardkit.remote.next_uses import NEVER, NextUses

NUM_BLOCKS = 5

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
    split: Any = SimpleNamespace(blocks=range(8))
    ahead, uses = Ahead(), np.arange(8, dtype=np.int64)
    for number in range(3 * MOST_RESTING):
        loop = ahead.loops[f"{number}"] = Follower(1, split, split)
        loop.plan.tell(uses, uses)
        if number:  # the first goes on and on
            loop.plan.is_resting = True
            ahead.rest(f"{number}")
    last = range(2 * MOST_RESTING, 3 * MOST_RESTING)
    assert list(ahead.loops) == ["0", *map(str, last)]
