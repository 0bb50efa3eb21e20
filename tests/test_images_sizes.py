"""How large pictures become: properties of pure arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.images.sizes import Size, cover, fit, geometry

SIDES = st.integers(1, 30_000)
SIZES = st.tuples(SIDES, SIDES)
LIMITS = st.none() | st.integers(1, 4_000)


@given(SIZES, LIMITS, LIMITS)
def test_fit(size: Size, short: int | None, long: int | None) -> None:
    made = fit(size, short, long)
    scales = [Fraction(1)]
    scales += [Fraction(short, min(size))] if short else []
    scales += [Fraction(long, max(size))] if long else []
    scale = min(scales)
    for before, after in zip(size, made, strict=True):
        assert 1 <= after <= before
        assert after == 1 or abs(after - before * scale) <= Fraction(1, 2)
    if scale < 1:
        assert short == min(made) or long == max(made)
    else:
        assert made == size
    assert short is None or min(made) <= short
    assert long is None or max(made) <= long
    assert fit(made, short, long) == made
    assert fit(size[::-1], short, long) == made[::-1]


@given(SIZES, st.integers(1, 500))
def test_cover(size: Size, side: int) -> None:
    made = cover(size, side)
    assert min(made) >= side
    assert made == size if min(size) >= side else min(made) == side


@given(SIZES, LIMITS, LIMITS, st.integers(1, 500))
def test_crop(size: Size, short: int | None, long: int | None, crop: int) -> None:
    new = geometry(size, short, long, crop)
    left, top, right, bottom = new.box
    assert new.size == (crop, crop)
    assert 0 <= left < right <= size[0] and 0 <= top < bottom <= size[1]
    # The box is the square of the scaled picture, and as central as whole pixels allow.
    across, down = size[0] / new.whole[0], size[1] / new.whole[1]
    assert right - left == pytest.approx(crop * across)
    assert bottom - top == pytest.approx(crop * down)
    assert abs(left - (size[0] - right)) <= across * 1.001
    assert abs(top - (size[1] - bottom)) <= down * 1.001


@pytest.mark.parametrize(
    ("size", "short", "long", "expected"),
    [
        ((500, 375), 256, None, (341, 256)),
        ((375, 500), 256, None, (256, 341)),
        ((500, 375), None, 512, (500, 375)),
        ((500, 375), 256, 300, (300, 225)),
        ((1, 5000), 256, None, (1, 5000)),
        ((1, 5000), None, 512, (1, 512)),
        ((256, 256), 256, 256, (256, 256)),
        ((4000, 3000), 256, None, (341, 256)),
    ],
)
def test_examples(size: Size, short: int | None, long: int | None, expected: Size) -> None:
    assert fit(size, short, long) == expected
    assert geometry(size, short, long, None).box == (0, 0, *size)
