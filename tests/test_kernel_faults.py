"""The compiled kernel among bad pictures, wrong arguments, threads, forks and Python's buffers."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jpegs import jpeg, photo, three_scans, without_segment
from PIL import Image

from shardkit.errors import UsageError
from shardkit.images import kernel
from shardkit.images.kernel import Status

pytestmark = pytest.mark.skipif(not kernel.is_available(), reason=kernel.why_not())

Array = np.ndarray[Any, np.dtype[Any]]


def decode(values: list[Any], box: Any = None, **options: Any) -> tuple[Array, list[int]]:
    """Pixels of (24, 32) slots, and statuses; by default of the whole of a 60 x 40 picture."""
    out = np.full((len(values), 24, 32, 3), 99, np.uint8)
    boxes = np.tile(np.array((0, 0, 60, 40) if box is None else box, float), (len(values), 1))
    status = kernel.crop_resize(values, boxes, np.zeros(len(values), bool), out, **options)
    return out, status.tolist()


def status_of(data: Any, box: Any = None, **options: Any) -> Status:
    return Status(decode([data], box, **options)[1][0])


def saved(mode: str, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    photo(60, 40).convert(mode).save(out, kind, **options)
    return out.getvalue()


# --- what is not for the kernel, and what does not decode ---------------------------------


def with_bits(data: bytes, bits: int) -> bytes:
    at = data.index(b"\xff\xc0")
    return data[: at + 4] + bytes([bits]) + data[at + 5 :]


def with_frame(data: bytes, marker: int) -> bytes:
    return data.replace(b"\xff\xc0", bytes([0xFF, marker]), 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\xff\xd8",
        b"no picture at all",
        saved("RGB", "PNG"),
        saved("CMYK"),
        with_bits(jpeg(60, 40), 12),
        with_frame(jpeg(60, 40), 0xC3),  # lossless
        with_frame(jpeg(60, 40), 0xC5),  # hierarchical
    ],
)
def test_not_for_the_kernel(data: bytes) -> None:
    assert status_of(data) in (Status.ELSEWHERE, Status.BROKEN)
    assert status_of(data) is Status.ELSEWHERE or data == b"\xff\xd8"


def test_headers_of_what_is_not_for_the_kernel() -> None:
    values = [b"", b"\xff\xd8", saved("RGB", "PNG"), saved("CMYK"), with_bits(jpeg(60, 40), 12)]
    sizes, status = kernel.headers([*values, with_frame(jpeg(60, 40), 0xC3), jpeg(60, 40)])
    elsewhere = Status.ELSEWHERE
    assert status.tolist() == [*[elsewhere] * 6, Status.OK]
    assert sizes.tolist() == [[0, 0]] * 3 + [[60, 40]] * 4


def test_headers_cut_anywhere() -> None:
    data = jpeg(60, 40)
    end = data.index(b"\xff\xc0") + 10
    sizes, status = kernel.headers([data[:size] for size in range(3, end + 3)])
    assert set(status[: end - 3].tolist()) == {Status.BROKEN}
    assert set(status[end - 3 :].tolist()) == {Status.OK}
    assert not sizes[: end - 3].any()


def test_headers_without_a_frame() -> None:
    no_frame = without_segment(jpeg(60, 40), 0xC0)
    empty = jpeg(60, 40).replace(b"\xff\xc0\0\x11\x08\0\x28", b"\xff\xc0\0\x11\x08\0\0")
    stops = b"\xff\xd8\xff\xe0\0\x01" + bytes(20)
    endless = b"\xff\xd8" + b"\xff" * 5000
    assert kernel.headers([no_frame, empty, stops, endless])[1].tolist() == [Status.BROKEN] * 4
    ended = [data + b"\xff\xd9" for data in (no_frame, empty, stops, endless)]
    assert decode(ended)[1] == [Status.BROKEN] * 4


def test_bad_pictures_leave_the_others_right() -> None:
    good = [jpeg(60, 40, "420", seed) for seed in range(6)]
    alone, _ = decode(good)
    cut, png = good[0][:500], saved("RGB", "PNG")
    mixed = [cut, good[0], b"", good[1], png, cut, good[2], good[3][:-300], *good[3:], cut]
    for threads in (1, 3):
        pixels, status = decode(mixed, threads=threads)
        right = [mixed.index(data) for data in good]
        assert [i for i, code in enumerate(status) if code == Status.OK] == right
        np.testing.assert_array_equal(pixels[right], alone)
        assert not np.delete(pixels, right, axis=0).any(), "a slot that failed is black"


# --- cut off ------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["420", "444", "grey", "restarts", "progressive"])
def test_what_is_cut_off_is_for_others_to_judge(layout: str) -> None:
    """Wherever its crop lies: or it would be good in one epoch and bad in the next."""
    data = jpeg(60, 400, layout)
    for bottom in (40, 200, 400):
        cuts = [data[:-1], data[:-2], *(data[:size] for size in range(700, len(data) - 2, 97))]
        pixels, status = decode(cuts, (0, bottom - 40, 60, 40))
        assert set(status) == {Status.ELSEWHERE} and not pixels.any()
        assert status_of(data + b"more") is Status.ELSEWHERE


# --- other damage -------------------------------------------------------------------------


def pillow_decodes(data: bytes) -> Array | None:
    try:
        image = Image.open(io.BytesIO(data))
        resized = image.convert("RGB").resize((32, 24), Image.Resampling.BILINEAR, (0, 0, 60, 40))
        return np.asarray(resized)
    except (OSError, SyntaxError, ValueError):
        return None


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_what_passes_is_what_pillow_sees_and_damage_is_for_pillow_to_judge() -> None:
    """With the same libjpeg as Pillow's, all that passes is the same. Without its SIMD code, or in
    another version, sums overflow another way: then a third of what is damaged differs."""
    rng = np.random.default_rng(1)
    counts = dict.fromkeys([*Status, "refused by pillow", "different"], 0)
    for data in (jpeg(60, 40), jpeg(60, 40, "restarts"), jpeg(60, 40, "progressive")):
        for _ in range(500):
            broken = bytearray(data)
            for at in rng.integers(2, len(data) - 2, rng.integers(1, 4)):
                broken[at] = rng.integers(256)
            pixels, status = decode([bytes(broken)])
            counts[Status(status[0])] += 1
            theirs = pillow_decodes(bytes(broken))
            if status == [Status.BROKEN]:
                assert theirs is None
            elif status == [Status.OK] and theirs is None:
                counts["refused by pillow"] += 1
            elif status == [Status.OK]:
                counts["different"] += int(np.abs(pixels[0].astype(int) - theirs).max() > 1)
    assert counts["different"] < counts[Status.OK] / 2
    assert counts["refused by pillow"] < counts[Status.OK] / 50
    assert counts[Status.OK] > 300 and counts[Status.ELSEWHERE] > 100 and counts[Status.BROKEN] > 30


def test_tables_never_come_from_another_picture() -> None:
    """libjpeg keeps them from one file to the next, for files that share them."""
    bare = [without_segment(jpeg(60, 40), marker) for marker in (0xDB, 0xC4)]
    for data in bare:
        alone, status = decode([data])
        for neighbour in (jpeg(60, 40, "coarse"), jpeg(60, 40, "optimised")):
            pixels, mixed = decode([neighbour, data, neighbour, data])
            assert [mixed[1], mixed[3]] == status * 2
            np.testing.assert_array_equal(pixels[1], alone[0])
    assert status_of(bare[0]) is Status.BROKEN


# --- limits -------------------------------------------------------------------------------


def test_too_many_pixels() -> None:
    assert status_of(jpeg(60, 40), max_pixels=60 * 40) is Status.OK
    assert status_of(jpeg(60, 40), max_pixels=60 * 40 - 1) is Status.TOO_LARGE
    assert "max_pixels" in kernel.message(Status.TOO_LARGE)


@pytest.mark.parametrize("layout", ["420", "progressive"])
def test_a_header_that_lies_about_the_size_costs_nothing(layout: str) -> None:
    data = jpeg(60, 40, layout).replace(b"\x08\x00\x28\x00\x3c", b"\x08\x4e\x20\x4e\x20")
    assert kernel.headers([data])[0].tolist() == [[20_000, 20_000]]
    started = time.perf_counter()
    assert status_of(data) is Status.TOO_LARGE
    assert time.perf_counter() - started < 0.1


def test_too_many_scans() -> None:
    grey = jpeg(60, 40, "grey")
    assert status_of(three_scans(grey, more=80)) is Status.OK
    assert status_of(three_scans(grey, more=200)) is Status.TOO_LARGE


@pytest.mark.parametrize(
    "box",
    [
        (-1, 0, 10, 10),
        (0, -0.1, 10, 10),
        (51, 0, 10, 10),
        (0, 0, 0, 10),
        (0, 0, 10, -1),
        (float("nan"), 0, 10, 10),
        (0, 0, float("inf"), 10),
        (0, 0, 60.01, 40),
    ],
)
def test_a_box_outside_the_picture(box: Any) -> None:
    assert status_of(jpeg(60, 40), box) is Status.BAD_BOX


@pytest.mark.parametrize(
    "box", [(0, 0, 60 + 1e-9, 40), (0.1 + 0.2, 0, 59.7, 40), (60 - 1e-9, 0, 1e-9, 1e-300)]
)
def test_a_box_may_be_out_by_a_rounding(box: Any) -> None:
    assert status_of(jpeg(60, 40), box) is Status.OK


# --- the call -----------------------------------------------------------------------------


def call(**changed: Any) -> Array:
    given: dict[str, Any] = {
        "values": [jpeg(60, 40)] * 2,
        "boxes": np.array([[0, 0, 60, 40]] * 2, float),
        "flips": np.zeros(2, bool),
        "out": np.zeros((2, 8, 8, 3), np.uint8),
    }
    return kernel.crop_resize(**{**given, **changed})


def readonly() -> Array:
    out = np.zeros((2, 8, 8, 3), np.uint8)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"out": np.zeros((2, 8, 8), np.uint8)}, r"out must be \(2, height, width, 3\), got"),
        ({"out": np.zeros((2, 8, 8, 4), np.uint8)}, r"out must be \(2, height, width, 3\), got"),
        ({"out": np.zeros((2, 0, 8, 3), np.uint8)}, "slots must be 1 to 65500 pixels"),
        ({"out": np.zeros((2, 8, 8, 3), np.float32)}, "out must be a uint8 array, got float32"),
        ({"out": bytearray(2 * 8 * 8 * 3)}, "out must be a uint8 array"),
        ({"out": np.zeros((2, 8, 16, 3), np.uint8)[:, :, ::2]}, "C-contiguous and writable"),
        ({"out": readonly()}, "C-contiguous and writable"),
        ({"boxes": np.zeros((2, 3))}, r"boxes must be \(2, 4\), got \(2, 3\)"),
        ({"boxes": [["left"] * 4] * 2}, r"boxes must be an array of \(2, 4\) numbers"),
        ({"flips": np.zeros(3, bool)}, r"flips must be \(2,\), got \(3,\)"),
        ({"values": [jpeg(60, 40), "text"]}, "values must be buffers of bytes: .*'str'"),
        ({"values": [memoryview(jpeg(60, 40))[::2]] * 2}, "values must be buffers of bytes"),
        ({"threads": 0}, "threads must be 1 to 256, got 0"),
        ({"threads": 257}, "threads must be 1 to 256, got 257"),
    ],
)
def test_wrong_arguments(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        call(**changed)


def test_headers_want_buffers() -> None:
    with pytest.raises(UsageError, match="buffers of bytes"):
        kernel.headers([jpeg(60, 40), 7])  # type: ignore[list-item]


def test_the_compiled_part_checks_lengths_itself() -> None:
    compiled = kernel._compiled()
    values = [jpeg(60, 40)] * 2
    boxes, flips = np.zeros((2, 4)), np.zeros(2, bool)
    out, status = np.zeros((2, 8, 8, 3), np.uint8), np.zeros(2, np.int32)
    for wrong in (
        (values[:1], boxes, flips, out, status, 8, 8),
        (values, boxes[:1], flips, out, status, 8, 8),
        (values, boxes, flips[:1], out, status, 8, 8),
        (values, boxes, flips, out, status[:1], 8, 8),
        (values, boxes, flips, out, status, 8, 9),
        (values, boxes, flips, out, status, 9, 8),
        (values, boxes, flips, out, status, 0, 8),
        (values, boxes, flips, out, status, -8, -8),
        (values, boxes, flips, out, status, 1 << 30, 1 << 30),
    ):
        with pytest.raises(ValueError, match="different lengths"):
            compiled.crop_resize(*wrong, 1, 1e9, False)
    with pytest.raises(ValueError, match="different lengths"):
        compiled.headers(values, np.zeros((1, 2), np.int32), status)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, "u1")])
def test_any_buffer_is_a_value(kind: Callable[[bytes], Any]) -> None:
    data = jpeg(60, 40)
    np.testing.assert_array_equal(decode([kind(data)])[0], decode([data])[0])
    np.testing.assert_array_equal(kernel.headers([kind(data)])[0], [[60, 40]])


def test_nothing_is_held_after_the_call() -> None:
    value = bytearray(jpeg(60, 40))
    before = sys.getrefcount(value)
    for _ in range(3):
        assert decode([value])[1] == [Status.OK]
        with pytest.raises(UsageError):
            call(values=[value, 3])
        with pytest.raises(UsageError):
            kernel.headers([value, 3])  # type: ignore[list-item]
    assert sys.getrefcount(value) == before
    value.append(0)  # raises BufferError while anybody holds it


# --- threads and processes ----------------------------------------------------------------


def test_python_runs_while_a_batch_is_decoded() -> None:
    """Held, the GIL would let the other thread count only before and after."""
    values = [jpeg(1500, 1500)] * 20
    times: list[float] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            times.append(time.perf_counter())

    counter = threading.Thread(target=count)
    counter.start()
    try:
        started = time.perf_counter()
        decode(values, (0, 0, 1500, 1500))
        ended = time.perf_counter()
    finally:
        stop.set()
        counter.join()
    during = [moment for moment in times if started < moment < ended]
    assert len(during) > 10
    assert max(np.diff([started, *during, ended])) < (ended - started) / 2


def test_several_python_threads_at_once() -> None:
    values = [jpeg(60, 40, "420", seed) for seed in range(50)]
    expected, _ = decode(values)
    found: list[Array] = []
    threads = [
        threading.Thread(target=lambda: found.append(decode(values, threads=3)[0]))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    for pixels in found:
        np.testing.assert_array_equal(pixels, expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_uses_threads_again() -> None:
    values = [jpeg(60, 40, "420", seed) for seed in range(20)]
    expected, _ = decode(values, threads=3)
    child = os.fork()
    if child == 0:
        same = np.array_equal(decode(values, threads=3)[0], expected)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_is_left_behind() -> None:
    decode([jpeg(60, 40)] * 20, threads=4)
    before = len(os.listdir("/proc/self/task"))
    decode([jpeg(60, 40)] * 20, threads=4)
    assert len(os.listdir("/proc/self/task")) <= before
