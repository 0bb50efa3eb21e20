"""Pictures written anew: every mode, orientation, profile and limit, and what stays as it is."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_pictures import exif, png16
from PIL import Image, features

from shardkit.errors import BadImageError, SampleError, UsageError
from shardkit.images import encode
from shardkit.images.choice import ImageChoice, describe
from shardkit.images.decode import decode
from shardkit.images.encode import require_encoder, rewrite
from shardkit.images.losses import told
from shardkit.images.sizes import Size, cover, fit, geometry
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.samples.encoding import parse_npy

HAS_WEBP = features.check("webp")
FORMATS = ["jpeg", "png", *(["webp"] if HAS_WEBP else [])]
KIND = {"jpeg": "jpg", "png": "png", "webp": "webp"}

webp = pytest.mark.skipif(not HAS_WEBP, reason="this Pillow was built without WebP")


def smooth(width: int, height: int) -> np.ndarray[Any, Any]:
    """(H, W, 3) uint8: no two corners alike, and nothing that JPEG would blur."""
    y, x = np.mgrid[0:height, 0:width]
    red, green = x * 255 / max(width - 1, 1), y * 255 / max(height - 1, 1)
    return np.stack([red, green, 255 - (red + green) / 2], axis=-1).astype(np.uint8)


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def image_of(width: int = 60, height: int = 40, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(smooth(width, height)).convert(mode)


def opened(value: Any) -> Image.Image:
    image = Image.open(io.BytesIO(value))
    image.load()
    return image


def made(value: bytes, **choice: Any) -> tuple[str, bytes]:
    kind = image_field(value[:HEAD_BYTES])
    assert kind is not None
    new, out = rewrite(value, kind, ImageChoice(**choice))
    return new, bytes(out)


def same(one: Any, other: Any, within: float = 3.0) -> bool:
    """Whether two pictures differ little on average."""
    a, b = (np.asarray(i, np.float64) for i in (one, other))
    return a.shape == b.shape and float(np.abs(a - b).mean()) < within


# --- sizes and formats --------------------------------------------------------------------


@pytest.mark.parametrize("image_format", FORMATS)
@pytest.mark.parametrize("source", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "PPM"])
def test_scaled_into_every_format(source: str, image_format: str) -> None:
    kind, value = made(saved(image_of(), source), resize=20, image_format=image_format)
    assert kind == KIND[image_format] == image_field(value[:HEAD_BYTES])
    assert opened(value).size == (30, 20)
    expected = image_of().resize((30, 20), Image.Resampling.LANCZOS)
    assert same(opened(value).convert("RGB"), expected, 12 if source == "GIF" else 4)


@pytest.mark.parametrize(
    ("source", "kept"), [("JPEG", "jpg"), ("PNG", "png"), ("BMP", "png"), ("GIF", "png")]
)
def test_keep_scales_in_its_own_format(source: str, kept: str) -> None:
    kind, value = made(saved(image_of(), source), max_side=30)
    assert kind == kept == image_field(value[:HEAD_BYTES])
    assert opened(value).size == (30, 20)


@webp
def test_webp_is_kept() -> None:
    kind, value = made(saved(image_of(), "WEBP"), max_side=30)
    assert (kind, opened(value).format) == ("webp", "WEBP")


@pytest.mark.skipif(HAS_WEBP, reason="this Pillow writes WebP")
def test_no_webp() -> None:
    with pytest.raises(UsageError, match="this Pillow was built without WebP"):
        require_encoder(ImageChoice(image_format="webp"))


def test_crop() -> None:
    _, value = made(saved(image_of(61, 40)), crop=20)
    np.testing.assert_array_equal(np.asarray(opened(value)), smooth(61, 40)[10:30, 20:40])
    _, value = made(saved(image_of(8, 4)), crop=12)  # enlarged: the only case
    assert opened(value).size == (12, 12)
    assert same(opened(value), image_of(24, 12).crop((6, 0, 18, 12)), 12)
    _, value = made(saved(image_of(400, 300), "JPEG"), resize=30, crop=24)
    whole = image_of(400, 300).resize((40, 30), Image.Resampling.LANCZOS)
    assert same(opened(value), whole.crop((8, 3, 32, 27)))


def test_crop_of_a_thread() -> None:
    """Scaled up as a whole it would have 250,000,000 pixels."""
    _, value = made(saved(image_of(1, 5000)), crop=224)
    assert opened(value).size == (224, 224)


def test_a_large_jpeg_is_decoded_at_a_fraction() -> None:
    for crop in (None, 30):
        _, value = made(saved(image_of(1601, 1203), "JPEG"), resize=40, crop=crop)
        expected = image_of(1601, 1203).resize((53, 40), Image.Resampling.LANCZOS)
        expected = expected.crop((11, 5, 41, 35)) if crop else expected
        assert same(opened(value), expected)


def test_raw() -> None:
    for mode in ("RGB", "L", "P", "RGBA", "1"):
        image = image_of(mode=mode)
        kind, value = made(saved(image), image_format="raw")
        array = parse_npy(value)
        assert (kind, array.dtype, array.shape) == ("npy", np.uint8, (40, 60, 3))
        np.testing.assert_array_equal(array, np.asarray(image.convert("RGB")))


# --- what stays as it is ------------------------------------------------------------------

WITHIN = [
    ("JPEG", {"resize": 40}),
    ("JPEG", {"max_side": 60, "resize": 50, "quality": 10}),
    ("JPEG", {"image_format": "jpeg"}),
    ("JPEG", {"image_format": "jpeg", "resize": 1000}),
    ("PNG", {"image_format": "png", "resize": 40}),
    ("GIF", {"resize": 41}),
    ("BMP", {"max_side": 60}),
]


@pytest.mark.parametrize(("source", "choice"), WITHIN)
def test_within_the_limits(source: str, choice: dict[str, Any]) -> None:
    value = saved(image_of(), source)
    kind = image_field(value[:HEAD_BYTES])
    assert kind is not None
    same_kind, same_value = rewrite(value, kind, ImageChoice(**choice))
    assert same_kind == kind and same_value is value


def test_a_format_and_a_quality_mean_every_picture() -> None:
    value = saved(image_of(), "JPEG", quality=95)
    kind, small = made(value, image_format="jpeg", quality=30)
    assert kind == "jpg" and len(small) < len(value)
    assert same(opened(small), opened(value), 6)


def test_progressive_becomes_baseline() -> None:
    noise = np.random.default_rng(0).integers(80, 176, (40, 60, 3), np.uint8)
    for mode, sampling in (("RGB", 0), ("RGB", 2), ("L", 0)):
        image = Image.fromarray(noise).convert(mode)
        value = saved(image, "JPEG", progressive=True, quality=40, subsampling=sampling)
        kind, new = made(value, image_format="jpeg")
        assert kind == "jpg" and opened(value).info.get("progressive")
        assert not opened(new).info.get("progressive") and opened(new).mode == mode
        # With its own tables next to nothing is lost; quality 90 would make it thrice as large.
        assert opened(new).quantization == opened(value).quantization
        assert same(opened(new), opened(value), 2.5)
        assert len(new) < 1.3 * len(value)
        assert made(value, resize=50) == ("jpg", value)


# --- modes --------------------------------------------------------------------------------

MODES = ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "I;16"]


def of_mode(mode: str) -> bytes:
    if mode == "I;16":
        levels = np.asarray(image_of(mode="L")).astype(np.uint16) * 257
        return saved(Image.fromarray(levels))
    kind = {"CMYK": "JPEG", "YCbCr": "JPEG"}.get(mode, "PNG")
    return saved(image_of(mode=mode), kind)


@pytest.mark.parametrize("image_format", [*FORMATS, "raw"])
@pytest.mark.parametrize("mode", MODES)
def test_modes(mode: str, image_format: Any) -> None:
    kind, value = made(of_mode(mode), crop=30, image_format=image_format)
    grey = mode in ("1", "L", "LA", "I;16")
    result = Image.fromarray(parse_npy(value)) if kind == "npy" else opened(value)
    alpha = "A" in mode and image_format in ("png", "webp")
    base = "L" if grey and image_format in ("jpeg", "png") else "RGB"
    if image_format == "webp" and mode == "LA":
        alpha = "A" in result.mode  # libwebp leaves out an alpha that is opaque everywhere
    assert result.mode in {base + "A" if alpha else base, "RGB" if image_format == "webp" else ""}
    if mode != "1":
        expected = image_of(mode="L").convert("RGB") if grey else image_of()
        expected = image_of(mode="P").convert("RGB") if mode == "P" else expected
        assert same(result.convert("RGB"), expected.crop((15, 5, 45, 35)), 20 if mode == "P" else 8)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("most", [1, 255, 1_200_000])
def test_numbers_of_no_known_range_are_refused(dtype: Any, most: int) -> None:
    """Taken for 0 to 255, or 0 to 65,535, they would be black, or white where they exceed it."""
    levels = np.linspace(0, most, 2400).reshape(40, 60).astype(dtype)
    value = saved(Image.fromarray(levels), "TIFF")
    with pytest.raises(
        BadImageError,
        match=r"^holds floats, or integers that are signed or of 32 bits.* save \.npy",
    ):
        decode(value)
    with pytest.raises(SampleError, match=r"^holds floats"):
        made(value, resize=16)


def test_alpha() -> None:
    pixels = np.dstack([smooth(60, 40), np.full((40, 60), 200, np.uint8)])
    pixels[:, :30, 3] = 0
    value = saved(Image.fromarray(pixels))
    for image_format in FORMATS[1:]:
        found = opened(made(value, crop=30, image_format=image_format)[1])
        np.testing.assert_array_equal(np.asarray(found)[..., 3], pixels[5:35, 15:45, 3])
    _, flat = made(value, image_format="jpeg")
    assert same(opened(flat), smooth(60, 40), 4)  # as convert("RGB"), which drops it


def test_transparent_palette() -> None:
    image = image_of(mode="P")
    image.info["transparency"] = image.getpixel((0, 0))
    kind, value = made(saved(image), max_side=30)
    assert (kind, opened(value).mode) == ("png", "RGBA")
    assert opened(value).getpixel((0, 0))[3] < 255  # type: ignore[index]
    grey = image_of(mode="L")
    assert opened(made(saved(grey, transparency=0), max_side=30)[1]).mode == "RGBA"


def test_the_upper_eight_of_sixteen_bits() -> None:
    levels = np.arange(0, 65_536, 64, dtype=np.uint16).reshape(32, 32)
    _, value = made(saved(Image.fromarray(levels)), image_format="raw")
    np.testing.assert_array_equal(parse_npy(value)[..., 0], levels >> 8)


# --- metadata -----------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("source", ["JPEG", "PNG", "TIFF"])
def test_orientation(source: str, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    value = saved(image_of(), source, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(opened(value)).convert("RGB"))
    for choice in ({"max_side": 59}, {"max_side": 30}, {"image_format": "raw"}, {"crop": 20}):
        kind, new = made(value, **choice)
        if kind == "npy":
            np.testing.assert_allclose(parse_npy(new).astype(int), upright.astype(int), atol=2)
            continue
        result = opened(new)
        assert result.getexif().get(0x0112) is None
        size = upright.shape[1::-1]
        if "crop" in choice:
            left, top = (size[0] - 20) // 2, (size[1] - 20) // 2
            expected = Image.fromarray(upright).crop((left, top, left + 20, top + 20))
        else:
            expected = Image.fromarray(upright).resize(result.size, Image.Resampling.LANCZOS)
            assert result.size[0] * size[1] == pytest.approx(result.size[1] * size[0], rel=0.03)
        assert same(result.convert("RGB"), expected, 5)


def test_what_is_kept_keeps_its_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    value = saved(image_of(), "JPEG", exif=exif)
    assert made(value, resize=40) == ("jpg", value)


@pytest.mark.parametrize("image_format", FORMATS)
def test_profiles(image_format: Any) -> None:
    rgb = bytes(12) + b"mntrRGB XYZ " + bytes(200)
    value = saved(image_of(), icc_profile=rgb, dpi=(300, 300))
    result = opened(made(value, max_side=30, image_format=image_format)[1])
    assert result.info["icc_profile"] == rgb
    assert "dpi" not in result.info
    cmyk = saved(image_of(mode="CMYK"), "JPEG", icc_profile=rgb[:16] + b"CMYK" + rgb[20:])
    result = opened(made(cmyk, max_side=30, image_format=image_format)[1])
    assert result.mode == "RGB" and "icc_profile" not in result.info


# --- what does not decode -----------------------------------------------------------------


def png_header(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + saved(image_of())[33:]


def test_too_many_pixels() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (png_header(20_000, 20_000), png_header(60_000, 60_000)):
            with pytest.raises(SampleError, match="more than the 178,956,970 that are decoded"):
                made(value, resize=256)


def test_the_limit_is_looked_at_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "MAX_PIXELS", 2399)
    with pytest.raises(SampleError, match="60x40"):
        made(saved(image_of()), resize=256)
    monkeypatch.setattr(encode, "MAX_PIXELS", 2400)
    assert made(saved(image_of()), resize=10)[0] == "png"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF"])
def test_damage(kind: str) -> None:
    value = saved(image_of(), kind)
    for cut in (len(value) // 2, 24):
        with pytest.raises(SampleError, match="does not decode: "):
            made(value[:cut], resize=20)
    with pytest.raises(SampleError, match="does not decode: "):
        rewrite(b"nothing", "jpg", ImageChoice(resize=20))


# --- choices ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"resize": 0}, "resize is a number of pixels from 1 to 65535, got 0"),
        ({"max_side": 70_000}, "max_side is a number of pixels"),
        ({"crop": -1}, "crop is a number of pixels"),
        ({"image_format": "gif"}, "image_format must be one of keep, jpeg, png, webp, raw"),
        ({"resize": 9, "quality": 101}, "quality is a number from 1 to 100, got 101"),
        ({"quality": 80}, "quality is for pictures that are written anew"),
        ({"quality": 80, "image_format": "png"}, "quality is for jpeg and webp"),
        ({"quality": 80, "image_format": "raw"}, "quality is for jpeg and webp"),
    ],
)
def test_choices_that_make_no_sense(choice: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ImageChoice(**choice)


def test_choices_as_json_and_words() -> None:
    assert not ImageChoice() and str(ImageChoice()) == "keep"
    choice = ImageChoice(resize=256, crop=224, image_format="jpeg", quality=80)
    assert choice and ImageChoice.from_json(choice.to_json()) == choice
    assert describe(choice.to_json()) == str(choice)
    assert str(choice) == "--resize 256 --crop 224 --quality 80 --image-format jpeg"
    assert [bool(ImageChoice(**{name: 9})) for name in ("resize", "max_side", "crop")] == [True] * 3


# --- what is lost -------------------------------------------------------------------------


def lost_of(value: bytes, **choice: Any) -> dict[str, int]:
    lost = Counter[str]()
    rewrite(value, str(image_field(value[:32])), ImageChoice(**choice), lost)
    return dict(lost)


def deep_grey() -> Image.Image:
    return Image.fromarray(np.arange(40 * 60, dtype=np.uint16).reshape(40, 60) * 27)


def animation(kind: str) -> bytes:
    frames = [image_of().convert("P" if kind == "GIF" else "RGB").rotate(i * 90) for i in range(3)]
    return saved(frames[0], kind, save_all=True, append_images=frames[1:])


LOSSES: dict[str, tuple[Callable[[], bytes], set[str]]] = {
    "grey png of 16 bits": (lambda: saved(deep_grey()), {"depth"}),
    "colour png of 16 bits": (lambda: png16(2)[0], {"depth"}),
    "tif of 16 bits": (lambda: saved(deep_grey(), "TIFF"), {"depth"}),
    "pgm of 16 bits": (lambda: saved(deep_grey(), "PPM"), {"depth"}),
    "ppm of 16 bits": (lambda: b"P6 60 40 65535\n" + bytes(60 * 40 * 6), {"depth"}),
    "ppm": (lambda: saved(image_of(), "PPM"), set()),
    "CMYK jpg": (lambda: saved(image_of().convert("CMYK"), "JPEG"), {"cmyk"}),
    "tif of pages": (lambda: animation("TIFF"), {"frames"}),
    "gif of frames": (lambda: animation("GIF"), {"frames"}),
    "png of frames": (lambda: animation("PNG"), {"frames"}),
    "gif": (lambda: saved(image_of().convert("P"), "GIF"), set()),
    "palette": (lambda: saved(image_of().convert("P")), {"palette"}),
    "turned jpg": (lambda: saved(image_of(), "JPEG", exif=exif(6)), {"turn"}),
    "jpg": (lambda: saved(image_of(), "JPEG"), set()),
    "png": (lambda: saved(image_of()), set()),
    "alpha": (lambda: saved(image_of().convert("RGBA")), set()),
}
if features.check("webp"):
    LOSSES["webp of frames"] = lambda: animation("WEBP"), {"frames"}
if features.check("jpg_2000"):
    LOSSES["jp2 of 16 bits"] = lambda: saved(deep_grey(), "JPEG2000"), {"depth"}
    LOSSES["jp2"] = lambda: saved(image_of(), "JPEG2000"), set()


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_lost_is_counted(name: str) -> None:
    source, expected = LOSSES[name]
    value = source()
    assert set(lost_of(value, resize=4)) == expected
    assert lost_of(value, resize=80) == {}  # within the limits it stays as it is
    assert rewrite(value, str(image_field(value[:32])), ImageChoice(resize=4)) == made(
        value, resize=4
    )
    kept = {"png": "png", "jpg": "jpeg", "webp": "webp"}.get(str(image_field(value[:32])))
    if kept and "turn" not in expected:
        assert lost_of(value, image_format=kept) == {}


def test_alpha_is_lost_where_none_is_stored() -> None:
    for value in (
        saved(image_of().convert("RGBA")),
        saved(image_of(), transparency=(1, 2, 3)),
        saved(image_of().convert("LA")),
    ):
        for image_format, lost in (("jpeg", 1), ("raw", 1), ("png", 0)):
            assert lost_of(value, resize=8, image_format=image_format).get("alpha", 0) == lost


def test_losses_in_words() -> None:
    assert told({"turn": 1, "depth": 1200, "alpha": 0}) == (
        "1,200 from more than 8 bits a channel to 8, 1 turned as EXIF says, and without it"
    )
    assert told({}) == ""


# --- how large pictures become: pure arithmetic -------------------------------------------

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
def test_the_box_of_a_crop(size: Size, short: int | None, long: int | None, crop: int) -> None:
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
