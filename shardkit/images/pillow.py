"""Pictures by way of Pillow, or pillow-simd: every kind that it knows, and all resizing."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import numpy as np

from shardkit.arrays import Pixels
from shardkit.errors import BadImageError, UsageError
from shardkit.samples.sample import Value

Region = tuple[int, int, int, int]
"""Left, top, right, bottom, in whole pixels."""

_PLUGINS = {
    "jpg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "bmp": "BMP",
    "webp": "WEBP",
    "tif": "TIFF",
    "avif": "AVIF",
    "jp2": "JPEG2000",
    "j2k": "JPEG2000",
    "pbm": "PPM",
    "pgm": "PPM",
    "ppm": "PPM",
}
"""What Pillow calls each field; HEIC it does not read."""

_16_BIT = frozenset({"I", "I;16", "I;16L", "I;16B", "I;16N"})
"""``I`` has 32 bits, and is what some versions make of files of 16."""


@cache
def image_module() -> Any:
    """``PIL.Image``. Raises UsageError where neither of the two is installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "pictures need Pillow: pip install 'shardkit[simd]' (x86-64) or 'shardkit[pillow]'"
        ) from error
    return Image


def version() -> tuple[str, str] | None:
    """Which of the two is installed, and its version; None where neither is.

    Both call themselves PIL. The compiled part of pillow-simd says ``12.1.1.post0``, and refuses to
    load beside Python files of another version, so this cannot be a mixture; Pillow itself never
    made a post-release. What pip lists, ``importlib.metadata``, can be wrong when one was
    installed over the other.
    """
    try:
        core = image_module().core
    except UsageError:
        return None
    number = str(core.PILLOW_VERSION)
    return ("pillow-simd" if ".post" in number else "pillow"), number


def open_image(data: Value, field: str) -> Any:
    """A PIL image of which the header alone was read.

    Not by ``Image.open``: that warns of, or refuses, large pictures by a limit of its own.

    Raises:
        BadImageError: it does not open. UsageError: no Pillow.
    """
    plugin = _plugin(_PLUGINS.get(field, ""))
    if plugin is None:
        raise BadImageError(f"this build of Pillow does not read {field}")
    try:
        return plugin(io.BytesIO(data))
    # Plugins raise nearly anything for damaged files: SyntaxError, struct.error, KeyError ...
    except Exception as error:
        raise _bad(field, error) from error


@cache
def _plugin(kind: str) -> Any:
    """The class that reads files of a kind."""
    image = image_module()
    if kind == "JPEG":  # the registered one goes on to look for further pictures in the file
        from PIL.JpegImagePlugin import JpegImageFile

        return JpegImageFile
    image.init()
    return image.OPEN.get(kind, (None,))[0]


def rgb(picture: Any, field: str) -> Any:
    """Decode to mode RGB, as Pillow's ``convert("RGB")`` does it: transparency is dropped, the
    colour below it stays. 16 bits are scaled to 8, where ``convert`` would clip at 255.

    Raises:
        BadImageError: it does not decode, or its numbers have no known range.
    """
    try:
        picture.load()
        if picture.mode == "RGB":
            return picture
        picture = eight_bits(picture)
        picture.info.pop("transparency", None)  # convert would warn of it
        return picture.convert("RGB")
    except BadImageError:
        raise
    except Exception as error:  # as above
        raise _bad(field, error) from error


def eight_bits(picture: Any) -> Any:
    """Return a picture of 16 bits a channel by the upper 8 of them, and any other as it is.

    Raises:
        BadImageError: it holds floats, or integers that are signed or of 32 bits.
    """
    if picture.mode == "F" or (picture.mode == "I" and picture.format == "TIFF"):
        raise BadImageError(
            "holds floats, or integers that are signed or of 32 bits, of which no two are black and"
            " white: scale them and save 8 or 16 bits, or save .npy arrays"
        )
    if picture.mode not in _16_BIT:
        return picture
    levels = np.clip(np.asarray(picture), 0, 65_535)
    return image_module().fromarray((levels >> 8).astype(np.uint8))


def crop(picture: Any, region: Region) -> Any:
    """A region of a picture of mode RGB."""
    left, top, right, bottom = region
    image = image_module()
    limit = image.MAX_IMAGE_PIXELS
    if limit is None or (right - left) * (bottom - top) <= limit:
        return picture.crop(region)
    # The other way there, which does not warn of large pictures.
    return image.fromarray(np.asarray(picture)[top:bottom, left:right])


def upright(picture: Any, orientation: int) -> Any:
    """Turned as EXIF's orientation, 1 to 8, asks for."""
    turn = image_module().Transpose
    wanted = {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)
    return picture if wanted is None else picture.transpose(wanted)


def orientation(picture: Any) -> int:
    """EXIF's, 1 to 8; 1 where there is none, or it is damaged."""
    try:
        value = picture.getexif().get(0x0112, 1)
    except Exception as error:  # as above
        raise _bad("EXIF", error) from error
    return value if value in range(1, 9) else 1


def resize(
    picture: Any, box: tuple[float, float, float, float] | None, flip: bool, order: str, out: Pixels
) -> None:
    """A box of a picture, resized with antialiasing (a triangle as wide as the step between
    pixels of the result, as torchvision's and PIL's BILINEAR) into ``out``.

    Args:
        picture: of mode RGB, or RGBX. box: left, top, right, bottom; None for all of it.
        order: of the bytes that make red, green and blue: ``"RGB"`` or ``"BGR"``.
        out: (H, W, 3) uint8, C-contiguous.
    """
    image = image_module()
    height, width = out.shape[:2]
    resized = picture.resize((width, height), image.Resampling.BILINEAR, box)
    if flip:
        resized = resized.transpose(image.Transpose.FLIP_LEFT_RIGHT)
    # Faster than numpy.asarray: 8 us for BGR, for which there is a vectorised packer, 19 for RGB.
    out[:] = np.frombuffer(resized.tobytes("raw", order), np.uint8).reshape(out.shape)


def _bad(field: str, error: Exception) -> BadImageError:
    return BadImageError(f"{field} does not decode: {type(error).__name__}: {error}")
