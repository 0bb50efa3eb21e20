"""Rows gathered and pictures mirrored, by the compiled module and by Python, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.images import raw
from shardkit.images.raw import flip_some
from shardkit.memory import gather

pytestmark = pytest.mark.usefixtures("_gathering")

REFUSED = "a row is outside its memory, or out has not their size"


@st.composite
def places(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, int, int]]]:
    """Some memory, and ranges in it: empty, overlapping, repeated, in any order."""
    memory = draw(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
    ranges = []
    for _ in range(draw(st.integers(0, 40))):
        which = draw(st.integers(0, len(memory) - 1))
        start = draw(st.integers(0, len(memory[which])))
        ranges.append((which, start, draw(st.integers(0, len(memory[which]) - start))))
    return memory, ranges


def rows_of(memory: list[bytes], ranges: list[tuple[int, int, int]]) -> gather.Rows:
    which, starts, sizes = np.array(ranges, np.int64).reshape(-1, 3).T
    return gather.Rows([memoryview(each) for each in memory], which, starts, sizes)


class TestCopy:
    @given(places())
    def test_it_is_what_slices_are(self, given_places: Any) -> None:
        memory, ranges = given_places
        expected = b"".join(memory[w][start : start + size] for w, start, size in ranges)
        out = np.full(len(expected) + 2, 77, np.uint8)
        gather.copy(rows_of(memory, ranges), out[1:-1])
        assert out.tobytes() == b"M" + expected + b"M"

    @pytest.mark.parametrize(
        ("row", "num_bytes"),
        [
            ((0, 0, 11), 11),
            ((0, 10, 1), 1),
            ((0, 11, 0), 0),
            ((0, -1, 2), 2),
            ((0, 5, -1), -1),
            ((1, 0, 1), 1),
            ((-1, 0, 1), 1),
            ((0, 2**63 - 1, 2), 2),
            ((0, 2, 2**63 - 1), 2**63 - 1),
            ((0, 0, 3), 2),
            ((0, 0, 3), 4),
        ],
    )
    def test_what_is_outside_is_refused(self, row: Any, num_bytes: int) -> None:
        """And nothing is copied then, not even of the rows before."""
        first = 0, 0, 4
        out = np.full(4 + min(max(num_bytes, 0), 100), 77, np.uint8)
        with pytest.raises(ValueError, match=REFUSED):
            gather.copy(rows_of([b"0123456789"], [first, row]), out)
        assert set(out.tolist()) == {77}

    def test_numbers_of_any_layout(self) -> None:
        table = np.array([[0, 3, 2], [0, 0, 1]], np.int64)
        out = np.zeros(3, np.uint8)
        rows = gather.Rows([memoryview(b"abcde")], table[:, 0], table[:, 1], table[:, 2])
        gather.copy(rows, out)
        assert out.tobytes() == b"dea"


def test_numbers_of_different_lengths() -> None:
    some, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    for numbers in ((none, some, some), (some, none, some), (some, some, none)):
        with pytest.raises(ValueError, match="gather: "):
            gather.copy(gather.Rows([memoryview(b"")], *numbers), np.zeros(0, np.uint8))


class TestLookUp:
    @given(st.data())
    def test_it_is_what_numpy_finds(self, data: st.DataObject) -> None:
        """Parts may be empty, and rows come again and in any order."""
        sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
        bounds = np.cumsum([0, *sizes])
        width = data.draw(st.integers(1, 12))
        table = np.arange(bounds[-1] * width).reshape(-1, width)
        rows = st.lists(st.integers(0, max(len(table) - 1, 0)), max_size=30 if len(table) else 0)
        numbers = np.array(data.draw(rows), np.int64)
        found = gather.look_up(table, numbers, bounds)
        assert found is not None
        np.testing.assert_array_equal(found[0], table[numbers])
        expected = [int((bounds <= number).sum()) - 1 for number in numbers]
        assert found[1].tolist() == expected

    @pytest.mark.parametrize("number", [-1, 3, 2**63 - 1, -(2**63)])
    def test_a_row_that_is_not_there(self, number: int) -> None:
        table, bounds = np.zeros((3, 2), np.int64), np.array([0, 3])
        assert gather.look_up(table, np.array([0, number]), bounds) is None
        assert gather.look_up(table[:0], np.array([0]), bounds[:1]) is None

    def test_numbers_with_steps(self) -> None:
        table, numbers = np.arange(12).reshape(6, 2), np.arange(6)[::-2]
        found = gather.look_up(table, numbers, np.array([0, 4, 6]))
        assert found is not None
        assert found[0].tolist() == [[10, 11], [6, 7], [2, 3]] and found[1].tolist() == [1, 0, 0]


class TestWiden:
    @given(places(), st.sampled_from(["u1", "<u2", "<u4", "<u8"]), st.sampled_from([4, 8]))
    def test_it_is_what_numpy_makes(self, given_places: Any, stored: str, itemsize: int) -> None:
        """Rows of whole numbers, wherever they begin."""
        dtype = np.dtype(stored)
        itemsize = max(itemsize, dtype.itemsize)
        memory, ranges = given_places
        ranges = [(w, start, size // dtype.itemsize * dtype.itemsize) for w, start, size in ranges]
        data = b"".join(memory[w][start : start + size] for w, start, size in ranges)
        expected = np.frombuffer(data, dtype).astype(f"i{itemsize}")
        out = np.full(len(expected) + 2, 77, f"i{itemsize}")
        gather.widen(rows_of(memory, ranges), out[1:-1], dtype)
        assert out.tolist() == [77, *expected.tolist(), 77]

    @pytest.mark.parametrize("row", [(0, 0, 3), (0, 8, 4), (0, -2, 4)])
    def test_what_is_outside_or_no_whole_number_is_refused(self, row: Any) -> None:
        out = np.full(2, 77, np.int64)
        with pytest.raises(ValueError, match=REFUSED):
            gather.widen(rows_of([b"0123456789"], [row]), out, np.dtype("<u2"))
        assert out.tolist() == [77, 77]


class TestSplit:
    @given(st.data())
    def test_ranges_within_parts(self, data: st.DataObject) -> None:
        bounds = np.cumsum([0, *data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))])
        shifts = np.arange(len(bounds) - 1) * 1000
        ranges = []
        for _ in range(data.draw(st.integers(0, 12)) if bounds[-1] else 0):
            start = data.draw(st.integers(0, bounds[-1] - 1))
            ranges.append((start, data.draw(st.integers(0, bounds[-1] - start))))
        starts, sizes = np.array(ranges, np.int64).reshape(-1, 2).T
        parts = [int((bounds <= start).sum()) - 1 for start in starts]
        found = gather.split(starts, sizes, bounds, shifts, 4)
        if any(
            start + size > bounds[part + 1]
            for part, (start, size) in zip(parts, ranges, strict=True)
        ):
            assert found is None
            return
        assert found is not None
        expected = [(p, 4 * s + 1000 * p, 4 * n) for p, (s, n) in zip(parts, ranges, strict=True)]
        assert [*zip(*(each.tolist() for each in found), strict=True)] == expected


# --- mirroring part of a batch ------------------------------------------------------------

SIDES = st.integers(1, 24)


@given(st.integers(0, 7), SIDES, SIDES, st.integers(1, 5), st.data())
def test_any_shape(num: int, height: int, width: int, channels: int, data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 99))
    batch = np.random.default_rng(seed).integers(0, 256, (num, height, width, channels), np.uint8)
    flips = np.array(data.draw(st.lists(st.booleans(), min_size=num, max_size=num)), bool)
    expected = batch.copy()
    expected[flips] = expected[flips][:, :, ::-1]
    assert flip_some(batch, flips) is batch
    np.testing.assert_array_equal(batch, expected)


def test_more_than_a_piece() -> None:
    """Pieces end inside pictures, and pictures are more than one step."""
    for shape in [(40, 64, 64, 3), (3, 301, 257, 3)]:
        batch = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        assert batch.nbytes > 4 * raw.PIECE_BYTES
        flips = np.arange(len(batch)) % 3 > 0
        expected = np.where(flips[:, None, None, None], batch[:, :, ::-1], batch)
        np.testing.assert_array_equal(flip_some(batch, flips), expected)


def test_nothing_to_do() -> None:
    for shape in [(0, 4, 4, 3), (2, 0, 4, 3), (2, 4, 4, 3)]:
        batch = np.ones(shape, np.uint8)
        assert flip_some(batch, np.zeros(len(batch), bool)) is batch
