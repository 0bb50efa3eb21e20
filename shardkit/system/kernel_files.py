"""The small text files of ``/proc`` and ``/sys``: what is not there, or is nonsense, is nothing."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """Without spaces around it; empty where the file cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except (OSError, ValueError):  # a name with a zero in it, from a line of nonsense
        return ""


def number(words: str) -> int | None:
    """A positive number; None for ``max``, -1 and nothing."""
    words = words.strip()
    return count(words) or None


def count(words: str) -> int | None:
    """A number from 0 on; None for anything else."""
    is_number = words.isascii() and words.isdigit() and len(words) < 20
    return int(words) if is_number else None


def table(path: Path) -> dict[str, int]:
    """Lines of a word and a number."""
    lines = (line.split() for line in text(path).splitlines())
    return {some[0]: number(some[1]) or 0 for some in lines if len(some) > 1}
