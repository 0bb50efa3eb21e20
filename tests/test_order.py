"""Which row stands where: bijections, blocks, ranks, samplers. Pure arithmetic."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

import shardkit
from shardkit.errors import UsageError
from shardkit.order import epochs, turns
from shardkit.order.batch_rows import BatchRows
from shardkit.order.batches import BatchPlan
from shardkit.order.epochs import Order, Shuffle
from shardkit.order.permutation import SORTED_ROWS, derive, derive_each, permute, turn, unpermute
from shardkit.reading import mix
from shardkit.sequences import bins, windows

Counts = np.ndarray[Any, np.dtype[np.int64]]

SIZES = st.integers(1, 700)
ALL_SIZES = st.one_of(SIZES, st.integers(SORTED_ROWS - 9, SORTED_ROWS + 9))
KEYS = st.integers(0, 2**64 - 1)
ORDERS = st.builds(
    Order,
    num_rows=SIZES,
    shuffle=st.sampled_from(["full", "block", None]),
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 1000),
    block_rows=st.integers(1, 50),
    window_blocks=st.integers(1, 9),
)


@given(ALL_SIZES, KEYS)
def test_a_permutation_meets_every_number_once(size: int, key: int) -> None:
    out = permute(np.arange(size), size, key)
    assert np.array_equal(np.sort(out), np.arange(size))


@given(st.one_of(ALL_SIZES, st.integers(1, 2**60)), KEYS, st.data())
def test_unpermute_is_the_inverse(size: int, key: int, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, size - 1))
    value = int(permute(np.array([position]), size, key)[0])
    assert 0 <= value < size
    assert unpermute(value, size, key) == position


def chi_square_is_low(counts: Counts, expected: float) -> bool:
    """Whether counts that should be alike differ no more than drawn ones do: the sum is about
    their number, give or take four times its deviation."""
    total = float(((counts - expected) ** 2).sum() / expected)
    return total < counts.size + 4 * (2 * counts.size) ** 0.5


@pytest.mark.parametrize("size", [12, 16, 40])
def test_few_rows_are_shuffled_as_evenly_as_many(size: int) -> None:
    """What stands where, and what after what."""
    num = 32_000
    keys = derive_each(9, np.arange(num)).tolist()
    rows = np.array([permute(np.arange(size), size, key) for key in keys])
    places = np.bincount((rows * size + np.arange(size)).ravel(), minlength=size**2)
    assert chi_square_is_low(places, num / size)
    pairs = np.bincount((rows[:, :-1] * size + rows[:, 1:]).ravel(), minlength=size**2)
    others = np.delete(pairs, np.arange(size) * (size + 1))  # no row follows itself
    assert chi_square_is_low(others, num / size)
    expected = num * (size - 1) / size
    for step in (1, -1):
        follows = int((np.diff(rows) == step).sum())
        assert abs(follows - expected) < 4 * expected**0.5


@pytest.mark.parametrize("size", [SORTED_ROWS, SORTED_ROWS + 1, 30_000])
def test_many_rows_are_shuffled_evenly(size: int) -> None:
    """On both sides of where a sort ends: places by places, and neighbours."""
    num, parts = 60, 64
    rows = np.array([Order(size, "full", 7, epoch).rows(np.arange(size)) for epoch in range(num)])
    cells = rows * parts // size * parts + np.arange(size) * parts // size
    assert chi_square_is_low(np.bincount(cells.ravel()), num * size / parts**2)
    for step in (1, -1):
        assert abs(int((np.diff(rows) == step).sum()) - num) < 4 * num**0.5
    fixed = int((rows == np.arange(size)).sum())
    assert abs(fixed - num) < 4 * num**0.5


@given(st.integers(1, 50), KEYS, st.integers(0, 2**62))
def test_epochs_take_their_turns(size: int, key: int, first: int) -> None:
    assert sorted(turn(first + k, size, key) for k in range(size)) == list(range(size))


def test_what_keys_are_for_is_no_epoch() -> None:
    """Turns of a mix once had the key that rows of epoch 4 had."""
    names = "_BLOCKS", "_ROWS", "_TABLE", "_PART", "_PHASE", "_VARIANT", "_WHICH", "_CUT", "_BINS"
    modules = bins, mix, epochs, turns, windows
    numbers = [value for m in modules for name in names if (value := vars(m).get(name))]
    assert len(numbers) == len(set(numbers)) == len(names) + 1  # two have _BLOCKS
    assert max(numbers) < 0


def test_keys_of_like_numbers_differ() -> None:
    assert len({derive(seed, epoch) for seed in range(50) for epoch in range(50)}) == 2500
    assert derive(1, 2) != derive(2, 1)
    assert derive(2**64 + 1) == derive(1)


@given(ORDERS)
def test_an_epoch_has_each_row_once(order: Order) -> None:
    rows = order.rows(np.arange(len(order)))
    assert np.array_equal(np.sort(rows), np.arange(order.num_rows))


@given(ORDERS, st.data())
def test_any_positions_in_any_order(order: Order, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(0, order.num_rows - 1), max_size=20))
    positions = np.array(some, np.int64)
    assert np.array_equal(order.rows(positions), order.rows(np.arange(len(order)))[positions])


@pytest.mark.parametrize("position", [-1, 10, 2**62])
def test_positions_outside_are_refused(position: int) -> None:
    with pytest.raises(IndexError, match=r"outside 0\.\.9"):
        Order(10).rows(np.array([3, position]))


@pytest.mark.parametrize("shuffle", ["full", "block"])
def test_epochs_and_seeds_differ(shuffle: Shuffle) -> None:
    def rows(seed: int, epoch: int) -> bytes:
        order = Order(300, shuffle, seed, epoch, block_rows=10, window_blocks=4)
        return order.rows(np.arange(300)).tobytes()

    assert len({rows(seed, epoch) for seed in range(5) for epoch in range(5)}) == 25
    assert rows(3, 4) == rows(3, 4)


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 6), KEYS)
def test_a_window_holds_whole_blocks(size: int, block: int, window: int, seed: int) -> None:
    rows = Order(size, "block", seed, 0, block, window).rows(np.arange(size))
    blocks = rows // block
    # Each block is in one window: between its first and last row no more than window blocks lie.
    for number in np.unique(blocks):
        places = np.flatnonzero(blocks == number)
        assert len(np.unique(blocks[places[0] : places[-1] + 1])) <= window


def test_a_billion_rows_cost_nothing() -> None:
    Order(10, "block").rows(np.arange(10))  # what is imported on first use does not count
    tracemalloc.start()
    for shuffle in ("full", "block", None):
        order = Order(10**9, shuffle, 5, 3)
        rows = order.rows(np.arange(712_345_678, 712_345_678 + 256))
        assert len(np.unique(rows)) == 256
        assert rows.min() >= 0 and rows.max() < 10**9
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


FULL = [105, 221, 724, 861, 154, 344, 439, 12]
LARGE = [786186, 625293, 809886, 175373, 720935, 882832, 648886, 959356]
BLOCK = [279, 303, 297, 293, 283, 406, 913, 273]


def test_an_order_is_always_the_same() -> None:
    """Written down: a later shardkit must resume what this one began."""
    positions = np.arange(8)
    assert Order(1000, "full", 1, 2).rows(positions).tolist() == FULL
    assert Order(10**6, "full", 1, 2).rows(positions).tolist() == LARGE
    assert Order(1000, "block", 1, 2, 16, 4).rows(positions).tolist() == BLOCK


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": -1}, "num_rows"),
        ({"num_rows": 2**61}, "num_rows"),
        ({"num_rows": 9, "shuffle": "random"}, "shuffle must be"),
        ({"num_rows": 9, "block_rows": 0}, "block_rows"),
    ],
)
def test_orders_that_make_no_sense(options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Order(**options)


# --- ranks --------------------------------------------------------------------------------

LASTS = st.sampled_from(["drop", "pad", "keep"])
WORLDS = st.tuples(SIZES, st.integers(1, 20), st.integers(1, 8), LASTS)


@given(WORLDS, st.data())
def test_ranks_share_an_epoch(world: tuple[int, int, int, str], data: st.DataObject) -> None:
    size, batch_size, world_size, last = world
    start = data.draw(st.integers(0, size))
    plans = [
        BatchPlan(size, batch_size, rank, world_size, last, start) for rank in range(world_size)
    ]
    number = plans[0].num_global_batches
    assert {plan.num_global_batches for plan in plans} == {number}
    seen: list[int] = []
    padding = 0
    for batch in range(number):
        ranks = [plan.positions(batch) for plan in plans]
        for rank, (positions, valid) in enumerate(ranks):
            assert len(positions) == batch_size or (last == "keep" and batch == number - 1)
            assert all(0 <= position < size for position in positions.tolist())
            assert (len(positions) > 0) == (batch < len(plans[rank]))
            seen += positions[valid].tolist()
            padding += int((~valid).sum())
        sizes = [len(positions) for positions, _ in ranks]
        assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
        assert plans[0].end(batch) == start + len(seen)
    global_batch = batch_size * world_size
    if last == "drop":
        assert seen == list(range(start, start + (size - start) // global_batch * global_batch))
    else:
        assert seen == list(range(start, size))
    assert padding == (-(size - start) % global_batch if last == "pad" else 0)
    assert plans[0].remainder == (0 if last == "drop" else (size - start) % global_batch)


@given(SIZES, st.sampled_from([1, 2, 3, 4, 8]), LASTS)
def test_global_batches_do_not_depend_on_the_world(size: int, world_size: int, last: str) -> None:
    alone = BatchPlan(size, 24, 0, 1, last)
    for batch in range(len(alone)):
        together = [
            BatchPlan(size, 24 // world_size, rank, world_size, last).positions(batch)
            for rank in range(world_size)
        ]
        assert np.array_equal(np.concatenate([p for p, _ in together]), alone.positions(batch)[0])
        assert np.array_equal(np.concatenate([v for _, v in together]), alone.positions(batch)[1])


@given(ORDERS, st.integers(1, 20), st.integers(1, 8), LASTS, st.data())
def test_rows_of_batches_are_those_of_their_positions(
    order: Order, batch_size: int, world_size: int, last: str, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, world_size - 1))
    start = data.draw(st.integers(0, len(order)))
    plan = BatchPlan(len(order), batch_size, rank, world_size, last, start)
    known = BatchRows(order, plan)
    for batch in range(len(plan)):
        assert np.array_equal(known.rows(batch), order.rows(plan.positions(batch)[0]))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ((10, 0), "batch_size"),
        ((10, 1, 2, 2), "rank must be"),
        ((10, 1, 0, 1, "some"), "last must be"),
        ((10, 1, 0, 1, "drop", 11), "position 11"),
    ],
)
def test_plans_that_make_no_sense(plan: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BatchPlan(*plan)


# --- samplers for torch's own DataLoader --------------------------------------------------


@pytest.mark.parametrize("shuffle", ["full", "block", None])
def test_samplers_feed_torchs_loader(shuffle: Shuffle) -> None:
    data = list(range(103))
    by_batch = [
        shardkit.BatchSampler(103, 5, shuffle=shuffle, rank=rank, world_size=2, last="pad")
        for rank in range(2)
    ]
    batches = [[b.tolist() for b in DataLoader(data, batch_sampler=s)] for s in by_batch]
    assert [len(b) for b in batches] == [len(s) for s in by_batch] == [11, 11]
    assert {row for rank in batches for batch in rank for row in batch} == set(data)
    one_by_one = shardkit.Sampler(data, shuffle=shuffle)
    rows = [int(row) for row in DataLoader(data, sampler=one_by_one, batch_size=None)]
    assert one_by_one.epoch == 1
    assert sorted(rows) == data
    assert rows[:10] == batches[0][0] + batches[1][0]
    if shuffle:
        assert list(one_by_one) != rows
        one_by_one.set_epoch(0)
        assert list(one_by_one) == rows


def test_samplers_keep_a_short_last_batch() -> None:
    def ranks(kind: Any, *args: Any) -> list[list[Any]]:
        return [list(kind(*args, rank=r, world_size=3, drop_last=False)) for r in range(3)]

    assert ranks(shardkit.BatchSampler, 16, 2) == [
        [[0, 1], [6, 7], [12, 13]], [[2, 3], [8, 9], [14]], [[4, 5], [10, 11], [15]]
    ]  # fmt: skip
    assert ranks(shardkit.BatchSampler, 13, 2)[2] == [[4, 5], [10, 11]]
    assert ranks(shardkit.Sampler, 7) == [[0, 3, 6], [1, 4], [2, 5]]
    assert list(shardkit.BatchSampler(5, 2, drop_last=True)) == [[0, 1], [2, 3]]


def test_a_sampler_is_what_lightning_and_ray_leave_alone() -> None:
    sampler = shardkit.Sampler(range(10), shuffle=True, rank=1, world_size=2)
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.num_replicas, sampler.rank, len(sampler), sampler.drop_last) == (2, 1, 5, True)
    by_batch = shardkit.BatchSampler(10, 2, shuffle=True)
    by_batch.sampler.set_epoch(3)  # as Lightning says its epoch
    assert by_batch.epoch == 3
    third = list(by_batch)
    assert by_batch.epoch == 4
    by_batch.set_epoch(3)
    assert list(by_batch) == third


@pytest.mark.parametrize("make", [shardkit.Sampler, lambda rows: shardkit.BatchSampler(rows, 2)])
def test_an_epoch_that_is_told_too_late_is_refused(make: Any) -> None:
    """A DataLoader with workers draws ahead when it is asked for an iterator."""
    sampler = make(10)
    drawing = iter(sampler)
    next(drawing)
    sampler.set_epoch(0)
    next(drawing)
    sampler.set_epoch(2)
    with pytest.raises(UsageError, match=r"set_epoch\(2\) came after rows of epoch 0 were drawn"):
        list(drawing)
    first, second = iter(sampler), iter(sampler)
    assert next(first) == next(second)  # of two epochs at once, as nothing was told
    assert len([*first, *second]) == 2 * len(sampler) - 2
    assert sampler.epoch == 4
