"""What a picture loses when it is written anew: told from its header, and put into words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardkit.images import pillow
from shardkit.samples.sample import Value

DEPTH, ALPHA, FRAMES, CMYK, PALETTE, TURN = "depth", "alpha", "frames", "cmyk", "palette", "turn"

_WORDS = {
    DEPTH: "from more than 8 bits a channel to 8",
    ALPHA: "without their transparency",
    FRAMES: "of several frames or pages to the first",
    CMYK: "from CMYK to RGB",
    PALETTE: "from numbers of a palette to their colours",
    TURN: "turned as EXIF says, and without it",
}

_WITH_ALPHA = frozenset({"LA", "PA", "RGBA", "La", "RGBa"})
_DEEP = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})

_PNG_BITS = 24
"""Where a PNG says how many bits a channel has: in its first chunk, which is of one length."""

_BITS_PER_SAMPLE = 258
_CODESTREAM, _SSIZ = b"\xff\x4f\xff\x51", 42
"""How a JPEG 2000 picture begins, and how far behind that the bits of its first channel stand."""

_AV1_SETTINGS, _HIGH_BITDEPTH = b"av1C", 0x40


def losses(image: Any, value: Value, kind: str, wanted: str, turn: int) -> Iterator[str]:
    """What is lost of a picture of which Pillow has read the header, and nothing else, if it
    becomes ``wanted``; ``turn`` is its EXIF orientation."""
    if _is_deep(image, value, kind):
        yield DEPTH
    if has_alpha(image) and wanted in ("jpg", "npy"):
        yield ALPHA
    if _has_several(image, value, kind):
        yield FRAMES
    if image.mode == "CMYK":
        yield CMYK
    if image.mode == "P" and kind != "gif":  # whose numbers mean nothing
        yield PALETTE
    if turn != 1:
        yield TURN


def told(counts: Mapping[str, int]) -> str:
    """``{"depth": 3}`` -> ``"3 from more than 8 bits a channel to 8"``; ``""`` if all are 0."""
    return ", ".join(
        f"{counts[name]:,} {words}" for name, words in _WORDS.items() if counts.get(name)
    )


def has_alpha(image: Any) -> bool:
    return "transparency" in image.info or image.mode in _WITH_ALPHA


def _is_deep(image: Any, value: Value, kind: str) -> bool:
    """Whether a channel has more than 8 bits; Pillow makes 8 of most such pictures as it reads."""
    if image.mode in _DEEP:
        return True
    if kind == "png":
        return value[_PNG_BITS] > 8
    if kind == "tif":
        return bool(max(image.tag_v2.get(_BITS_PER_SAMPLE, (8,))) > 8)
    if kind in ("pgm", "ppm"):
        largest = image.tile[0].args[-1]
        return isinstance(largest, int) and largest > 255
    if kind in ("jp2", "j2k"):
        return (_byte_after(value, _CODESTREAM, _SSIZ) & 0x7F) + 1 > 8
    return kind == "avif" and bool(_byte_after(value, _AV1_SETTINGS, 6) & _HIGH_BITDEPTH)


def _byte_after(value: Value, magic: bytes, offset: int) -> int:
    """The byte so far behind the beginning of ``magic``; 0 where there is none."""
    found = bytes(value).find(magic)
    at = found + offset
    return value[at] if found >= 0 and at < len(value) else 0


def _has_several(image: Any, value: Value, kind: str) -> bool:
    """Frames of an animation, or pages. To look for those of a GIF moves it on: another one is
    opened for that."""
    asked = pillow.open_image(value, kind) if kind == "gif" else image
    return bool(getattr(asked, "is_animated", False))
