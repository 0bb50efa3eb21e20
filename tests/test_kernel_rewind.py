"""Headers that come again are read once, and nothing else of one picture is left to the next."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from jpegs import LAYOUTS, jpeg, photo, without_segment
from test_kernel_scan import scan_of

from shardkit.arrays import Array
from shardkit.images import kernel
from shardkit.images.kernel import Status

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason=kernel.why_not())

BOXES = [(0, 0, 32, 32), (5, 7, 20, 18), (0, 9, 32, 20), (16, 16, 16, 16), (0.5, 1.5, 9.25, 30)]


def decode(values: list[bytes], boxes: list[tuple[float, ...]], side: int) -> tuple[Array, Array]:
    """Pixels and statuses; every other slot is mirrored."""
    out = np.full((len(values), side, side, 3), 99, np.uint8)
    flips = np.arange(len(values)) % 2 == 0
    return out, kernel.crop_resize(values, np.array(boxes, float), flips, out)


def assert_as_alone(values: list[bytes], boxes: list[tuple[float, ...]], side: int) -> Array:
    """One call, with one thread, gives what a call for each gives. Returns the statuses."""
    together, status = decode(values, boxes, side)
    for slot, (value, box) in enumerate(zip(values, boxes, strict=True)):
        # In a slot of the same number: whether it is mirrored depends on that.
        alone, alones = decode([b""] * slot + [value], [box] * (slot + 1), side)
        assert status[slot] == alones[slot]
        np.testing.assert_array_equal(together[slot], alone[slot])
    return status


def without_tables(data: bytes, marker: int) -> bytes:
    """None at all of this kind: :func:`without_segment` takes out one."""
    while bytes([0xFF, marker]) in data[: scan_of(data)]:
        data = without_segment(data, marker)
    return data


def cut(data: bytes) -> bytes:
    return data[: (scan_of(data) + len(data)) // 2] + b"\xff\xd9"


def without_scan(data: bytes) -> bytes:
    return data[: scan_of(data)] + b"\xff\xd9"


def within_header(data: bytes) -> bytes:
    return data[: scan_of(data) - 4] + b"\xff\xd9"


def overwritten(data: bytes) -> bytes:
    at = scan_of(data) + 20
    return data[:at] + b"\xff\xd9\x12\x34" + data[at + 4 :]


def without_quantization(data: bytes) -> bytes:
    return without_tables(data, 0xDB)


def without_codes(data: bytes) -> bytes:
    return without_tables(data, 0xC4)


def without_frame(data: bytes) -> bytes:
    return without_segment(data, 0xC0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("side", [4, 16, 32, 45])
def test_many_of_one_header(layout: str, side: int) -> None:
    """At all scales, whole and cropped in turn, copied and resized."""
    boxes = BOXES * 3
    values = [jpeg(32, 32, layout, seed) for seed in range(len(boxes))]
    assert not assert_as_alone(values, boxes, side).any()


@pytest.mark.parametrize("layout", ["420", "444", "grey", "restarts"])
@pytest.mark.parametrize(
    "damage",
    [
        without_codes,
        without_quantization,
        without_frame,
        within_header,
        without_scan,
        cut,
        overwritten,
    ],
)
def test_damage_stays_where_it_is(layout: str, damage: Callable[[bytes], bytes]) -> None:
    good = [jpeg(32, 32, layout, seed) for seed in range(12)]
    bad = [damage(data) if slot % 4 == 3 else data for slot, data in enumerate(good)]
    status = assert_as_alone(bad, [BOXES[0]] * 12, 32)
    kept = [slot for slot in range(12) if slot % 4 != 3]
    assert not status[kept].any()
    if damage not in (without_codes, without_quantization):
        assert status[3::4].all()


def test_a_file_without_quantization_is_refused_after_one_that_has_it() -> None:
    good = jpeg(32, 32)
    status = assert_as_alone([good, good, good, without_quantization(good)], [BOXES[0]] * 4, 32)
    assert status.tolist() == [Status.OK, Status.OK, Status.OK, Status.BROKEN]


def test_headers_that_differ_in_one_byte() -> None:
    """Another height, other factors, another table: each is seen."""
    data = jpeg(32, 32)
    other = []
    for at in range(2, scan_of(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        other += [data, data, data, bytes(changed)]
    status = assert_as_alone_in_parts(other)
    assert status[0::4].max() == Status.OK < status[3::4].max()


def assert_as_alone_in_parts(values: list[bytes]) -> Array:
    parts = [values[at : at + 16] for at in range(0, len(values), 16)]
    return np.concatenate(
        [assert_as_alone(part, [(0, 0, 30, 30)] * len(part), 32) for part in parts]
    )


def test_pictures_between_that_are_not_kept() -> None:
    """Each needs libjpeg anew, so the first header must be read again."""
    one, between = jpeg(32, 32), [jpeg(32, 32, "progressive"), jpeg(200, 150), jpeg(32, 32, "grey")]
    values = [one, one, one]
    for other in between:
        values += [other, one, other, one, one]
    assert not assert_as_alone(values, [BOXES[1]] * len(values), 16).any()


def test_a_box_outside_the_picture_is_refused_each_time() -> None:
    data = jpeg(32, 32)
    boxes: list[tuple[float, ...]] = [(0, 0, 32, 32)] * 3 + [(0, 0, 33, 32), (0, 0, 32, 32)] * 2
    status = assert_as_alone([data] * 7, boxes, 32)
    assert status.tolist() == [*[Status.OK] * 3, *[Status.BAD_BOX, Status.OK] * 2]


def test_headers_of_any_length() -> None:
    """Up to more than is kept of one."""
    for length in (0, 900, 1300, 1500, 9000):
        values = []
        for seed in range(6):
            out = io.BytesIO()
            photo(32, 32, seed).save(out, "JPEG", quality=90, comment=b"x" * length)
            values.append(out.getvalue())
        assert not assert_as_alone(values, [BOXES[0]] * 6, 32).any()


def test_sizes_in_turn_on_both_sides_of_narrow() -> None:
    for width in (63, 64, 65, 66):
        values = [jpeg(width, 20, "420", seed) for seed in range(5)]
        boxes: list[tuple[float, ...]] = [(width - 21, 0, 20, 20), (0, 0, width, 20)] * 2
        assert not assert_as_alone(values, [*boxes, boxes[0]], 20).any()


@pytest.mark.parametrize("markers", [0, 1])
def test_what_is_refused_does_not_depend_on_the_picture_before(markers: int) -> None:
    """Of a small damaged file: the first goes to libjpeg, and the second has known tables."""
    rng, refused = np.random.default_rng(3), 0
    for number in range(600):
        out = io.BytesIO()
        photo(32, 32, number % 9).save(out, "JPEG", quality=90, restart_marker_blocks=markers)
        data = bytearray(out.getvalue())
        at = int(rng.integers(scan_of(bytes(data)), len(data) - 2))
        data[at] ^= 1 << int(rng.integers(8))
        _, status = decode([bytes(data)] * 3, [(3, 20, 9, 9)] * 3, 16)
        assert len(set(status.tolist())) == 1
        refused += bool(status[0])
    assert refused
