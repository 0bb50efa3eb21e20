"""The plan as pure functions: cutting, taking, drawing, and the listing on disk."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Run
from shardkit.packing import plan
from shardkit.packing.listing import decode_runs, decode_shard, encode_shard, first_change
from shardkit.packing.plan import ScatteredEntries, boundaries, cut, draw, take

NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)
ENTRIES = st.lists(st.tuples(NAMES, st.integers(0, 50), st.integers(0, 2**60)), max_size=12)


@pytest.mark.parametrize(
    ("entries", "fraction", "cut_off"),
    [(10, 0.0, 0), (0, 0.0, 0), (10, 0.3, 3), (10, 0.001, 1), (10, 0.999, 9), (2, 0.5, 1)],
)
def test_neither_side_of_a_cut_is_empty(entries: int, fraction: float, cut_off: int) -> None:
    assert plan.num_val(entries, fraction) == cut_off


@pytest.mark.parametrize("entries", [0, 1])
def test_one_entry_cannot_be_cut_in_two(entries: int) -> None:
    with pytest.raises(CorpusError, match=f"it has {entries} of the at least 2 inputs needed"):
        plan.num_val(entries, 0.5)


@st.composite
def runs(draw_: st.DrawFn) -> list[Run]:
    made = []
    for entries in draw_(st.lists(ENTRIES.filter(bool), max_size=6)):
        names, sizes, stamps = (list(column) for column in zip(*entries, strict=True))
        base = draw_(st.sampled_from(["", "a", "a/b", "n\udcff\n"]))
        label = draw_(st.none() | st.integers(0, 3))
        made.append(Run("train", base, label, names, [b"k" + n for n in names], sizes, stamps))
    return made


def flat(found: list[Run]) -> list[tuple[object, ...]]:
    return [
        (run.split, run.base, run.label, *entry)
        for run in found
        for entry in zip(run.locators, run.keys, run.sizes, run.stamps, strict=True)
    ]


@given(runs(), st.integers(1, 120))
def test_cut_keeps_every_entry_in_order_and_fills_shards(listed: list[Run], limit: int) -> None:
    shards = list(cut(listed, limit))
    assert flat([run for shard in shards for run in shard]) == flat(listed)
    sizes = [[size for run in shard for size in run.sizes] for shard in shards]
    for own, after in zip(sizes, [*sizes[1:], None], strict=False):
        assert own and (sum(own) <= limit or len(own) == 1)
        assert after is None or sum(own) + after[0] > limit, "a shard was cut too early"


@given(runs(), st.integers(1, 120))
def test_boundaries_are_where_cut_cuts(listed: list[Run], limit: int) -> None:
    sizes = np.array([size for run in listed for size in run.sizes], np.int64)
    lengths = [sum(map(len, shard)) for shard in cut(listed, limit)]
    assert boundaries(sizes, limit) == [0, *np.cumsum(lengths).tolist()]


@given(runs(), st.integers(1, 40), st.integers(0, 80), st.data())
def test_shards_that_grow(listed: list[Run], least: int, more: int, data: st.DataObject) -> None:
    """The least at first, then a part of what came before; the same however runs are cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "GROWTH", 4)
        most = least + more
        shards = list(cut(listed, most, least))
        assert flat([run for shard in shards for run in shard]) == flat(listed)
        sizes = [[size for run in shard for size in run.sizes] for shard in shards]
        before = 0
        for own, after in zip(sizes, [*sizes[1:], None], strict=False):
            goal = min(max(before // 4, least), most)
            assert own and (sum(own) <= most or len(own) == 1)
            assert sum(own[:-1]) < goal or goal == most, "it was full before its last entry"
            assert after is None or sum(own) >= goal or sum(own) + after[0] > most
            before += sum(own)
        pieces = []
        for run in listed:
            at = data.draw(st.integers(0, len(run)))
            pieces += [piece for piece in (run.slice(0, at), run.slice(at, len(run))) if len(piece)]
        again = list(cut(pieces, most, least))
        assert [flat(shard) for shard in again] == [flat(shard) for shard in shards]
        numbers = np.array([size for own in sizes for size in own], np.int64)
        lengths = [len(own) for own in sizes]
        assert boundaries(numbers, most, least) == [0, *np.cumsum(lengths).tolist()]


def test_by_default_shards_of_much_are_large() -> None:
    """ImageNet: 1.28 million files of 110 kB."""
    cuts = boundaries(np.full(1_281_167, 110_000, np.int64), 256_000_000, 4_000_000)
    lengths = np.diff(cuts) * 110_000
    assert 600 < len(lengths) < 800 and lengths.max() <= 256_000_000
    assert lengths[:-1].min() >= 4_000_000 and lengths[300:-1].min() > 250_000_000


@given(runs().filter(bool), st.integers(1, 120), st.randoms(use_true_random=False))
def test_scattered_entries_come_in_the_order_asked(
    listed: list[Run], limit: int, random: Random
) -> None:
    with TemporaryDirectory() as folder:
        entries = ScatteredEntries(listed, Path(folder) / "scatter")
        everything = flat(listed)
        order = random.sample(range(len(everything)), random.randint(1, len(everything)))
        found = []
        for shard, positions in entries.shards("train", np.array(order), limit):
            own = flat(shard)
            found += own if positions is None else [own[i] for i in positions.tolist()]
        assert found == [everything[i] for i in order]
        assert sorted(entries.order(3).tolist()) == list(range(len(everything)))
        assert entries.choose(len(everything) // 2, 3).sum() == len(everything) // 2
        entries.close()


def test_cut_bounds_the_entries_of_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SHARD_ENTRIES", 10)
    empty = Run("train", "", None, [b"x"] * 34, [b"x"] * 34, [0] * 34, [0] * 34)
    found = [sum(map(len, shard)) for shard in cut([empty.slice(0, 7), empty.slice(7, 34)], 100)]
    assert found == [10, 10, 10, 4]


@given(runs(), st.none() | st.integers(1, 30))
def test_take(listed: list[Run], limit: int | None) -> None:
    assert flat(list(take(listed, limit))) == flat(listed)[:limit]


@given(runs())
def test_listing_round_trip(listed: list[Run]) -> None:
    assert list(decode_runs(encode_shard(listed))) == listed
    assert decode_shard(encode_shard(listed)) == (listed, None)
    order = np.arange(5)[::-1]
    assert decode_shard(encode_shard(listed, order))[1].tolist() == order.tolist()
    assert list(decode_runs(encode_shard(listed, order) + encode_shard(listed))) == listed * 2
    assert first_change(listed, listed) is None


@given(runs().filter(bool), st.data())
def test_a_listing_cut_short_gives_its_whole_runs(listed: list[Run], data: st.DataObject) -> None:
    whole = encode_shard(listed)
    size = data.draw(st.integers(0, len(whole) - 1))
    found = list(decode_runs(whole[:size]))
    assert found == listed[: len(found)] and len(found) < len(listed)


@given(runs().filter(bool), st.data())
def test_first_change_names_the_entry(listed: list[Run], data: st.DataObject) -> None:
    changed = list(decode_runs(encode_shard(listed)))
    run = data.draw(st.sampled_from(changed))
    at = data.draw(st.integers(0, len(run) - 1))
    run.sizes[at] += 1
    said = first_change(listed, changed)
    assert said is not None and f"({run.sizes[at] - 1} bytes then, {run.sizes[at]} now)" in said


def test_draws_are_the_same_for_ever() -> None:
    keys = np.array([1, 2**63], np.uint64)
    found = draw(keys, seed=7, purpose="shuffle")
    assert found.dtype == np.uint64
    assert [hex(n) for n in found.tolist()] == GOLDEN_DRAWS
    assert (draw(keys, 7, "val") != found).all()
    assert (draw(keys, 8, "shuffle") != found).all()


GOLDEN_DRAWS = ["0x7cb930cabcf59d98", "0x558db29b0c84244c"]


def test_sizes_people_type(tmp_path: Path) -> None:
    from shardkit.errors import UsageError
    from shardkit.system.byte_sizes import parse_size

    for text, size in {
        "256MB": 256_000_000,
        "4MiB": 4 << 20,
        "1g": 10**9,
        "17": 17,
        "1.5k": 1500,
    }.items():
        assert parse_size(text) == size
    for bad in ("", "MB", "-1", "0", "1XB", "1e3", "0.5", "9" * 400):
        with pytest.raises(UsageError):
            parse_size(bad)
