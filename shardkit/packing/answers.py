"""What a job comes to, as plain values that go from one process to another."""

from __future__ import annotations

from typing import Any

import shardkit.errors
from shardkit.errors import DataError, ShardkitError

Answer = dict[str, Any]
"""``{"done": ...}``, or ``{"error": [class, words]}``."""


def error_answer(error: ShardkitError) -> Answer:
    return {"error": [type(error).__name__, str(error)]}


def rebuild(name: str, message: str) -> ShardkitError:
    """The error of an answer: of the same class, with the same words."""
    kind = getattr(shardkit.errors, name, None)
    known = isinstance(kind, type) and issubclass(kind, ShardkitError)
    return kind(message) if known else DataError(message)  # type: ignore[misc]
