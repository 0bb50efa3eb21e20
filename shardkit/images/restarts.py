"""Restart markers for JPEGs, added without loss and taken away without trace.

Huffman codes can only be read from the front, so a decoder that wants a part of a picture reads
nearly all of it. At a restart marker (ITU T.81, B.2.4.4) everything starts anew: there a part can
be cut out.

Only the entropy-coded data change, and the Huffman tables with them: all coefficients stay, hence
all pixels. The other bytes of the file are kept as they are, and a segment of ours says what was
put in, so that :func:`remove_restarts` gives the original, byte for byte. A progressive JPEG
becomes a baseline one likewise. ``formats.md`` specifies the stored form.
"""

from __future__ import annotations

import zlib
from enum import StrEnum

from shardkit.errors import BadImageError
from shardkit.images.markers import (
    DHT,
    DRI,
    EOI,
    SOF_BASELINE,
    SOF_EXTENDED,
    SOF_PROGRESSIVE,
    SOS,
    FrameHeader,
    Segment,
    end_of_scan,
    find_frame,
    is_jpeg,
    marker_at,
    read_frame,
    restart_interval,
    segments,
)
from shardkit.images.recode import MAX_SCANS, Recoded, recode, require, why_not
from shardkit.images.restart_note import Note, damaged, find_note, read_note, write_note
from shardkit.samples.sample import Value

__all__ = [
    "INTERVAL",
    "Outcome",
    "add_restarts",
    "annotate",
    "has_restarts",
    "interval_of",
    "remove_restarts",
    "require",
    "why_not",
]

INTERVAL = 6
"""Between restart markers, in MCUs of 16 pixels across, as photos mostly have; see
:func:`interval_of`."""

LEAST_BYTES = 8192
"""Of a scan. Reading 8 KB of codes takes some 60 us, and our tables and note take 0.3 KB."""

LEAST_BYTES_BETWEEN = 100
"""Restart markers. Each costs some 4 bytes, padding and the whole DC value included: flat
pictures, as of documents, would grow by much more than they gain."""


class Outcome(StrEnum):
    """What became of a JPEG."""

    ADDED = "added"
    """Rewritten; removing gives the original byte for byte, which was tried."""
    NOTED = "noted"
    """A note of ours stands in it: gets another, which says that nothing else was put in."""
    SMALL = "small"
    """Too small to gain anything: left as it is."""
    HAS_OWN = "own"
    """Has restart markers already, as close as ours or closer: left as it is."""
    UNSUITED = "unsuited"
    """No 8-bit grey or colour Huffman JPEG, or too large to decode: left as it is."""
    UNLIKE = "unlike"
    """Would not come back byte for byte: left as it is."""
    BROKEN = "broken"
    """Damaged or cut off, or libjpeg warns: left as it is."""


# --- adding --------------------------------------------------------------------------------


class _LeftError(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def add_restarts(jpeg: Value) -> tuple[Value, Outcome]:
    """A JPEG with restart markers, and the same pixels; or ``jpeg`` itself, and why not.

    ``remove_restarts(add_restarts(jpeg)[0])`` is ``jpeg``, whatever that is. So one in which a
    note of ours stands already, as in a file that was taken from a dataset, gets another.

    Raises:
        UsageError: the compiled module is not there.
    """
    require()
    if has_restarts(jpeg):
        return annotate(jpeg), Outcome.NOTED
    try:
        made = _rewrite(jpeg)
        if remove_restarts(made) != jpeg:
            return jpeg, Outcome.UNLIKE
    except _LeftError as left:
        return jpeg, left.outcome
    except BadImageError:
        return jpeg, Outcome.UNLIKE
    return made, Outcome.ADDED


def interval_of(frame: FrameHeader) -> int:
    """The interval that we write, in MCUs: as wide in pixels, whatever the MCU.

    A pixel of grey has fewer bytes, so there it is twice as wide. It need not divide the row.
    """
    return -(-INTERVAL * 16 // frame.unit[0]) * (2 if len(frame.ids) == 1 else 1)


def annotate(jpeg: Value) -> bytes:
    """Put one more note into a JPEG; :func:`remove_restarts` takes that away and nothing else."""
    found = segments(jpeg)
    at = found[-1].start if found[-1].code == SOS else found[-1].end
    return b"".join([jpeg[:at], write_note(Note(zlib.crc32(jpeg))), jpeg[at:]])


def _rewrite(jpeg: Value) -> bytes:
    head = segments(jpeg)
    frame = _check_kind(jpeg, head)
    own, script, end = restart_interval(jpeg, head), b"", end_of_scan(jpeg, head[-1].end)
    if frame.code == SOF_PROGRESSIVE:
        script, end = _read_script(jpeg, frame, head[-1])
    interval = _check_scans(jpeg, head[-1], end, frame, 0 if script else own)
    status, made = recode(jpeg, interval=interval)
    if status != Recoded.OK:
        raise _LeftError(_LEFT[status])
    note = Note(zlib.crc32(jpeg), frame.code, own if script else 0, script)
    return _join(jpeg, head, end, made, note)


_LEFT = {
    Recoded.UNLIKE: Outcome.UNLIKE,
    Recoded.BROKEN: Outcome.BROKEN,
    Recoded.TOO_LARGE: Outcome.UNSUITED,
}


def _check_kind(jpeg: Value, head: list[Segment]) -> FrameHeader:
    if not is_jpeg(jpeg):
        raise _LeftError(Outcome.UNSUITED)
    frame = read_frame(jpeg, head)
    if frame is None:
        raise _LeftError(Outcome.BROKEN)
    is_huffman = frame.code in (SOF_BASELINE, SOF_EXTENDED, SOF_PROGRESSIVE)
    if not is_huffman or frame.bits != 8 or len(frame.ids) not in (1, 3):
        raise _LeftError(Outcome.UNSUITED)
    if head[-1].code != SOS:
        raise _LeftError(Outcome.BROKEN)
    return frame


def _check_scans(jpeg: Value, first: Segment, end: int, frame: FrameHeader, own: int) -> int:
    """The interval to write, if they are worth it; ``own``: that of a baseline JPEG."""
    interval = interval_of(frame)
    if end < 0:
        raise _LeftError(Outcome.BROKEN)
    if marker_at(jpeg, end) != EOI:  # another scan of a baseline JPEG, or something between them
        raise _LeftError(Outcome.UNLIKE if marker_at(jpeg, end) else Outcome.BROKEN)
    if 0 < own <= interval:
        raise _LeftError(Outcome.HAS_OWN)
    least = max(LEAST_BYTES, LEAST_BYTES_BETWEEN * (frame.units // interval))
    if end - first.end < least:
        raise _LeftError(Outcome.SMALL)
    return interval


def _read_script(jpeg: Value, frame: FrameHeader, scan: Segment) -> tuple[bytes, int]:
    """All scans, as a note holds them, and where the last one ends; -1 if it does not."""
    script, bits = b"", {number: 1 << place for place, number in enumerate(frame.ids)}
    while True:
        count, *said = scan.payload(jpeg) or b"\0"
        numbers = set(said[: 2 * count : 2])
        if len(said) != 2 * count + 3 or not bits.keys() >= numbers:
            raise _LeftError(Outcome.BROKEN)
        script += bytes([sum(bits[number] for number in numbers), *said[-3:]])
        if len(script) > 4 * MAX_SCANS:
            raise _LeftError(Outcome.UNSUITED)
        end = end_of_scan(jpeg, scan.end)
        found = segments(jpeg, end) if end >= 0 else []
        if not found or found[-1].code != SOS:
            return script, end
        scan = found[-1]


def _join(jpeg: Value, head: list[Segment], end: int, made: bytes, note: Note) -> bytes:
    """The original's bytes around the tables and the scan that were made."""
    parts, scan = segments(made), head[-1]
    made_frame, made_scan = find_frame(parts), parts[-1]
    tables, data = made[made_frame.end : made_scan.start], made[made_scan.end : -2]
    if not note.script:
        kept = jpeg[: scan.start], write_note(note, tables), jpeg[scan.start : scan.end]
        return b"".join([*kept, data, jpeg[end:]])
    header = _with_frame(jpeg, find_frame(head), made_frame.code)
    tables = made[made_frame.end : made_scan.end]
    return b"".join([header, write_note(note, tables), data, jpeg[end:]])


def _with_frame(jpeg: Value, frame: Segment, code: int) -> bytes:
    """All up to the end of the frame header, which is called by another code."""
    return bytes(jpeg[: frame.start + 1]) + bytes([code]) + bytes(jpeg[frame.start + 2 : frame.end])


# --- removing ------------------------------------------------------------------------------


def has_restarts(jpeg: Value) -> bool:
    """Does a note of ours stand in it, so that :func:`remove_restarts` would undo something?"""
    return is_jpeg(jpeg) and find_note(jpeg, segments(jpeg)) is not None


def remove_restarts(jpeg: Value) -> Value:
    """The original of what :func:`add_restarts` gave: ``jpeg`` itself, if no note stands in it.

    Raises:
        BadImageError: it is damaged.
        UsageError: the compiled module is not there.
    """
    found = segments(jpeg) if is_jpeg(jpeg) else []
    place = find_note(jpeg, found)
    if place is None:
        return jpeg
    note = read_note(jpeg, found[place])
    original = _undo(jpeg, note, found, place)
    if zlib.crc32(original) != note.checksum:
        raise damaged("its checksum is not the original's")
    return original


def _undo(jpeg: Value, note: Note, found: list[Segment], place: int) -> bytes:
    ours, scan = found[place], found[-1]
    behind = ours.start + note.inserted
    if not note.frame:
        if behind != ours.end:
            raise damaged("its note says that more was put in than itself")
        return b"".join([jpeg[: ours.start], jpeg[behind:]])
    tables, end = found[place + 1 : -1], end_of_scan(jpeg, scan.end)
    if scan.code != SOS or end < 0 or any(table.code not in (DHT, DRI) for table in tables):
        raise damaged("its note does not stand before the scan's tables")
    if behind != (scan.end if note.script else scan.start):
        raise damaged("its note and its tables are not as long as they say")
    if note.script:
        return _progressive(jpeg, note, found[place - 1], end)
    header = b"".join([jpeg[: ours.start], jpeg[scan.start : scan.end]])
    made = _made(recode(jpeg, header=header))
    return b"".join([header, made[segments(made)[-1].end : -2], jpeg[end:]])


def _progressive(jpeg: Value, note: Note, frame: Segment, end: int) -> bytes:
    made = _made(recode(jpeg, script=note.script, interval=note.interval))
    scans = made[find_frame(segments(made)).end : -2]
    return b"".join([_with_frame(jpeg, frame, note.frame), scans, jpeg[end:]])


def _made(recoded: tuple[Recoded, bytes]) -> bytes:
    status, made = recoded
    if status != Recoded.OK:
        raise damaged("too large" if status == Recoded.TOO_LARGE else "libjpeg refuses it")
    return made
