"""What turns a JPEG into pixels: simplejpeg, OpenCV, Pillow. Other files are Pillow's alone.

All three sit on libjpeg-turbo and give the same pixels of a sound file to the bit. What Pillow
refuses, files that are cut off, simplejpeg refuses, too, and nothing else: damage within (the wrong
bits, a few bytes too many), which libjpeg warns of and gets past, is accepted. OpenCV accepts some
more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from shardkit.arrays import Pixels
from shardkit.errors import BadImageError, UsageError
from shardkit.images import pillow
from shardkit.images.jpeg import JpegHeader, first_rows
from shardkit.images.pillow import Region
from shardkit.samples.sample import Value

KEPT_BYTES = 64 << 20
"""The largest picture, decoded, whose memory a thread keeps for the next."""


class Window(NamedTuple):
    """Part of a picture, as a PIL image; ``order`` says which bytes are red, green and blue."""

    image: Any
    order: str


class JpegDecoder(Protocol):
    """Decodes JPEGs of 8 bits, grey or colour. Threads share one."""

    name: str
    title: str
    """With a version: ``simplejpeg 1.9.0``."""

    def pixels(self, data: Value, header: JpegHeader) -> Pixels:
        """(H, W, 3) uint8, RGB, writable. Raises BadImageError."""

    def window(self, data: Value, header: JpegHeader, shrink: int, region: Region) -> Window:
        """A region of the picture at 1/``shrink`` of its size, in pixels of that.

        ``shrink`` is 1, 2, 4 or 8, and no more than the picture's width and height. The
        image may share memory that the same thread's next call overwrites. Raises
        BadImageError.
        """


def scaled(length: int, shrink: int) -> int:
    """Width or height at 1/``shrink``, as libjpeg rounds it."""
    return -(-length // shrink)


class SimpleJpeg:
    """simplejpeg: TurboJPEG without detours. The fastest of the three."""

    name = "simplejpeg"

    def __init__(self) -> None:
        import simplejpeg

        self.title = f"simplejpeg {simplejpeg.__version__}"
        self._decode: Callable[..., Pixels] = simplejpeg.decode_jpeg
        self._local = threading.local()

    def pixels(self, data: Value, header: JpegHeader) -> Pixels:
        try:
            return self._checked(data, (header.height, header.width), colorspace="RGB")
        except ValueError:
            return decoder("pillow").pixels(data, header)

    def window(self, data: Value, header: JpegHeader, shrink: int, region: Region) -> Window:
        try:
            return self._window(data, header, shrink, region)
        except ValueError:
            return decoder("pillow").window(data, header, shrink, region)

    def _window(self, data: Value, header: JpegHeader, shrink: int, region: Region) -> Window:
        left, top, right, bottom = region
        data, height = first_rows(data, header, bottom * shrink)
        is_cut = height < header.height
        height, width = scaled(height, shrink), scaled(header.width, shrink)
        # A row more: PIL wants whole strides, also of a last row that begins at the region's left.
        buffer = self._buffer(4 * width * (height + 1))
        options = {"colorspace": "BGRX", "buffer": buffer, "strict": not is_cut}
        if shrink > 1:
            options |= {"min_factor": shrink, "min_height": height, "min_width": width}
        self._checked(data, (height, width), **options)
        first = 4 * (top * width + left)
        rows = buffer[first : first + 4 * width * (bottom - top)]
        # RGBX, four bytes a pixel, is the one colour mode that PIL maps without a copy. What the
        # bytes are called is nothing to it: as BGRX they are packed faster in the end.
        size = (right - left, bottom - top)
        image = pillow.image_module().frombuffer("RGBX", size, rows, "raw", "RGBX", 4 * width, 1)
        return Window(image, "BGR")

    def _checked(self, data: Value, size: tuple[int, int], **options: Any) -> Pixels:
        """Decode to a picture of this height and width. Raises ValueError for what is damaged, and
        more: ImageNet has files that Pillow takes, so it is asked."""
        out = self._decode(data, **options)
        if out.shape[:2] != size:
            raise BadImageError(f"damaged JPEG: {out.shape[:2]} pixels, its header says {size}")
        return out

    def _buffer(self, num_bytes: int) -> Pixels:
        """This thread's, whatever is in it: fresh memory costs a page fault every 4 KB."""
        buffer: Pixels | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < num_bytes:
            buffer = np.empty(num_bytes, np.uint8)
            if num_bytes <= KEPT_BYTES:
                self._local.buffer = buffer
        return buffer


class OpenCV:
    """OpenCV's imdecode, for JPEGs alone."""

    name = "opencv"

    def __init__(self) -> None:
        import cv2

        self.title = f"opencv {cv2.__version__}"
        self._cv2: Any = cv2

    def pixels(self, data: Value, header: JpegHeader) -> Pixels:
        return self._decode(data, header, 1, self._cv2.IMREAD_COLOR_RGB)

    def window(self, data: Value, header: JpegHeader, shrink: int, region: Region) -> Window:
        # Not first_rows: OpenCV writes libjpeg's warnings to stderr.
        left, top, right, bottom = region
        flag = getattr(self._cv2, f"IMREAD_REDUCED_COLOR_{shrink}", self._cv2.IMREAD_COLOR_BGR)
        pixels = self._decode(data, header, shrink, flag)[top:bottom, left:right]
        size = (right - left, bottom - top)
        rows = np.ascontiguousarray(pixels)
        return Window(
            pillow.image_module().frombuffer("RGB", size, rows, "raw", "BGR", 0, 1), "RGB"
        )

    def _decode(self, data: Value, header: JpegHeader, shrink: int, flag: int) -> Pixels:
        flag |= self._cv2.IMREAD_IGNORE_ORIENTATION
        try:
            out: Pixels | None = self._cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        except self._cv2.error as error:
            raise BadImageError(f"jpg does not decode: {error}") from error
        size = scaled(header.height, shrink), scaled(header.width, shrink)
        if out is None or out.shape[:2] != size:
            raise BadImageError("jpg does not decode: OpenCV does not say why")
        return out


class Pillow:
    """Pillow, with libjpeg's scaling by way of ``draft``."""

    name = "pillow"

    def __init__(self) -> None:
        found = pillow.version()
        if found is None:
            raise ImportError("no PIL")
        self.title = " ".join(found)

    def pixels(self, data: Value, header: JpegHeader) -> Pixels:
        return np.array(pillow.rgb(pillow.open_image(data, "jpg"), "jpg"))

    def window(self, data: Value, header: JpegHeader, shrink: int, region: Region) -> Window:
        data, height = first_rows(data, header, region[3] * shrink)
        picture = pillow.open_image(data, "jpg")
        if shrink > 1:
            picture.draft(None, (header.width // shrink, height // shrink))
        picture = pillow.rgb(picture, "jpg")
        if picture.size != (scaled(header.width, shrink), scaled(height, shrink)):
            raise BadImageError(f"damaged JPEG: {picture.size} pixels after scaling")
        return Window(pillow.crop(picture, region), "RGB")


DECODERS: dict[str, Callable[[], JpegDecoder]] = {
    "simplejpeg": SimpleJpeg,
    "opencv": OpenCV,
    "pillow": Pillow,
}
"""In the order of preference: on 300 ImageNet JPEGs, one thread, 1,044, 978 and 884 a second."""

_INSTALL = {
    "simplejpeg": "pip install simplejpeg",
    "opencv": "pip install opencv-python-headless",
    "pillow": "pip install 'shardkit[simd]' (x86-64) or 'shardkit[pillow]'",
}


@cache
def decoder(name: str) -> JpegDecoder:
    """The decoder of a name. Raises UsageError where there is none, or it is not installed."""
    if name not in DECODERS:
        known = ", ".join(["kernel, for transforms", *DECODERS])
        raise UsageError(f"backend must be one of {known}, got {name!r}")
    try:
        return DECODERS[name]()
    except ImportError as error:
        raise UsageError(f"backend {name!r} is not installed: {_INSTALL[name]}") from error


@cache
def best() -> JpegDecoder:
    """The first that is installed. Raises UsageError where none is."""
    for found in installed():
        return found
    raise UsageError(f"no picture decoder is installed: {_INSTALL['pillow']}")


def installed() -> Iterator[JpegDecoder]:
    """All that are installed, in the order of preference; each is imported when it is its turn."""
    for name in DECODERS:
        with suppress(UsageError):
            yield decoder(name)
