"""Inputs that were left out as duplicates: what is said of them, and where that is written.

Each has a line in ``rejected.jsonl``, so that a dataset tells which they were. By these lines the
same pack knows them again, and reads nothing, and so does ``verify --against``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import xxhash

from shardkit.errors import CorpusError
from shardkit.index.manifest import MAX_REJECTED_BYTES
from shardkit.system.byte_sizes import format_bytes

SAME_AS = "the same contents as "
"""Begins the reason of a duplicate, before what the input is called that was packed."""


@dataclass(frozen=True)
class LeftOut:
    """Plain numbers, so that they travel as JSON.

    Attributes:
        inputs, bytes: how many, and their input bytes.
        other_labels: those that have another label than the one that was packed, or alone have one.
        other_splits: those of another split than the one that was packed.
        xxh3: of their lines.
    """

    inputs: int
    bytes: int
    other_labels: int
    other_splits: int
    xxh3: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @property
    def note(self) -> str:
        """For people, one line."""
        if not self.inputs:
            return "no input has the same contents as another"
        are = "input has" if self.inputs == 1 else "inputs have"
        told = (
            f"left out {self.inputs:,} duplicate{'s' * (self.inputs != 1)} of"
            f" {format_bytes(self.bytes)}: the {are} the same contents as others"
        )
        if self.other_labels:
            told += f", {self.other_labels:,} of them with another label"
        if self.other_splits:
            told += f", {self.other_splits:,} of them in another split"
        return f"{told}; rejected.jsonl names them"


def copy_lines(copies: Iterable[tuple[str, str]]) -> bytes:
    """The lines of (what is left out, what is the same). Raises CorpusError if they are more than
    ``rejected.jsonl`` may have."""
    lines: list[bytes] = []
    num_bytes = 0
    for path, other in copies:
        lines.append(json.dumps({"path": path, "reason": SAME_AS + other}).encode() + b"\n")
        num_bytes += len(lines[-1])
        if num_bytes > MAX_REJECTED_BYTES:
            raise CorpusError(
                f"over {len(lines):,} inputs are duplicates, and rejected.jsonl, with a line for"
                f" each, would be over {format_bytes(MAX_REJECTED_BYTES)}; pack the source in"
                " several parts of its own, or without --drop-duplicates"
            )
    return b"".join(lines)


def sum_of(lines: bytes) -> int:
    return xxhash.xxh3_64_intdigest(lines)


def lines_of_copies(rejected: bytes) -> bytes:
    """Those of ``rejected.jsonl`` that tell of duplicates."""
    return b"".join(line for line in rejected.splitlines(keepends=True) if _copy_of(line))


def told_copies(rejected: bytes) -> dict[str, str]:
    """What was left out -> what is the same, of the lines of ``rejected.jsonl``."""
    return dict(filter(None, map(_copy_of, rejected.splitlines())))


def _copy_of(line: bytes) -> tuple[str, str] | None:
    if SAME_AS.encode() not in line:
        return None
    try:
        held = json.loads(line)
        path, reason = held["path"], held["reason"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # damaged: it is no line of ours, and what it says counts for nothing
    if not isinstance(path, str) or not str(reason).startswith(SAME_AS):
        return None
    return path, str(reason).removeprefix(SAME_AS)
