"""Numbers as arguments: Python's or numpy's, in range, or one clear line."""

from __future__ import annotations

import math
import operator

from shardkit.errors import UsageError


def integer(name: str, value: object, least: int | None = 0) -> int:
    """``value`` as an int. Raises UsageError for anything else, or for less than ``least``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise UsageError(f"{name} must be a whole number, got {value!r}") from error
    if least is not None and number < least:
        raise UsageError(f"{name} must be at least {least}, got {number}")
    return number


def positive(name: str, value: float) -> None:
    """Raises UsageError for nothing, less, infinity and what is no number."""
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(f"{name} must be more than 0, and finite, got {value}")
