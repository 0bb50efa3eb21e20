"""Pictures of every kind that a folder may hold, made here; for the tests of decoding."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image, features

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def natural(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with detail of every size, as photographs have it; colours vary more slowly."""
    random = np.random.default_rng(seed)
    total = np.zeros((height, width, 3), np.float32)
    cells, weight = 2, 60.0
    while cells <= max(width, height):
        for channel in range(3 if cells < 32 else 1):
            coarse = Image.fromarray(random.standard_normal((cells, cells), np.float32))
            grown = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
            part = total[..., channel] if cells < 32 else total
            part += weight * (grown if cells < 32 else grown[..., None])
        cells, weight = cells * 4, weight * 0.6
    return Image.fromarray(np.clip(total + 128, 0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def jpeg(width: int = 61, height: int = 43, seed: int = 0, **options: Any) -> bytes:
    return encode(natural(width, height, seed), "JPEG", **({"quality": 90} | options))


def sampled(subsampling: str, width: int = 61, height: int = 43) -> bytes:
    """A JPEG whose colour has fewer pixels than its light."""
    pixels = np.asarray(natural(width, height)).copy()
    return bytes(simplejpeg.encode_jpeg(pixels, 90, colorsubsampling=subsampling))


def four_channels(subsampling: str) -> bytes:
    """TurboJPEG writes CMYK as YCCK, and Adobe's mark that says so."""
    pixels = np.dstack([np.asarray(natural(61, 43)), np.asarray(natural(61, 43, 5).convert("L"))])
    return bytes(
        simplejpeg.encode_jpeg(pixels.copy(), 90, colorspace="CMYK", colorsubsampling=subsampling)
    )


def png16(colour: int) -> tuple[bytes, Pixels]:
    """A PNG of 16 bits, grey (0) or RGB (2), and its upper 8 bits as RGB."""
    channels = {0: 1, 2: 3}[colour]
    values = np.random.default_rng(0).integers(0, 2**16, (9, 7, channels), np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    data = b"\x89PNG\r\n\x1a\n" + _chunk(
        b"IHDR", struct.pack(">IIBBBBB", 7, 9, 16, colour, 0, 0, 0)
    )
    data += _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    high = (values >> 8).astype(np.uint8)
    return data, np.broadcast_to(high, (9, 7, 3))


def png_header(width: int, height: int) -> bytes:
    """The start of a PNG of that size; no pixels follow."""
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", size) + _chunk(b"IDAT", b"x")


def _chunk(kind: bytes, data: bytes) -> bytes:
    crc = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + crc


def resized_frame(data: bytes, width: int, height: int) -> bytes:
    """A JPEG that claims another size."""
    at = next(data.index(mark) for mark in (b"\xff\xc0", b"\xff\xc2") if mark in data)
    return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]


def _palette(**options: Any) -> bytes:
    return encode(natural(31, 17).quantize(40), "PNG", **options)


def _alpha(mode: str) -> Image.Image:
    image = natural(31, 17).convert(mode)
    image.putalpha(natural(31, 17, 3).convert("L"))
    return image


JPEGS: dict[str, Callable[[], bytes]] = {
    "grey": lambda: encode(natural(61, 43).convert("L")),
    "4:4:4": lambda: sampled("444"),
    "4:2:2": lambda: sampled("422"),
    "4:2:0": lambda: sampled("420"),
    "4:4:0": lambda: sampled("440"),
    "4:1:1": lambda: sampled("411"),
    "rgb": lambda: jpeg(keep_rgb=True),
    "progressive": lambda: jpeg(progressive=True),
    "grey progressive": lambda: encode(natural(61, 43).convert("L"), progressive=True),
    "restarts": lambda: jpeg(restart_marker_rows=1),
    "optimised": lambda: jpeg(optimize=True, quality=30),
    "1 x 1": lambda: jpeg(1, 1),
    "1 x 5000": lambda: jpeg(1, 5000),
    "5000 x 1": lambda: jpeg(5000, 1),
    "8 x 8": lambda: jpeg(8, 8),
    "something behind": lambda: jpeg() + b"\0\1\2" * 50,
    "bytes too many": lambda: jpeg()[:-2] + b"\0\0\0\1\2" + jpeg()[-2:],
    "a thumbnail": lambda: jpeg(exif=_with_thumbnail()),
}

OTHERS: dict[str, Callable[[], bytes]] = {
    "CMYK jpg": lambda: encode(natural(61, 43).convert("CMYK")),
    "YCCK jpg": lambda: four_channels("444"),
    "YCCK 4:2:0 jpg": lambda: four_channels("420"),
    "RGB png": lambda: encode(natural(31, 17), "PNG"),
    "interlaced 1 bit png": lambda: encode(natural(31, 17).convert("1"), "PNG"),
    "grey png": lambda: encode(natural(31, 17).convert("L"), "PNG"),
    "grey alpha png": lambda: encode(_alpha("LA"), "PNG"),
    "RGBA png": lambda: encode(_alpha("RGBA"), "PNG"),
    "palette png": _palette,
    "palette png, one colour clear": lambda: _palette(transparency=3),
    "palette png, alpha a colour": lambda: _palette(transparency=bytes(range(0, 200, 5))),
    "RGB png, one colour clear": lambda: encode(natural(31, 17), "PNG", transparency=(1, 2, 3)),
    "gif": lambda: encode(natural(31, 17).quantize(40), "GIF", transparency=2),
    "bmp": lambda: encode(natural(31, 17), "BMP"),
    "tif": lambda: encode(natural(31, 17), "TIFF"),
    "CMYK tif": lambda: encode(natural(31, 17).convert("CMYK"), "TIFF"),
    "ppm": lambda: encode(natural(31, 17), "PPM"),
    "pgm": lambda: encode(natural(31, 17).convert("L"), "PPM"),
    "1 x 1 png": lambda: encode(natural(1, 1), "PNG"),
    "1 x 5000 png": lambda: encode(natural(1, 5000), "PNG"),
}
if features.check("webp"):
    OTHERS["webp"] = lambda: encode(_alpha("RGBA"), "WEBP", lossless=True)

ODD = JPEGS | OTHERS


def _with_thumbnail() -> bytes:
    """EXIF that holds a JPEG, with an end of its own: a reader must not stop there."""
    body = b"II*\0" + struct.pack("<IH", 8, 0) + struct.pack("<I", 0) + jpeg(8, 8)
    return b"Exif\0\0" + body


def exif(orientation: int, order: str = "<") -> bytes:
    """An APP1 segment's body that says nothing but an orientation."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + mark + struct.pack(f"{order}IH", 8, 1) + entry + bytes(4)
