"""Only what a crop needs of a JPEG's scan is decoded, and its pixels are libjpeg's to the bit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from jpegs import LAYOUTS, jpeg, photo
from test_kernel import boxes_of

from shardkit.arrays import Array
from shardkit.images import kernel
from shardkit.images.kernel import Status

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason=kernel.why_not())

Box = tuple[float, float, float, float]

BASELINE = [name for name in LAYOUTS if not name.startswith("progressive")]


def crop(data: bytes, box: Box, size: tuple[int, int], by_libjpeg: bool = False) -> Array:
    """(height, width, 3) of a picture that decodes; with libjpeg's own Huffman decoder if told."""
    out, status = decode(data, box, size, by_libjpeg)
    assert status == Status.OK
    return out


def decode(
    data: bytes, box: Box, size: tuple[int, int], by_libjpeg: bool = False
) -> tuple[Array, Status]:
    out, status = np.zeros((1, size[1], size[0], 3), np.uint8), np.zeros(1, np.int32)
    given: tuple[Any, ...] = [data], np.array([box], float), np.array([False]), out, status
    options = size[1], size[0], 1, 1e9, False, by_libjpeg
    kernel._compiled().crop_resize(*given, *options)  # the last argument has no other use
    return out[0], Status(int(status[0]))


def with_restarts(width: int, height: int, mcus: int, **options: Any) -> bytes:
    """A JPEG with a restart marker behind each so many MCUs."""
    out = io.BytesIO()
    mode = options.pop("mode", "RGB")
    options = {"quality": 90, "restart_marker_blocks": mcus} | options
    photo(width, height).convert(mode).save(out, "JPEG", **options)
    return out.getvalue()


def scan_of(data: bytes) -> int:
    """Where the entropy-coded data begin."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4])


def markers(data: bytes) -> list[int]:
    """Where each restart marker stands."""
    start = scan_of(data)
    ends = zip(data[start:], data[start + 1 :], strict=False)
    return [start + i for i, (a, b) in enumerate(ends) if a == 0xFF and 0xD0 <= b <= 0xD7]


# --- the same pixels ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", BASELINE)
@pytest.mark.parametrize("shape", [(290, 230), (197, 331)])
def test_any_layout(layout: str, shape: tuple[int, int]) -> None:
    data = jpeg(*shape, layout)
    assert len(data) - scan_of(data) > 5_000, "smaller ones are left to libjpeg"
    for box in boxes_of(*shape):
        for size in [(8, 8), (33, 50), (64, 64), (224, 224), (512, 512)]:
            np.testing.assert_array_equal(crop(data, box, size), crop(data, box, size, True))


@pytest.mark.parametrize("mcus", [1, 2, 3, 5, 8, 13, 14, 26, 100_000])
@pytest.mark.parametrize(
    "options",
    [{"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}, {"mode": "L", "optimize": True}],
    ids=str,
)
def test_restarts_wherever_they_stand(mcus: int, options: dict[str, Any]) -> None:
    """In rows of 13 or 26 MCUs: within them, at their ends, once in several, and never."""
    data = with_restarts(208, 190, min(mcus, 65_535), **options)
    for box in boxes_of(208, 190):
        for size in [(16, 16), (48, 31), (208, 190)]:
            np.testing.assert_array_equal(crop(data, box, size), crop(data, box, size, True))


@pytest.mark.parametrize("subsampling", [0, 2])
def test_every_size_of_slot_with_markers_and_without(subsampling: int) -> None:
    """The size decides whether 1, 1/2, 1/4 or 1/8 is decoded, and how much beside the box."""
    shape = 290, 230
    marked, plain = (with_restarts(*shape, mcus, subsampling=subsampling) for mcus in (6, 0))
    assert markers(marked) and not markers(plain)
    boxes = boxes_of(*shape)
    for side in range(8, 513):
        given = boxes[side % len(boxes)], (side, side)
        expected = crop(marked, *given, by_libjpeg=True)
        np.testing.assert_array_equal(crop(marked, *given), expected)
        np.testing.assert_array_equal(crop(plain, *given), expected)


@examples(1.5)
@given(st.data())
def test_any_crop_of_any_picture(draw: st.DataObject) -> None:
    side = st.integers(60, 260)
    width, height = draw.draw(side), draw.draw(side)
    mcus, subsampling = draw.draw(st.integers(1, 40)), draw.draw(st.integers(0, 2))
    quality = draw.draw(st.sampled_from([60, 90, 98]))
    data = with_restarts(width, height, mcus, subsampling=subsampling, quality=quality)
    share = st.floats(0.001, 1)
    w, h = draw.draw(share) * width, draw.draw(share) * height
    x, y = draw.draw(st.floats(0, 1)) * (width - w), draw.draw(st.floats(0, 1)) * (height - h)
    size = draw.draw(st.tuples(st.integers(1, 90), st.integers(1, 90)))
    box = x, y, w, h
    np.testing.assert_array_equal(crop(data, box, size), crop(data, box, size, True))


# --- only what is needed ------------------------------------------------------------------


def test_what_lies_beside_the_crop_is_not_decoded() -> None:
    """All intervals are empty but those of the crop; libjpeg stumbles at the first."""
    data = with_restarts(320, 240, 4, subsampling=2)
    whole = crop(data, (0, 0, 320, 240), (320, 240))
    start, *ends = [scan_of(data), *(at + 2 for at in markers(data)), len(data)]
    kept = data[:start]
    for number, end in enumerate(ends):
        row, column = divmod(number, 5)  # 20 MCUs of 16 x 16 in a row, 4 an interval
        is_needed = 5 <= row <= 8 and 1 <= column <= 3
        kept += data[start if is_needed else end - 2 : end]
        start = end
    box = (130, 100, 60, 30)
    assert decode(kept, box, (60, 30), by_libjpeg=True)[1] == Status.ELSEWHERE
    np.testing.assert_array_equal(crop(kept, box, (60, 30)), whole[100:130, 130:190])


def renumbered(data: bytes, at: int) -> bytes:
    return data[: at + 1] + bytes([0xD0 + (data[at + 1] + 3) % 8]) + data[at + 2 :]


def dropped(data: bytes, at: int) -> bytes:
    return data[:at] + data[at + 2 :]


def doubled(data: bytes, at: int) -> bytes:
    return data[:at] + data[at : at + 2] + data[at:]


def filled(data: bytes, at: int) -> bytes:
    """A byte of 0xFF may stand before any marker."""
    return data[:at] + b"\xff" + data[at:]


@pytest.mark.parametrize("change", [renumbered, dropped, doubled, filled])
def test_markers_that_do_not_add_up_are_libjpegs_to_judge(change: Any) -> None:
    data = with_restarts(320, 240, 4, subsampling=2)
    for at in markers(data)[::7]:
        changed = change(data, at)
        for box in boxes_of(320, 240):
            ours, status = decode(changed, box, (64, 48))
            theirs, libjpegs = decode(changed, box, (64, 48), by_libjpeg=True)
            assert status in (libjpegs, Status.OK)
            assert libjpegs != Status.OK or (ours == theirs).all()


def test_eight_intervals_less_are_seen_in_neither_numbers_nor_pixels() -> None:
    """Their numbers add up again: what comes behind them moves up, for libjpeg as for us."""
    data = with_restarts(320, 240, 4, subsampling=2)
    places = markers(data)
    less = data[: places[9]] + data[places[17] :]
    box = (40, 60, 120, 100)
    np.testing.assert_array_equal(crop(less, box, (50, 40)), crop(less, box, (50, 40), True))


def test_an_interval_that_is_too_short_is_not_made_up() -> None:
    data = with_restarts(320, 240, 4, subsampling=2)
    first, second = markers(data)[30:32]
    short = data[: first + 2] + data[second:]
    assert decode(short, (0, 0, 320, 240), (64, 64))[1] == Status.ELSEWHERE
