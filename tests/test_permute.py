"""The shuffle by the compiled module is that by NumPy, number by number."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.order import permutation
from shardkit.order.permutation import MAX_ROWS, SORTED_ROWS, permute

pytestmark = pytest.mark.skipif(permutation.compiled() is None, reason="permute.c was not compiled")

SIZES = st.one_of(
    st.integers(SORTED_ROWS + 1, MAX_ROWS),
    st.integers(SORTED_ROWS + 1, SORTED_ROWS + 300),
    st.integers(65, 2**30).map(lambda side: side * side),
)


@given(SIZES, st.integers(0, 2**64 - 1), st.integers(0, 70), st.data())
def test_both_shuffle_alike(size: int, key: int, count: int, data: st.DataObject) -> None:
    ends = st.sampled_from([0, size - 1])
    position = st.one_of(st.integers(0, size - 1), ends)
    positions = np.array(data.draw(st.lists(position, min_size=count, max_size=count)), np.int64)
    compiled = permute(positions, size, key)
    with patch.object(permutation, "compiled", lambda: None):
        assert permute(positions, size, key).tolist() == compiled.tolist()
    assert compiled.dtype == np.int64
    assert permute(np.repeat(positions, 2)[::2], size, key).tolist() == compiled.tolist()


def test_all_of_many_are_shuffled_alike() -> None:
    """So many that the GIL is let go of, and of a size whose square root is just too small."""
    size = 101**2 + 1
    compiled = permute(np.arange(size), size, 7)
    with patch.object(permutation, "compiled", lambda: None):
        assert np.array_equal(permute(np.arange(size), size, 7), compiled)
    assert np.array_equal(np.sort(compiled), np.arange(size))


@pytest.mark.parametrize("position", [-1, 5000, 2**62])
@pytest.mark.parametrize("place", [0, 8, 10])
def test_a_position_outside_ends_with_an_error(position: int, place: int) -> None:
    positions = np.zeros(11, np.int64)
    positions[place] = position
    with pytest.raises(ValueError, match="a position is not below size"):
        permute(positions, 5000, 1)


@pytest.mark.parametrize(
    ("size", "side", "num_salts", "num_rows"),
    [(5000, 70, 8, 3), (5000, 2**32, 8, 3), (5000, 0, 8, 3), (5000, 72, 7, 3), (5000, 72, 8, 2)],
)
def test_arguments_that_do_not_fit(size: int, side: int, num_salts: int, num_rows: int) -> None:
    module = permutation.compiled()
    assert module is not None
    salts, rows = np.zeros(num_salts, np.uint64), np.zeros(num_rows, np.int64)
    with pytest.raises(ValueError, match="permute: "):
        module.permute(np.zeros(3, np.int64), size, side, salts, rows)
