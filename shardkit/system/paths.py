"""Paths: given by callers, shown in messages, the size of what is there, the user's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardkit.errors import StorageError, UsageError

SCHEMES = ("s3", "gs", "az", "hf", "http", "https", "file")
"""Of URLs that datasets are read from."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(path: object) -> bool:
    """Return True if a user means a URL."""
    return isinstance(path, str) and bool(_SCHEME.match(path))


def as_path(path: object, what: str) -> Path:
    """Return a path that a caller gave. Raises UsageError, saying what it was for, if it is none or
    a URL, of which a folder called ``s3:`` would come."""
    if isinstance(path, str) and is_url(path):
        raise UsageError(
            f"{what}: {path.partition('://')[0]}://... is a URL, and this takes what is on this"
            " machine; datasets behind a URL are read by shardkit.open, TokenDataset, info,"
            " show, tune, verify, unpack, stage,"
            " convert and bench"
        )
    if not isinstance(path, str | os.PathLike):
        got = " ".join(repr(path).split())[:100]  # of a table that is a page
        raise UsageError(f"{what} must be a str or Path, got {type(path).__name__}: {got}")
    if not os.fspath(path):
        raise UsageError(f"{what} is an empty path")
    scheme, colon, _ = os.fsdecode(path).partition(":/")
    if colon and scheme in SCHEMES and not os.path.exists(f"{scheme}:"):
        raise UsageError(
            f"{what}: {show_path(path)} is a URL that was made a Path, which loses one of its"
            " slashes; give it as a str"
        )
    try:
        os.stat(os.path.join(path, "."))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:  # a loop of links, a folder that the user may not enter
        raise StorageError(f"{what}: {show_path(path)}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{what}: {show_path(path)}: {error}") from error
    return Path(path)


def user_cache() -> Path | None:
    """Return the user's folder for what can be made anew, as the XDG base directory specification
    has it; None for a user without a home, as in some containers."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    return Path(cache, "shardkit") if os.path.isabs(cache) else None


def show_path(path: str | bytes | os.PathLike[Any]) -> str:
    """Return a path for one line of a message: quoted, control and undecodable bytes escaped."""
    text = os.fsdecode(path)
    return text if text.isprintable() and "'" not in text else ascii(text)


def first_few(names: Sequence[str] | Sequence[bytes], most: int = 3) -> str:
    """Return ``a, b, c, ...``: the first of some paths or other names, for a line of a message."""
    return ", ".join(map(show_path, names[:most])) + ", ..." * (len(names) > most)


def file_size(path: Path) -> int:
    """Return the bytes of a file; -1 if it is no file, or is not there."""
    return path.stat().st_size if path.is_file() else -1


def size_fault(path: Path, num_bytes: int) -> str:
    """Return in words what is wrong with a file that should have so many bytes, or ""."""
    found = file_size(path)
    if found == num_bytes:
        return ""
    return "is missing" if found < 0 else f"has {found} bytes, not {num_bytes}"
