"""The compiled kernel's pixels, against Pillow's."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from jpegs import LAYOUTS, jpeg, photo, three_scans
from PIL import Image

from shardkit.images import kernel

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason=kernel.why_not())

Box = tuple[float, float, float, float]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def run(data: bytes, box: Box, size: tuple[int, int], flip: bool = False) -> Pixels:
    """(height, width, 3) of one picture that must decode; ``size`` is (width, height)."""
    out = np.full((1, size[1], size[0], 3), 99, np.uint8)
    status = kernel.crop_resize([data], np.array([box]), np.array([flip]), out)
    assert status.tolist() == [kernel.Status.OK]
    return out[0]


def shrinking(box: Box, size: tuple[int, int]) -> int:
    """1, 2, 4 or 8: by how much the crop can be decoded smaller and still fill the slot."""
    return max(
        n for n in (1, 2, 4, 8) if (box[2] >= size[0] * n and box[3] >= size[1] * n) or n == 1
    )


def by_pillow(data: bytes, box: Box, size: tuple[int, int], shrunk: int = 1) -> Pixels:
    """The same crop of the picture as Pillow decodes it, 1 / ``shrunk`` as large."""
    image = Image.open(io.BytesIO(data))
    full = image.size
    if shrunk > 1:
        image.draft("RGB", (full[0] // shrunk, full[1] // shrunk))
        assert image.size == (-(-full[0] // shrunk), -(-full[1] // shrunk))
    left, top, width, height = (side / shrunk for side in box)
    right, bottom = min(left + width, image.size[0]), min(top + height, image.size[1])
    where = (left, top, right, bottom)
    return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR, box=where))


def largest_difference(ours: Pixels, theirs: Pixels) -> int:
    return int(np.abs(ours.astype(int) - theirs).max())


def check(data: bytes, box: Box, size: tuple[int, int]) -> None:
    """Within 1 of Pillow, which rounds once more, given the same decoded pixels."""
    shrunk = shrinking(box, size)
    assert largest_difference(run(data, box, size), by_pillow(data, box, size, shrunk)) <= 1


def boxes_of(width: int, height: int) -> list[Box]:
    """The whole, all corners and sides, an odd one inside, one pixel in each corner, fractions."""
    w, h = width - width // 3, height - height // 3
    right, bottom = width - w, height - h
    corners = [(x, y, w, h) for x in (0, right) for y in (0, bottom)]
    pixels = [(x, y, 1, 1) for x in (0, width - 1) for y in (0, height - 1)]
    inside = (right // 2, bottom // 2, w, h)
    fractions = (width * 0.13, height * 0.21, width * 0.61, height * 0.77)
    return [(0, 0, width, height), *corners, *pixels, inside, fractions]


# --- every layout, every part -------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(120, 90), (97, 131)])
def test_every_part_of_every_layout_is_pillows(layout: str, shape: tuple[int, int]) -> None:
    data = jpeg(*shape, layout)
    for box in boxes_of(*shape):
        for size in [(64, 64), (33, 50), (17, 9), (5, 6)]:
            check(data, box, size)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (2, 1), (1, 7), (7, 8), (8, 8), (9, 16), (15, 17), (16, 16), (17, 31), (2, 40)],
)
def test_small_and_odd_pictures(layout: str, shape: tuple[int, int]) -> None:
    data = jpeg(*shape, layout)
    for box in boxes_of(*shape):
        for size in [(1, 1), (4, 3), (16, 16)]:
            check(data, box, size)


@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (3, 3000), (4000, 70)])
@pytest.mark.parametrize("layout", ["420", "444", "grey", "progressive"])
def test_long_pictures(layout: str, shape: tuple[int, int]) -> None:
    data = jpeg(*shape, layout)
    for box in boxes_of(*shape):
        check(data, box, (32, 24))
    check(data, (0, 0, *shape), (1, 1))


@examples(4)
@given(st.data())
def test_any_crop_of_any_picture(draw: st.DataObject) -> None:
    side = st.integers(1, 90)
    width, height = draw.draw(side), draw.draw(side)
    share = st.floats(0.001, 1)
    w, h = draw.draw(share) * width, draw.draw(share) * height
    x, y = draw.draw(st.floats(0, 1)) * (width - w), draw.draw(st.floats(0, 1)) * (height - h)
    size = draw.draw(st.tuples(st.integers(1, 50), st.integers(1, 50)))
    check(jpeg(width, height, draw.draw(st.sampled_from(list(LAYOUTS)))), (x, y, w, h), size)


def test_a_scan_for_each_component() -> None:
    data = three_scans(jpeg(50, 38, "grey"))
    check(data, (0, 0, 50, 38), (50, 38))
    check(data, (7, 9, 31, 22), (20, 20))


# --- exactly ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_resizing_the_pixels_are_the_decoders(layout: str) -> None:
    data = jpeg(83, 61, layout)
    whole = by_pillow(data, (0, 0, 83, 61), (83, 61))
    for x, y, w, h in [(0, 0, 83, 61), (16, 8, 40, 40), (5, 7, 33, 31), (80, 60, 3, 1)]:
        ours = run(data, (x, y, w, h), (w, h))
        np.testing.assert_array_equal(ours, whole[y : y + h, x : x + w])


def triangle(start: float, extent: float, length: int, size: int) -> np.ndarray[Any, Any]:
    """(size, length) weights of the antialiased filter, as Pillow's Resample.c defines it."""
    scale = extent / size
    reach = max(scale, 1.0)
    centres = start + (np.arange(size) + 0.5) * scale
    distance = np.abs(np.arange(length) + 0.5 - centres[:, None])
    weights = np.clip(1 - distance / reach, 0, None)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("box", [(0, 0, 83, 61), (5.3, 7.1, 40.4, 33.9), (60, 40, 4.5, 21)])
@pytest.mark.parametrize("size", [(70, 50), (42, 31), (83, 97)])
def test_pixels_are_rounded_once(box: Box, size: tuple[int, int]) -> None:
    data = jpeg(83, 61, "444")
    whole = by_pillow(data, (0, 0, 83, 61), (83, 61)).astype(float)
    across, down = triangle(box[0], box[2], 83, size[0]), triangle(box[1], box[3], 61, size[1])
    exact = np.einsum("ij,jkc,lk->ilc", down, whole, across)
    assert np.abs(run(data, box, size) - exact).max() < 0.501


@pytest.mark.parametrize("layout", ["420", "444", "grey", "progressive"])
def test_a_crop_of_the_slots_size_is_copied_whole_halved_and_mirrored(layout: str) -> None:
    data = jpeg(160, 128, layout)
    for n in (1, 2, 4, 8):
        box, size = (8.0 * n, 0.0, 8.0 * n, 16.0 * n), (8, 16)
        ours = run(data, box, size)
        np.testing.assert_array_equal(ours, by_pillow(data, box, size, n))
        np.testing.assert_array_equal(run(data, box, size, flip=True), ours[:, ::-1])


def test_white_stays_white_under_thousands_of_weights() -> None:
    out = io.BytesIO()
    Image.new("L", (60_000, 1), 255).save(out, "JPEG", quality=100)
    for size in [(1, 1), (2, 1), (7, 3)]:
        assert run(out.getvalue(), (0, 0, 60_000, 1), size).min() == 255


# --- decoded smaller ----------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4, 8])
def test_decoding_smaller_moves_nothing(n: int) -> None:
    """A smooth slope: half a pixel of shift would be seen in the mean."""
    slope = np.linspace(20, 235, 64 * n)
    pixels = (slope[:, None] * 0.5 + slope[None, :] * 0.5).round().astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=100)
    box = (0.0, 0.0, 64.0 * n, 64.0 * n)
    assert shrinking(box, (60, 60)) == n
    difference = run(out.getvalue(), box, (60, 60)).astype(int) - by_pillow(
        out.getvalue(), box, (60, 60)
    )
    assert abs(difference.mean()) < 0.1
    assert np.abs(difference).max() <= 2


def test_the_smallest_decode_keeps_the_targets_size() -> None:
    """Just at twice the size it is halved, and not a fraction before: pixels show which it was."""
    data = jpeg(128, 128, "444")
    for side, shrunk in [(127.9, 1), (128, 2)]:
        box = (0, 0, side, side)
        ours = run(data, box, (64, 64))
        assert largest_difference(ours, by_pillow(data, box, (64, 64), shrunk)) <= 1
        assert largest_difference(ours, by_pillow(data, box, (64, 64), 3 - shrunk)) > 1


# --- batches ------------------------------------------------------------------------------


def batch(count: int = 40) -> tuple[list[bytes], Pixels, Pixels]:
    rng = np.random.default_rng(5)
    shapes = rng.integers(20, 90, (count, 2))
    names = list(LAYOUTS)
    values = [jpeg(*map(int, s), names[i % len(names)], i) for i, s in enumerate(shapes)]
    extent = shapes * rng.uniform(0.2, 1, (count, 2))
    return (
        values,
        np.hstack([(shapes - extent) * rng.random((count, 2)), extent]),
        rng.random(count) < 0.5,
    )


def test_a_batch_is_its_pictures_one_by_one() -> None:
    values, boxes, flips = batch()
    out = np.empty((len(values), 24, 32, 3), np.uint8)
    assert not kernel.crop_resize(values, boxes, flips, out).any()
    for value, box, flip, pixels in zip(values, boxes, flips, out, strict=True):
        np.testing.assert_array_equal(run(value, tuple(box), (32, 24), flip), pixels)


def test_threads_change_nothing() -> None:
    values, boxes, flips = batch()
    first = None
    for threads in (1, 2, 3, 4, 200):
        out = np.full((len(values), 24, 32, 3), threads, np.uint8)
        assert not kernel.crop_resize(values, boxes, flips, out, threads).any()
        first = out if first is None else first
        np.testing.assert_array_equal(out, first)


def test_an_empty_batch() -> None:
    out = np.empty((0, 8, 8, 3), np.uint8)
    status = kernel.crop_resize([], np.empty((0, 4)), np.empty(0, bool), out, threads=3)
    assert status.shape == (0,)
    assert [len(part) for part in kernel.headers([])] == [0, 0]


def test_whole_numbers_and_lists_are_boxes_and_flips() -> None:
    data = jpeg(40, 30)
    out = np.empty((2, 8, 8, 3), np.uint8)
    box = [3, 4, 20, 10]
    for boxes in ([box, box], np.array([box, box], np.int32)):
        assert not kernel.crop_resize([data, data], boxes, [0, 1], out).any()  # type: ignore[arg-type]
        np.testing.assert_array_equal(out[1], out[0][:, ::-1])


# --- headers ------------------------------------------------------------------------------


def test_headers_are_pillows_sizes() -> None:
    values = [
        jpeg(width, height, layout)
        for layout in LAYOUTS
        for width, height in [(1, 1), (300, 7), (40, 41)]
    ]
    sizes, status = kernel.headers(values)
    assert not status.any()
    assert [tuple(size) for size in sizes] == [Image.open(io.BytesIO(v)).size for v in values]


def test_headers_behind_long_segments() -> None:
    out = io.BytesIO()
    options: dict[str, Any] = {"exif": b"Exif\0\0" + b"\xff\xc0" * 9000, "comment": "x" * 65000}
    photo(31, 17).save(out, "JPEG", icc_profile=b"\xff\xda" * 90_000, **options)
    sizes, status = kernel.headers([out.getvalue()])
    assert (sizes.tolist(), status.tolist()) == ([[31, 17]], [0])
    check(out.getvalue(), (0, 0, 31, 17), (12, 12))
