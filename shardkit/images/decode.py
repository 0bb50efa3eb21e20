"""Pictures as pixels: one function for every kind of file, whichever decoder is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardkit.arrays import Pixels
from shardkit.errors import BadImageError
from shardkit.images import decoders, pillow
from shardkit.images.jpeg import JpegHeader, read_header
from shardkit.images.limits import MAX_PIXELS
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.samples.sample import Value


@dataclass(frozen=True, slots=True)
class Header:
    """What a picture's first bytes say.

    Attributes:
        width, height: in pixels, as stored.
        field: what it is: ``jpg``, ``png`` ...
        jpeg: more about a JPEG; None for other kinds.
    """

    width: int
    height: int
    field: str
    jpeg: JpegHeader | None = None

    @property
    def is_plain_jpeg(self) -> bool:
        """Whether every :class:`~shardkit.images.decoders.JpegDecoder` takes it: not CMYK, nor of
        12 bits."""
        return self.jpeg is not None and self.jpeg.bits == 8 and self.jpeg.components in (1, 3)


def header(data: Value, max_pixels: int = MAX_PIXELS) -> Header:
    """Read the header: 3 us for a JPEG, some 50 us for the rest, which Pillow opens.

    Raises:
        BadImageError: no picture of a known kind, damaged, or of more than ``max_pixels``.
    """
    field = image_field(bytes(data[:HEAD_BYTES]))
    if field is None:
        raise BadImageError(f"{len(data)} bytes that are no picture of a known kind")
    if field == "jpg":
        jpeg = read_header(data)
        found = Header(jpeg.width, jpeg.height, field, jpeg)
    else:
        width, height = pillow.open_image(data, field).size
        found = Header(width, height, field)
    if found.width * found.height > max_pixels:
        raise too_large(found.width, found.height, max_pixels)
    return found


def too_large(width: int, height: int, max_pixels: int, slot: int = 0) -> BadImageError:
    """The error for a picture of so many pixels."""
    return BadImageError(f"{width} x {height} pixels are more than max_pixels={max_pixels:,}", slot)


def decode(
    data: Value, *, backend: str | None = None, exif: bool = False, max_pixels: int = MAX_PIXELS
) -> Pixels:
    """All pixels of a picture.

    Greyscale becomes grey RGB; transparency is dropped and the colour below it stays; CMYK is
    converted without a colour profile (all as Pillow's ``convert("RGB")``); 16 bits a channel are
    scaled to 8. Animations give their first frame.

    Args:
        data: the file's bytes.
        backend: what decodes JPEGs, see :func:`backends`; None takes the fastest that is
            installed. All give the same pixels.
        exif: turn the picture as its EXIF orientation says.
        max_pixels: refuse larger ones.

    Returns:
        (H, W, 3) uint8, RGB, writable.

    Raises:
        BadImageError: it does not decode, or is too large. UsageError: no such backend, or none
            that reads this kind of file.
    """
    chosen = decoders.best() if backend is None else decoders.decoder(backend)
    head = header(data, max_pixels)
    if head.jpeg is not None and head.is_plain_jpeg:
        pixels = chosen.pixels(data, head.jpeg)
        return _upright(pixels, head.jpeg.orientation) if exif else pixels
    return np.array(whole_image(data, head, exif))


def whole_image(data: Value, head: Header, exif: bool = False) -> Any:
    """A loaded PIL image of mode RGB, decoded by Pillow.

    Raises:
        BadImageError: it does not decode. UsageError: no Pillow.
    """
    opened = pillow.open_image(data, head.field)
    picture = pillow.rgb(opened, head.field)
    return pillow.upright(picture, pillow.orientation(opened)) if exif else picture


def orientation(data: Value, head: Header) -> int:
    """EXIF's, 1 (upright) to 8."""
    if head.jpeg is not None:
        return head.jpeg.orientation
    return pillow.orientation(pillow.open_image(data, head.field))


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Turned as EXIF's orientation asks for; Exif 2.32, section 4.6.4 A."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def backends() -> list[str]:
    """What decodes JPEGs here, the one that is taken first, with versions:
    ``["simplejpeg 1.9.0", "pillow-simd 12.1.1.post0"]``. All else is decoded by Pillow."""
    return [each.title for each in decoders.installed()]


def is_pillow_simd() -> bool | None:
    """Whether PIL is pillow-simd's; None where there is no PIL."""
    found = pillow.version()
    return None if found is None else found[0] == "pillow-simd"
