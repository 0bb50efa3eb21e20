"""What a picture, a sound or a film in a column of a table is called, by what it holds."""

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
"""What a column of files may hold; ``file`` is anything."""

RAW = "bin"
"""The ending of bytes of which nothing more is known."""

_MAGIC = (
    (b"fLaC", SOUND, "flac"),
    (b"OggS", SOUND, "ogg"),
    (b"ID3", SOUND, "mp3"),
    (b".snd", SOUND, "au"),
    (b"caff", SOUND, "caf"),
    (b"%PDF-", FILE, "pdf"),
)

_FAMILIES = {
    "wav": {"wav", "wave"},
    "aiff": {"aif", "aiff", "aifc"},
    "ogg": {"ogg", "oga", "ogv", "opus", "spx"},
    "mp4": {"mp4", "m4v", "m4a", "m4b", "mov", "3gp"},
    "mkv": {"mkv", "mka"},
    "wma": {"wma", "wmv", "asf"},
}
"""Endings that files of one container may have, by the one it is called by where none is known."""

_NOT_BY_NAME = frozenset({"npy", "cls", "txt", "json", "tokens"})
"""Endings that say how a field is read, so that no file's own name may choose them."""

_ENDING = re.compile(r"[a-z0-9]{1,8}")

_MAX_PATH, _MAX_PART = 1000, 200
"""Bytes of a path that is kept, and of each name in it; systems take 255 of those."""


def sniff(head: bytes) -> tuple[str, str] | None:
    """(what it is, its ending) of a file that begins with ``head``; None if that is not known."""
    if (picture := image_field(head)) is not None:
        return PICTURE, picture
    for magic, kind, ending in _MAGIC:
        if head.startswith(magic):
            return kind, ending
    if head[:4] == b"RIFF":
        return {b"WAVE": (SOUND, "wav"), b"AVI ": (FILM, "avi")}.get(head[8:12])
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return SOUND, "aiff"
    if head[4:8] == b"ftyp":
        return (SOUND, "m4a") if head[8:11] in (b"M4A", b"M4B") else (FILM, "mp4")
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return FILM, "webm" if b"webm" in head else "mkv"
    if head[:8] == b"\x30\x26\xb2\x75\x8e\x66\xcf\x11":
        return SOUND, "wma"
    return _mpeg_sound(head)


def _mpeg_sound(head: bytes) -> tuple[str, str] | None:
    """A frame of MPEG sound: eleven bits that are set, and a layer; none is ADTS, which is AAC."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return None
    is_frame = head[1] & 0x18 != 0x08 and head[2] & 0xF0 != 0xF0 and head[2] & 0x0C != 0x0C
    layer = head[1] & 0x06
    if layer == 0x02 and is_frame:
        return SOUND, "mp3"
    return (SOUND, "aac") if head[1] & 0xF6 == 0xF0 else None


def ending_of(head: bytes, path: str | None) -> str:
    """What a file's name ends in, lower case without a dot: by what it holds, or, where several
    endings are used for that, or nothing is known of it, as its ``path`` ends; else ``bin``."""
    named = _named_ending(path)
    found = sniff(head)
    if found is None:
        return named or RAW
    family = next((own for own in _FAMILIES.values() if found[1] in own), {found[1]})
    return named if named in family else found[1]


def _named_ending(path: str | None) -> str:
    stem, _, ending = (path or "").rpartition("/")[2].rpartition(".")
    ending = ending.lower()
    is_one = stem and _ENDING.fullmatch(ending) and ending not in _NOT_BY_NAME
    return ending if is_one else ""


def kept_name(path: str | None) -> str | None:
    """The path under which ``unpack`` writes a value that a table has a path for.

    A relative one as it is, of an absolute one or an address the last part, since the folders
    before it are those of some machine. None if there is none, or no system would take it.
    """
    if not path:
        return None
    parts = path.split("/")
    if not parts[0] or "://" in path or "" in parts:
        parts = parts[-1:]
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    bad = any(part in (b"", b".", b"..") or b"\0" in part for part in encoded)
    if bad or max(map(len, encoded)) > _MAX_PART or sum(map(len, encoded)) > _MAX_PATH:
        return None
    return "/".join(parts)
