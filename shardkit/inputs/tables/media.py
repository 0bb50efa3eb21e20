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
        (b"ID3", SOUND, "mp3"),
        (b"RIFF....WAVE", SOUND, "wav"),
        (b"RIFF....AVI ", FILM, "avi"),
        (b"FORM....AIF[FC]", SOUND, "aiff"),
        (b"....ftypM4[AB]", SOUND, "m4a"),
        (b"....ftyp", FILM, "mp4"),
        (b"\x1a\x45\xdf\xa3.*webm", FILM, "webm"),
        (b"\x1a\x45\xdf\xa3", FILM, "mkv"),
        (b"\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", SOUND, "mp3"),  # a frame of layer III of MPEG
        (b"\xff[\xf0\xf1\xf8\xf9]", SOUND, "aac"),
    )
]
"""Patterns of the first bytes, what the file is, and its ending."""

_FAMILIES = (
    {"wav", "wave"},
    {"aif", "aiff", "aifc"},
    {"ogg", "oga", "ogv", "opus", "spx"},
    {"mp4", "m4v", "m4a", "m4b", "mov", "3gp"},
    {"mkv", "mka"},
)
"""Endings that files of one container may have."""

_RESERVED = frozenset({"npy", "cls", "txt", "json", "tokens"})
"""Endings that say how a field is read, so that no file's own name may choose them."""


def sniff(head: bytes) -> tuple[str, str] | None:
    """Return what a file that begins with ``head`` is, and its ending; None if that is unknown."""
    if (picture := image_field(head)) is not None:
        return PICTURE, picture
    return next(((kind, end) for magic, kind, end in _MAGIC if magic.match(head)), None)


def ending_of(head: bytes, path: str | None) -> str:
    """Return a file's ending, lower case without a dot: by its content; else, or if several endings
    are used for that content, as its ``path`` ends; else ``bin``."""
    stem, _, named = (path or "").lower().rpartition("/")[2].rpartition(".")
    if not stem or not re.fullmatch("[a-z0-9]{1,8}", named) or named in _RESERVED:
        named = ""
    found = sniff(head)
    if found is None:
        return named or RAW
    is_one = any({found[1], named} <= family for family in _FAMILIES)
    return named if is_one else found[1]


def kept_name(path: str | None) -> str | None:
    """Return the path under which ``unpack`` writes a value that a table has a path for: a relative
    path; of an absolute one or a URL the last part. None if there is none, or it is no valid
    name."""
    parts = (path or "").split("/")
    parts = parts[-1:] if "" in parts else parts
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in parts]
    is_long = max(sizes) > 200 or sum(sizes) > 1000  # file systems take names of 255 bytes
    is_bad = is_long or not {"", ".", ".."}.isdisjoint(parts) or "\0" in "/".join(parts)
    return None if is_bad else "/".join(parts)
