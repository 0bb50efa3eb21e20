"""From the bytes of a picture to its pixels, by every decoder there is."""

from __future__ import annotations

import io
import mmap
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import thorough
from hypothesis import given
from hypothesis import strategies as st
from odd_pictures import (
    JPEGS,
    ODD,
    encode,
    exif,
    jpeg,
    natural,
    png16,
    png_header,
    resized_frame,
    sampled,
)
from PIL import Image, ImageOps

from shardkit.errors import BadImageError, UsageError
from shardkit.images import backends, decode, decoders, header, is_pillow_simd, pillow
from shardkit.images.decoders import DECODERS, scaled
from shardkit.images.jpeg import first_rows, read_header


def needs(name: str) -> Any:
    """A test's parameter; skipped where the backend is not installed."""
    try:
        decoders.decoder(name)
    except UsageError as why:
        return pytest.param(name, marks=pytest.mark.skip(reason=str(why)))
    return name


BACKENDS = [needs(name) for name in DECODERS]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture
def _forgetful() -> Iterator[None]:
    """What is installed is looked up anew, in the test and after it."""
    caches = (decoders.decoder, decoders.best, pillow.image_module, pillow._plugin)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def by_pillow(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of palettes with transparency
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


# --- pixels -------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("kind", ODD)
def test_all_kinds_are_as_pillow_has_them(kind: str, backend: str) -> None:
    data = ODD[kind]()
    pixels = decode(data, backend=backend)
    assert pixels.dtype == np.uint8 and pixels.flags.c_contiguous and pixels.flags.writeable
    np.testing.assert_array_equal(pixels, by_pillow(data))


@every_backend
@pytest.mark.parametrize("colour", [0, 2])
def test_sixteen_bits_are_scaled_not_clipped(colour: int, backend: str) -> None:
    data, expected = png16(colour)
    np.testing.assert_array_equal(decode(data, backend=backend), expected)


def test_sixteen_bits_of_a_tif() -> None:
    values = np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000
    pixels = decode(encode(Image.fromarray(values), "TIFF"))
    np.testing.assert_array_equal(pixels[..., 1], values >> 8)


@every_backend
def test_any_buffer_will_do(backend: str, tmp_path: Path) -> None:
    data = jpeg()
    expected = by_pillow(data)
    path = tmp_path / "x.jpg"
    path.write_bytes(data)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = memoryview(mapped)
        for value in (bytearray(data), memoryview(data), view):
            np.testing.assert_array_equal(decode(value, backend=backend), expected)
        view.release()


# --- orientation --------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_an_option(orientation: int, order: str, backend: str) -> None:
    data = jpeg(exif=exif(orientation, order))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert read_header(data).orientation == orientation
    np.testing.assert_array_equal(decode(data, backend=backend, exif=True), upright)
    np.testing.assert_array_equal(decode(data, backend=backend), by_pillow(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_other_kinds(orientation: int) -> None:
    data = encode(natural(31, 17), "PNG", exif=exif(orientation))
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(decode(data, exif=True), upright)


@pytest.mark.parametrize(
    "segment",
    [exif(0), exif(9), exif(3)[:-8], exif(6)[:8], b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff"],
    ids=range(6),
)
def test_damaged_exif_is_upright(segment: bytes) -> None:
    data = jpeg(exif=segment)
    np.testing.assert_array_equal(decode(data, exif=True), decode(data))


@given(st.binary(max_size=200))
def test_exif_may_hold_anything(segment: bytes) -> None:
    assert read_header(jpeg(8, 8, exif=b"Exif\0\0II*\0" + segment)).orientation in range(1, 9)


# --- what does not decode -----------------------------------------------------------------


@every_backend
@pytest.mark.parametrize("kind", sorted(set(JPEGS) - {"something behind", "bytes too many"}))
def test_cut_off_is_refused(kind: str, backend: str) -> None:
    data = JPEGS[kind]()
    for size in (len(data) - 1, len(data) - 2, len(data) - 20, len(data) // 2, 200, 20, 4, 3):
        with pytest.raises(BadImageError):
            decode(data[:size], backend=backend)


@pytest.mark.parametrize("kind", ["RGB png", "CMYK jpg", "gif", "bmp", "tif", "ppm"])
def test_cut_off_is_refused_of_other_kinds(kind: str) -> None:
    data = ODD[kind]()
    for size in (len(data) * 3 // 4, len(data) // 2, 40, 20):
        with pytest.raises(BadImageError):
            decode(data[:size])


@pytest.mark.parametrize("data", [b"", b"\xff", b"hello, this is text", b"\xff\xd8\xff", bytes(99)])
def test_no_picture_is_refused(data: bytes) -> None:
    with pytest.raises(BadImageError):
        decode(data)


def test_what_pillow_cannot_read_is_said() -> None:
    heic = b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic" + bytes(50)
    with pytest.raises(BadImageError, match=r"^this build of Pillow does not read heic$"):
        decode(heic)


DAMAGED = jpeg(64, 48)


@every_backend
@given(data=st.data())
def test_any_damage_gives_pixels_or_the_error(backend: str, data: st.DataObject) -> None:
    damaged = bytearray(DAMAGED)
    for at in data.draw(st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)):
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        pixels = decode(damaged, backend=backend, max_pixels=10**6)
    except BadImageError:
        return
    head = header(damaged)
    assert pixels.shape == (head.height, head.width, 3)


@every_backend
def test_damage_within_is_accepted_as_by_pillow(backend: str) -> None:
    data = jpeg(200, 200)
    hole = data[: len(data) // 2] + data[-2:]
    np.testing.assert_array_equal(decode(hole, backend=backend), by_pillow(hole))


# --- limits -------------------------------------------------------------------------------

HUGE = {
    "jpg": resized_frame(jpeg(), 20_000, 20_000),
    "progressive jpg": resized_frame(jpeg(progressive=True), 20_000, 20_000),
    "png": png_header(20_000, 20_000),
    "gif": b"GIF89a" + (20_000).to_bytes(2, "little") * 2 + ODD["gif"]()[10:],
    "ppm": b"P6\n20000 20000\n255\n" + bytes(100),
}


@every_backend
@pytest.mark.parametrize("kind", HUGE)
def test_huge_pictures_are_refused_by_their_header(kind: str, backend: str) -> None:
    with pytest.raises(BadImageError, match=r"^20000 x 20000 pixels are more than max_pixels=178,"):
        decode(HUGE[kind], backend=backend)


def test_the_limit_is_the_callers() -> None:
    data = jpeg(61, 43)
    with pytest.raises(BadImageError, match="max_pixels=2,622"):
        decode(data, max_pixels=61 * 43 - 1)
    assert decode(data, max_pixels=61 * 43).shape == (43, 61, 3)
    assert header(HUGE["jpg"], max_pixels=20_000**2).width == 20_000


@every_backend
def test_pillows_own_limit_does_not_count(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {kind: by_pillow(ODD[kind]()) for kind in ("4:2:0", "RGB png", "CMYK jpg")}
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for kind, pixels in expected.items():  # warnings are errors here
        np.testing.assert_array_equal(decode(ODD[kind](), backend=backend), pixels)


# --- headers ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ODD)
def test_headers(kind: str) -> None:
    data = ODD[kind]()
    head, image = header(data), Image.open(io.BytesIO(data))
    assert (head.width, head.height) == image.size
    assert head.is_plain_jpeg == (kind in JPEGS)
    if head.jpeg:
        assert head.jpeg.is_one_scan == ("progressive" not in kind)
        assert head.jpeg.is_whole == (kind != "something behind")
        assert head.jpeg.components == len(image.getbands())


def test_fill_bytes_before_a_marker() -> None:
    data = jpeg()
    at = data.index(b"\xff\xc0")
    assert read_header(data[:at] + b"\xff\xff" + data[at:]).width == 61


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xd8\xff\xd9", "ends before its first scan"),
        (b"\xff\xd8\xff\xda\0\x0c\3" + bytes(9), "a scan without a frame"),
        (b"\xff\xd8\xff\xe0\0\x02zzzz", "ends before its first scan"),
        (b"\xff\xd8" + bytes(70_000), "no marker before byte 65539"),
        (resized_frame(jpeg(), 0, 5), "0 x 5 pixels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_headers(data: bytes, reason: str) -> None:
    with pytest.raises(BadImageError, match=reason):
        read_header(data)


# --- less than all of it ------------------------------------------------------------------

SAMPLED = {
    (name, height): sampled(name, 70, height)
    for name in ("444", "422", "420", "440", "411")
    for height in (64, 77, 130)
}
WHOLE = {which: by_pillow(data) for which, data in SAMPLED.items()}


@given(which=st.sampled_from(list(SAMPLED)), rows=st.integers(1, 130))
def test_first_rows_are_those_of_the_whole(which: tuple[str, int], rows: int) -> None:
    rows = min(rows, which[1])
    shorter, height = first_rows(SAMPLED[which], read_header(SAMPLED[which]), rows)
    decoded = np.asarray(Image.open(io.BytesIO(shorter)).convert("RGB"))
    assert len(decoded) == height and rows <= height <= which[1]
    np.testing.assert_array_equal(decoded[:rows], WHOLE[which][:rows])


def test_first_rows_where_it_does_not_work() -> None:
    for data in (jpeg(64, 900, progressive=True), jpeg(64, 900) + b"tail", jpeg(64, 20)):
        assert first_rows(data, read_header(data), 10)[0] is data
    data = jpeg(64, 900)
    assert first_rows(data, read_header(data), 10)[1] < 50


@every_backend
@pytest.mark.parametrize("kind", JPEGS)
@pytest.mark.parametrize("shrink", [1, 4, *thorough(2, 8)])
def test_windows_are_parts_of_the_scaled_picture(kind: str, shrink: int, backend: str) -> None:
    data = JPEGS[kind]()
    head = read_header(data)
    if min(head.width, head.height) < shrink:
        return  # a crop of it cannot be larger than the result
    image: Any = Image.open(io.BytesIO(data))
    image.draft(None, (head.width // shrink, head.height // shrink))
    size = scaled(head.width, shrink), scaled(head.height, shrink)
    assert image.size == size
    whole = np.asarray(image.convert("RGB"))
    width, height = size
    for left, top, right, bottom in (
        (0, 0, width, height),
        (width // 3, height // 4, max(width // 2, width // 3 + 1), max(height // 2, 1)),
        (width - 1, height - 1, width, height),
    ):
        window = decoders.decoder(backend).window(data, head, shrink, (left, top, right, bottom))
        assert window.image.size == (right - left, bottom - top)
        pixels = np.frombuffer(window.image.tobytes("raw", window.order), np.uint8)
        expected = whole[top:bottom, left:right]
        np.testing.assert_array_equal(pixels.reshape(expected.shape), expected)


# --- backends -----------------------------------------------------------------------------


def test_backends_are_listed_in_order_with_versions() -> None:
    found = backends()
    assert found[0] == decoders.best().title
    assert f"{'pillow-simd' if is_pillow_simd() else 'pillow'} {pillow.version()[1]}" in found  # type: ignore[index]
    ranks = [list(DECODERS).index(each.name) for each in decoders.installed()]
    assert ranks == sorted(ranks) and len(ranks) == len(found)


def test_unknown_backends_are_refused() -> None:
    with pytest.raises(UsageError, match="simplejpeg, opencv, pillow, got 'gd'"):
        decode(jpeg(), backend="gd")


@pytest.mark.parametrize(("name", "module"), {"opencv": "cv2", "simplejpeg": "simplejpeg"}.items())
@pytest.mark.usefixtures("_forgetful")
def test_a_backend_that_is_not_installed(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=f"'{name}' is not installed: pip install"):
        decode(jpeg(), backend=name)
    assert not any(title.startswith(name) for title in backends())
    np.testing.assert_array_equal(decode(jpeg()), by_pillow(jpeg()))


@pytest.mark.usefixtures("_forgetful")
def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data, png = jpeg(), ODD["RGB png"]()
    expected = by_pillow(data)
    monkeypatch.setitem(sys.modules, "PIL", None)
    np.testing.assert_array_equal(decode(data, backend="simplejpeg"), expected)
    with pytest.raises(UsageError, match=r"pip install 'shardkit\[simd\]'"):
        decode(png)
    assert pillow.version() is None and is_pillow_simd() is None
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setitem(sys.modules, "cv2", None)
    decoders.decoder.cache_clear()
    decoders.best.cache_clear()
    with pytest.raises(UsageError, match=r"no picture decoder is installed: pip install"):
        decode(data)


@pytest.mark.parametrize(
    ("compiled", "name"),
    {"12.1.1.post0": "pillow-simd", "9.5.0.post2": "pillow-simd", "13.0.0": "pillow"}.items(),
)
def test_which_pillow_it_is(compiled: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(core=SimpleNamespace(PILLOW_VERSION=compiled))
    monkeypatch.setattr(pillow, "image_module", lambda: fake)
    assert pillow.version() == (name, compiled)
    assert is_pillow_simd() is (name == "pillow-simd")
