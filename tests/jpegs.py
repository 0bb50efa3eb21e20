"""JPEGs for the tests of decoding: pictures with edges and grain, in every layout PIL writes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

LAYOUTS: dict[str, dict[str, Any]] = {
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "grey": {"mode": "L"},
    "rgb": {"keep_rgb": True},
    "progressive": {"subsampling": 2, "progressive": True},
    "progressive-grey": {"mode": "L", "progressive": True},
    "restarts": {"subsampling": 2, "restart_marker_blocks": 3},
    "coarse": {"subsampling": 2, "quality": 20},
    "optimised": {"subsampling": 1, "quality": 98, "optimize": True},
    "440": {"factors": (1, 2), "like": "422"},
    "411": {"factors": (4, 1), "like": "420"},
    "141": {"factors": (1, 4), "like": "420"},
}
"""Name -> how :func:`jpeg` writes it: options of PIL's, or another layout with the same blocks."""


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth colours, hard edges and grain: what is out by one pixel shows."""
    rng = np.random.default_rng([width, height, seed])
    small = rng.integers(0, 256, (3 + height // 12, 3 + width // 12, 3), dtype=np.uint8)
    smooth = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.integers(-25, 26, (height, width, 3))
    return Image.fromarray((np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8))


def jpeg(width: int, height: int, layout: str = "420", seed: int = 0) -> bytes:
    options = dict(LAYOUTS[layout])
    if "like" in options:
        return relabelled(width, height, options["factors"], options["like"], seed)
    out = io.BytesIO()
    mode = options.pop("mode", "RGB")
    photo(width, height, seed).convert(mode).save(out, "JPEG", **{"quality": 90, **options})
    return out.getvalue()


def relabelled(
    width: int, height: int, factors: tuple[int, int], like: str, seed: int = 0
) -> bytes:
    """A JPEG with sampling factors that PIL does not write.

    It has the blocks of one that PIL does write, with as many blocks a unit, and as many units:
    only size and factors in the frame header change. As a picture it is a jumble, but a valid one.
    """
    across, down = {"422": (2, 1), "420": (2, 2)}[like]
    columns, rows = -(-width // (8 * factors[0])), -(-height // (8 * factors[1]))
    data = jpeg(8 * across * columns, 8 * down * rows, like, seed)
    at = data.index(b"\xff\xc0")
    frame = bytearray(data[at : at + 19])
    frame[5:9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    frame[11] = factors[0] << 4 | factors[1]
    return data[:at] + bytes(frame) + data[at + 19 :]


def three_scans(data: bytes, more: int = 0) -> bytes:
    """A grey baseline JPEG as one of three components that are all the same, a scan each.

    ``more`` repeats the last scan: a small file that takes long to decode.
    """
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    pixels = data[scan + 2 + 8 : -2]
    head = data[: frame + 2] + b"\0\x11" + data[frame + 4 : frame + 9] + b"\x03"
    head += b"".join(bytes([number, 0x11, 0]) for number in (1, 2, 3))
    scans = [
        b"\xff\xda\0\x08\x01" + bytes([number]) + b"\0\0\x3f\0" + pixels
        for number in (1, 2, 3, *[3] * more)
    ]
    return head + data[frame + 13 : scan] + b"".join(scans) + b"\xff\xd9"


def without_segment(data: bytes, marker: int) -> bytes:
    """Leave out all segments of one kind, such as 0xDB, the quantisation tables."""
    at, out = 2, data[:2]
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        out += b"" if data[at + 1] == marker else data[at:end]
        at = end
    return out + data[at:]
