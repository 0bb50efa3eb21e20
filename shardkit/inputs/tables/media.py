"""The ending of an image, audio or video in a column of a table, by its content."""

from __future__ import annotations

import re
from typing import Final

from shardkit.images.sniff import image_field

HEAD_BYTES = 64
"""Bytes of a value that are looked at."""

PICTURE: Final = "picture"
SOUND: Final = "sound"
FILM: Final = "film"
FILE: Final = "file"
"""Contents of a column of files; ``file`` is anything."""

RAW = "bin"
"""The ending of bytes of which nothing more is known."""

_MAGIC = [
    (re.compile(magic, re.DOTALL), kind, ending)
    for magic, kind, ending in (
        (b"fLaC", SOUND, "flac"),
        (b"OggS", SOUND, "ogg"),
        (b"RIFF....WAVE", SOUND, "wav"),
        (b"....ftypM4[AB]", SOUND, "m4a"),
        (b"....ftypqt", FILM, "mov"),
        (b"....ftyp", FILM, "mp4"),
        (b"\x1a\x45\xdf\xa3.*webm", FILM, "webm"),
        (b"\x1a\x45\xdf\xa3", FILM, "mkv"),
        (b"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", SOUND, "mp3"),  # a frame of layer III of MPEG
    )
]
"""Patterns of the first bytes, what the file is, and its ending."""

_RESERVED = frozenset({"npy", "cls", "txt", "json", "tokens"})
"""Endings that say how a field is read, so that no file's own name may choose them."""


def sniff(head: bytes) -> tuple[str, str] | None:
    """Return what a file that begins with ``head`` is, and its ending; None if that is unknown."""
    if (picture := image_field(head)) is not None:
        return PICTURE, picture
    return next(((kind, end) for magic, kind, end in _MAGIC if magic.match(head)), None)


def ending_of(head: bytes, path: str | None) -> str:
    """Return a file's ending, lower case without a dot: by its content, else as its ``path`` ends,
    else ``bin``."""
    if (found := sniff(head)) is not None:
        return found[1]
    stem, _, named = (kept_name(path) or "").lower().rpartition(".")
    is_good = stem and re.fullmatch("[a-z0-9]{1,8}", named) and named not in _RESERVED
    return named if is_good else RAW


def kept_name(path: str | None) -> str | None:
    """Return the name under which ``unpack`` writes a value that a table has a path or a URL for:
    its last part. None if there is none, or it is no valid name."""
    name = (path or "").rpartition("/")[2]
    is_long = len(name.encode("utf-8", "surrogatepass")) > 200  # file systems take 255 bytes
    return None if is_long or name in ("", ".", "..") or "\0" in name else name
