"""A part of a pack: every so many-th shard, made apart from the others and merged with them later.

Whoever packs a part lists all of the input, and so cuts it into the same shards as whoever packs
another, or all; which of these are its own is arithmetic.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from shardkit.errors import UsageError

_PART = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


class Part(NamedTuple):
    """The ``number``-th of ``total``, from 1."""

    number: int
    total: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """``3/64``. Raises UsageError."""
        found = _PART.fullmatch(str(text))
        part = cls(*map(int, found.groups())) if found else cls(0, 0)
        if not 1 <= part.number <= part.total:
            raise UsageError(f"part must be as 3/64, from 1/64 to 64/64, got {text!r}")
        return part

    def has(self, job: int) -> bool:
        """Whether the job of this number, from 0 in the order of the listing, is its own."""
        return job % self.total == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"
