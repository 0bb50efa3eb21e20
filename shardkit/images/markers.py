"""The markers of a JPEG: where its segments lie, and what its frame header says.

Nothing is decoded here. What does not add up ends the list of segments, as a reader would stop.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from math import prod

from shardkit.samples.sample import Value

SOF_BASELINE, SOF_EXTENDED, SOF_PROGRESSIVE = 0xC0, 0xC1, 0xC2
DHT, EOI, SOS, DRI, APP10 = 0xC4, 0xD9, 0xDA, 0xDD, 0xEA
"""Codes of markers, by the names that the standard (ITU T.81, table B.1) gives them."""

_FRAMES = frozenset(range(0xC0, 0xD0)) - {DHT, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x00, 0x01, *range(0xD0, 0xDA), 0xFF])

_END_OF_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7]")
"""A marker that is no restart marker: in a scan's data, 0xFF is followed by a 0."""


@dataclass(frozen=True, slots=True)
class Segment:
    """From the 0xFF of its marker to the byte behind its last."""

    code: int
    start: int
    end: int

    def payload(self, jpeg: Value) -> bytes:
        """What stands behind its length."""
        return bytes(jpeg[self.start + 4 : self.end])


def is_jpeg(value: Value) -> bool:
    """Does it begin as one?"""
    return bytes(value[:3]) == b"\xff\xd8\xff"


def segments(jpeg: Value, at: int = 2) -> list[Segment]:
    """Those from ``at`` up to the next scan's header, or as far as they are sound."""
    found: list[Segment] = []
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF:
        code = jpeg[at + 1]
        if code == 0xFF:  # padding
            at += 1
            continue
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        if code in _WITHOUT_LENGTH or not at + 4 <= end <= len(jpeg):
            break
        found.append(Segment(code, at, end))
        if code == SOS:
            break
        at = end
    return found


def end_of_scan(jpeg: Value, start: int) -> int:
    """Where the first marker behind a scan's data begins, padding included; -1 if none does."""
    found = _END_OF_SCAN.search(jpeg, start)
    return found.start() if found else -1


def marker_at(jpeg: Value, at: int) -> int:
    """The code of the marker there, behind its padding; 0 if the data end."""
    while at < len(jpeg) and jpeg[at] == 0xFF:
        at += 1
    return jpeg[at] if at < len(jpeg) else 0


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What a frame header says.

    Attributes:
        factors: (across, down) of each component: its blocks in a minimum coded unit.
        ids: what scans call the components.
    """

    code: int
    bits: int
    width: int
    height: int
    factors: list[tuple[int, int]]
    ids: list[int]

    @property
    def unit(self) -> tuple[int, int]:
        """Width and height of a minimum coded unit (MCU), in pixels."""
        if len(self.factors) == 1:
            return 8, 8
        return 8 * max(across for across, _ in self.factors), 8 * max(
            down for _, down in self.factors
        )

    @property
    def units(self) -> int:
        """How many there are in a scan of all components."""
        size = (self.width, self.height)
        return prod(-(-length // unit) for length, unit in zip(size, self.unit, strict=True))


def find_frame(found: list[Segment]) -> Segment:
    """The first frame header among these, one of which there must be."""
    return next(segment for segment in found if segment.code in _FRAMES)


def read_frame(jpeg: Value, found: list[Segment]) -> FrameHeader | None:
    """The one frame header among these; ``None`` if there is none that is sound."""
    headers = [segment for segment in found if segment.code in _FRAMES]
    if len(headers) != 1:
        return None
    payload = headers[0].payload(jpeg)
    if len(payload) < 6 or len(payload) != 6 + 3 * payload[5]:
        return None
    bits, height, width, _ = struct.unpack_from(">BHHB", payload)
    factors = [(number >> 4, number & 15) for number in payload[7::3]]
    if not (width and height and factors and all(a and b for a, b in factors)):
        return None
    return FrameHeader(headers[0].code, bits, width, height, factors, list(payload[6::3]))


def restart_interval(jpeg: Value, found: list[Segment]) -> int:
    """What the last of these says, in MCUs; 0: there are no restart markers."""
    said = [segment.payload(jpeg) for segment in found if segment.code == DRI]
    return int.from_bytes(said[-1][:2]) if said else 0
