"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

from shardkit.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Return the bytes in ``"256MB"`` (10**6), ``"4MiB"`` (2**20), ``"1g"`` or a plain number.

    Raises:
        UsageError: not a size, or less than one byte.
    """
    found = _SIZE.fullmatch(str(text).strip())
    if not found:
        raise UsageError(f"{text!r} is no size: write a number and a unit, as in 256MB or 1GiB")
    number, unit, binary = found.groups()
    size = float(number) * (1024 if binary else 1000) ** " kmgt".index(unit.lower() or " ")
    if size < 1:
        raise UsageError(f"a size must be at least one byte, got {text!r}")
    if size >= 2**63:
        raise UsageError(f"a size must be below 2**63 bytes, got {str(text)[:40]!r}")
    return int(size)


def format_bytes(num: float) -> str:
    """Return ``"1.5 MB"`` for ``1536000``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num) < 1000:
            return f"{num:.0f} {unit}" if unit == "B" else f"{num:.1f} {unit}"
        num /= 1000
    return f"{num:.2f} TB"
