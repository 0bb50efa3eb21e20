"""What a JPEG says before its pixels: size, layout, orientation; and a shorter picture of it.

ITU T.81: https://www.w3.org/Graphics/JPEG/itu-t81.pdf. Walking the markers costs 3 us a picture.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardkit.errors import BadImageError
from shardkit.samples.sample import Value

EOI = b"\xff\xd9"

MAX_STRAY_BYTES = 65_536
"""Between markers, of a file's header."""

_NOT_FRAMES = frozenset({0xC4, 0xC8, 0xCC})
"""Markers C0 to CF begin a frame, but for these: Huffman tables, reserved, arithmetic tables."""

_SEQUENTIAL = frozenset({0xC0, 0xC1})
_SOS, _APP1 = 0xDA, 0xE1
_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """Of the first frame.

    Attributes:
        width, height: in pixels, as stored (before any turn that ``orientation`` asks for).
        components: 1 greyscale, 3 colour, 4 CMYK or YCCK.
        bits: a component, nearly always 8.
        is_one_scan: not progressive, and all components come in one scan from top to bottom.
        is_whole: the last bytes end the picture: it is not cut off, and nothing follows.
        orientation: EXIF's, 1 to 8.
        frame: offset of the frame's height in the file.
    """

    width: int
    height: int
    components: int
    bits: int
    is_one_scan: bool
    is_whole: bool
    orientation: int
    frame: int


def read_header(data: Value) -> JpegHeader:
    """Read the markers up to the first scan.

    Raises:
        BadImageError: it is no JPEG, or cut off before its first scan.
    """
    at, size, orientation = 2, len(data), 1
    frame = kind = stray = 0
    while at + 4 <= size:
        marker = data[at + 1]
        # Fill bytes may stand before a marker; others should not, but libjpeg passes over them.
        if data[at] != 0xFF or marker in (0x00, 0xFF):
            at += 1
            stray += 1
            if stray > MAX_STRAY_BYTES:
                raise BadImageError(f"damaged JPEG: no marker before byte {at}")
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # these stand alone, without a length
            at += 2
            continue
        length = data[at + 2] << 8 | data[at + 3]
        if marker == _SOS:
            return _header(data, frame, kind, at, orientation)
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_FRAMES:
            frame, kind = at + 5, marker
        elif marker == _APP1 and orientation == 1:
            orientation = _exif_orientation(bytes(data[at + 4 : at + 2 + length]))
        at += 2 + length
    raise BadImageError("damaged JPEG: it ends before its first scan")


def _header(data: Value, frame: int, kind: int, scan: int, orientation: int) -> JpegHeader:
    if not frame or scan + 5 > len(data):
        raise BadImageError("damaged JPEG: a scan without a frame")
    height = data[frame] << 8 | data[frame + 1]
    width = data[frame + 2] << 8 | data[frame + 3]
    if not width or not height:
        raise BadImageError(f"damaged JPEG: {width} x {height} pixels")
    components = data[frame + 4]
    return JpegHeader(
        width=width,
        height=height,
        components=components,
        bits=data[frame - 1],
        is_one_scan=kind in _SEQUENTIAL and data[scan + 4] == components,
        is_whole=data[-2:] == EOI,
        orientation=orientation,
        frame=frame,
    )


def _exif_orientation(segment: bytes) -> int:
    """Of an APP1 segment; 1 (upright) where it says none, or none that exists."""
    if segment[:6] != b"Exif\0\0" or segment[6:8] not in (b"II", b"MM"):
        return 1
    tiff = segment[6:]
    order = "little" if tiff[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)  # type: ignore[arg-type]

    first = number(4, 4)
    for entry in range(first + 2, min(first + 2 + 12 * number(first, 2), len(tiff) - 11), 12):
        if number(entry, 2) == _ORIENTATION:
            value = number(entry + 8, 2)
            return value if 1 <= value <= 8 else 1
    return 1


def first_rows(data: Value, header: JpegHeader, rows: int) -> tuple[Value, int]:
    """A JPEG whose first ``rows`` rows are this one's, to the bit, and its height.

    A copy whose frame says that it is less high: decoders stop there, and take the less time for
    it. ``data`` itself where that does not work (progressive, or not whole) or gains nothing.
    libjpeg warns of the bytes left over, so decode it without strictness. Rows beyond ``rows`` are
    not to be used: at its lower edge a decoder makes up the colour of the rows below.
    """
    # Interpolating colour takes one row more; 8 is the tallest step of a scaled decode.
    height = rows + 16
    if not header.is_one_scan or not header.is_whole or height >= header.height:
        return data, header.height
    copy = bytearray(data)
    copy[header.frame : header.frame + 2] = height.to_bytes(2, "big")
    return memoryview(copy), height
