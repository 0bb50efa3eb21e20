"""The last few values that were found, by key."""

from __future__ import annotations

from typing import Any


def remember(known: dict[Any, Any], key: object, value: object, most: int) -> None:
    """Add a value, and forget the oldest beyond ``most``. Threads may share the dict: two that miss
    the same key both find its value."""
    known[key] = value
    while len(known) > most:
        # In single steps: another thread may be doing the same.
        known.pop(next(iter(tuple(known))), None)
