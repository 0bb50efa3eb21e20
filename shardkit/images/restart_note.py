"""The segment that says which restart markers are ours: how a JPEG was before they were added."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shardkit.errors import BadImageError
from shardkit.images.markers import APP10, Segment
from shardkit.samples.sample import Value

_NAME = b"shardkit\0"
_VERSION = 1
_FIXED = struct.Struct(">9sBIIBH")


@dataclass(frozen=True, slots=True)
class Note:
    """What our segment says.

    Attributes:
        checksum: CRC-32 of the original file.
        frame: the code of its frame header; 0 if nothing but this segment was put in.
        interval: a progressive original's restart interval, in MCUs; else 0.
        script: its scans, 4 bytes each: components as bits, first and last coefficient, Ah and Al.
        inserted: bytes that were put in, from this segment's first on.
    """

    checksum: int
    frame: int = 0
    interval: int = 0
    script: bytes = b""
    inserted: int = 0


def write_note(note: Note, following: bytes = b"") -> bytes:
    """The segment, and what is put in behind it; ``inserted`` is counted here."""
    size = 2 + _FIXED.size + len(note.script)
    inserted = 2 + size + len(following)
    fields = (_NAME, _VERSION, inserted, note.checksum, note.frame, note.interval)
    head = struct.pack(">BBH", 0xFF, APP10, size)
    return head + _FIXED.pack(*fields) + note.script + following


def read_note(jpeg: Value, segment: Segment) -> Note:
    """What one of our segments says.

    Raises:
        BadImageError: it is cut off, or of another version.
    """
    payload = segment.payload(jpeg)
    if len(payload) < _FIXED.size or (len(payload) - _FIXED.size) % 4:
        raise damaged(f"its note has {len(payload)} bytes, expected {_FIXED.size} or 4 a scan more")
    _, version, inserted, checksum, frame, interval = _FIXED.unpack_from(payload)
    if version != _VERSION:
        raise BadImageError(
            f"a JPEG with restart markers of shardkit's version {version}, expected {_VERSION}: "
            "it is damaged, or a newer shardkit wrote it and can give the original back"
        )
    return Note(checksum, frame, interval, payload[_FIXED.size :], inserted)


def find_note(jpeg: Value, found: list[Segment]) -> int | None:
    """Which of these segments is the last one of ours; ``None`` if none is."""
    for place in reversed(range(len(found))):
        start = found[place].start + 4
        is_ours = bytes(jpeg[start : start + len(_NAME)]) == _NAME
        if found[place].code == APP10 and is_ours:
            return place
    return None


def damaged(what: str) -> BadImageError:
    """An error for what does not add up."""
    return BadImageError(
        f"a JPEG to which shardkit added restart markers is damaged: {what}; the original cannot "
        "be given back"
    )
