"""Pictures made smaller, written in another format, or with restart markers: bytes and a choice ->
bytes.

Pillow does the work. Pixels are scaled by its antialiased Lanczos filter: of 85 ImageNet pictures
scaled to a short side of 256, crops differ from those of the originals by 39.1 dB, by 38.5 dB with
the bicubic one and 36.5 dB with the bilinear one, and it takes 0.36, 0.23 and 0.19 ms a picture,
where decoding takes 2 ms. Optimised Huffman tables would save 2 % and double the time to write.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from shardkit.errors import SampleError, UsageError
from shardkit.images import pillow, restarts
from shardkit.images.choice import KIND_OF, QUALITY, ImageChoice
from shardkit.images.jpeg import read_header
from shardkit.images.limits import MAX_PIXELS
from shardkit.images.losses import has_alpha, losses
from shardkit.images.restarting import with_restarts
from shardkit.images.sizes import Geometry, geometry
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import Value

Image = Any
"""A ``PIL.Image.Image``: nothing here imports PIL before it is needed."""

JPEG_SIDE = 65_500
"""libjpeg's limit (pixels)."""

REDUCING_GAP = 3.0
"""By how much a picture that shrinks a lot may be too large after averaging whole pixels; Pillow's
manual: "indistinguishable from fair resampling in most cases"."""

DRAFT_GAP = 2
"""By how much a JPEG that is decoded at a fraction of its size is still too large: 39.05 dB instead
of 39.06 in the measurement above, and 38.88 dB without."""

_ICC_SPACE = slice(16, 20)
_ICC_OF_MODE = {"L": b"GRAY", "LA": b"GRAY", "RGB": b"RGB ", "RGBA": b"RGB "}


def why_not_written(choice: ImageChoice) -> str:
    """Why what is installed cannot write what is chosen, and what to do; empty if it can."""
    try:
        require_writers(choice)
    except UsageError as error:
        return str(error)
    return ""


def require_writers(choice: ImageChoice) -> None:
    """Raise UsageError unless all is installed that writes what is chosen."""
    if choice.restarts:
        restarts.require()
    if choice.writes_anew:
        require_encoder(choice)


def require_encoder(choice: ImageChoice) -> None:
    """Raise UsageError unless a Pillow is installed that can write what is chosen."""
    try:
        from PIL import features
    except ImportError as error:
        raise UsageError(
            "pictures need a decoder to be written anew: pip install 'shardkit[simd]' or"
            " 'shardkit[pillow]'"
        ) from error
    if choice.image_format == "webp" and not features.check("webp"):
        raise UsageError(
            "image_format webp: this Pillow was built without WebP; install libwebp's headers and"
            " build it again, or install the wheel of pillow"
        )


def rewrite(
    value: Value, kind: str, choice: ImageChoice, counts: Counter[str] | None = None
) -> tuple[str, Value]:
    """Make of a picture what was chosen.

    A picture that is within the limits and of the wanted format stays as it is, to the byte, unless
    the choice rewrites all. Otherwise it is decoded and written anew:

    - its EXIF orientation is applied to the pixels, and no metadata is kept but an ICC profile that
      still fits the pixels (no colours are converted; arrays have no profile);
    - JPEG: greyscale stays greyscale, all else becomes RGB; alpha is dropped, as by
      ``convert("RGB")``, so that training sees the pixels it saw before. A progressive JPEG that is
      wanted as ``jpeg``, and needs no scaling, is written with its own quantisation tables: not
      lossless, but nearly;
    - PNG and WebP keep alpha; palettes become RGB or RGBA; of 16 bits the upper 8 are kept;
    - raw: RGB;
    - of an animation, the first picture.

    What is a JPEG then is given restart markers, if that is chosen. With nothing else chosen no
    picture is decoded, and Pillow is not needed.

    Args:
        kind: what it is, as :func:`shardkit.images.sniff.image_field` says.
        counts: counts what is lost of it, by :mod:`shardkit.images.losses`, and what becomes of it
            by :mod:`shardkit.images.restarting`.

    Returns:
        (kind, value): ``jpg``, ``png`` or ``webp``, or ``npy`` and the ``.npy`` file of a
        (H, W, 3) uint8 array.

    Raises:
        SampleError: it does not decode, has over :data:`MAX_PIXELS`, or cannot be written so.
    """
    if choice.writes_anew:
        kind, value = _written_anew(value, kind, choice, counts)
    return kind, with_restarts(value, kind, counts) if choice.restarts else value


def _written_anew(
    value: Value, kind: str, choice: ImageChoice, counts: Counter[str] | None
) -> tuple[str, Value]:
    with _opened(value, kind) as image:
        wanted = wanted_kind(kind, choice)
        new = geometry(image.size, choice.resize, choice.max_side, choice.crop)
        if _is_as_wanted(image, kind, wanted, new, choice):
            return kind, value
        turn = read_header(value).orientation if kind == "jpg" else None
        before = pillow.orientation(image) if turn is None and counts is not None else turn
        own = [] if counts is None else [*losses(image, value, kind, wanted, before or 1)]
        made = _encode(image, turn, wanted, new, choice)
    if counts is not None:
        counts.update(own)
    return wanted, made


@contextmanager
def _opened(value: Value, kind: str) -> Iterator[Image]:
    """A picture of which the header is read; what goes wrong later, goes wrong as SampleError."""
    try:
        with pillow.open_image(value, kind) as image:
            if image.width * image.height > MAX_PIXELS:
                raise SampleError(
                    f"has {image.width}x{image.height} pixels, more than the {MAX_PIXELS:,} that"
                    " are decoded"
                )
            yield image
    except SampleError:
        raise
    # Decoders of damaged files raise nearly anything: struct.error, SyntaxError, zlib.error ...
    except Exception as error:
        raise SampleError(f"does not decode: {type(error).__name__}: {error}") from error


def wanted_kind(kind: str, choice: ImageChoice) -> str:
    """What a picture of this kind becomes if it is written anew."""
    if choice.image_format == "keep":
        return kind if kind in ("jpg", "webp") else "png"
    return KIND_OF[choice.image_format]


def _is_as_wanted(image: Image, kind: str, wanted: str, new: Geometry, choice: ImageChoice) -> bool:
    if choice.rewrites_all or new.size != image.size:
        return False
    if choice.image_format == "keep":
        return True
    return kind == wanted and not (kind == "jpg" and _is_progressive(image))


def _is_progressive(image: Image) -> bool:
    return bool(image.info.get("progressive"))


def _encode(image: Image, turn: int | None, kind: str, new: Geometry, choice: ImageChoice) -> bytes:
    if kind == "jpg" and max(new.size) > JPEG_SIDE:
        raise SampleError(f"{new.size[0]} x {new.size[1]} pixels: a JPEG has at most {JPEG_SIDE:,}")
    options: dict[str, Any] = {}
    if kind == "jpg":
        options = _jpeg_options(image, new, choice)
    elif kind == "webp":
        options = {"quality": choice.quality or QUALITY}
    profile = image.info.get("icc_profile")
    # Turned after scaling: then there are fewer pixels, and TIFFs have turned themselves.
    pixels = _scaled(image, new, kind)
    pixels = pillow.upright(pixels, pillow.orientation(image) if turn is None else turn)
    if kind == "npy":
        array = np.asarray(pixels)
        return npy_header(array.dtype.str, array.shape) + array.tobytes()
    if profile and profile[_ICC_SPACE] == _ICC_OF_MODE[pixels.mode]:
        options["icc_profile"] = profile
    pixels.info = {}  # writers take comments, resolutions and more from here
    out = io.BytesIO()
    pixels.save(out, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[kind], **options)
    return out.getvalue()


def _jpeg_options(image: Image, new: Geometry, choice: ImageChoice) -> dict[str, Any]:
    tables = getattr(image, "quantization", None)
    if tables and choice.quality is None and new.size == image.size and image.mode != "CMYK":
        from PIL.JpegImagePlugin import get_sampling

        return {"qtables": tables, "subsampling": get_sampling(image)}
    return {"quality": choice.quality or QUALITY}


def _scaled(image: Image, new: Geometry, kind: str) -> Image:
    """The part that is wanted, at its size, in a mode that the format can hold."""
    keep_alpha = kind in ("png", "webp")
    keep_grey = kind in ("jpg", "png")
    if new.whole == image.size:
        pixels = _plain(image, keep_alpha, keep_grey)
        return pixels if new.size == new.whole else pixels.crop([*map(round, new.box)])
    width, height = image.size
    # Only JPEG does anything here: it decodes at 1/2, 1/4 or 1/8 if that is still large enough.
    drafted = image.draft(None, (new.whole[0] * DRAFT_GAP, new.whole[1] * DRAFT_GAP))
    now = (width, height) if drafted is None else drafted[1][2:]
    across, down = now[0] / width, now[1] / height
    left, top, right, bottom = new.box
    box = (left * across, top * down, right * across, bottom * down)
    pixels = _plain(image, keep_alpha, keep_grey)
    lanczos = pillow.image_module().Resampling.LANCZOS
    return pixels.resize(new.size, lanczos, box, REDUCING_GAP)


def _plain(image: Image, keep_alpha: bool, keep_grey: bool) -> Image:
    """Decode to 8 bits a channel: mode L, LA, RGB or RGBA, of which not all may be wanted."""
    image.load()
    image = pillow.eight_bits(image)
    is_grey = image.mode in ("1", "L", "LA", "La") and keep_grey
    if keep_alpha and has_alpha(image):
        mode = "LA" if is_grey and image.mode in ("LA", "La") else "RGBA"
    else:
        mode = "L" if is_grey else "RGB"
    if image.mode == mode:
        return image
    if image.mode in ("La", "RGBa"):  # premultiplied: these convert to nothing but their own kind
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    return image.convert(mode)
