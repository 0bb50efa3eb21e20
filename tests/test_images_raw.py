"""Mirroring part of a batch, against the plain way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.images import raw
from shardkit.images.raw import flip_some

SIDES = st.integers(1, 24)

pytestmark = pytest.mark.usefixtures("_gathering")


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
