"""Patterns of files in the card of a dataset of the Hugging Face hub, as ``datasets`` reads them.

They are those of fsspec's glob: ``*`` stays within a folder, and ``**`` is folders at any depth.
Folders that begin with ``__`` count only where the pattern names one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from shardkit.errors import CorpusError

_MAGIC = re.compile(r"[*?[]")

_MOST_STARS = 4
"""In one name, and folders at any depth in one path: each more multiplies the ways to match one."""


def is_one_file(pattern: str) -> bool:
    """Whether a pattern is the path of one file of the dataset's own."""
    return not _MAGIC.search(pattern) and "://" not in pattern


def matches(path: str, pattern: str) -> bool:
    """Whether ``datasets`` finds a file by this pattern; both are relative to the card's folder.

    Raises:
        CorpusError: the pattern means nothing to it, or no library is there to read patterns.
    """
    if not _MAGIC.search(pattern):
        return path == pattern
    if _compiled(pattern).match(path) is None:
        return False
    return _special_folders(path) == _special_folders(pattern)


def _special_folders(path: str) -> int:
    return sum(folder.startswith("__") for folder in path.split("/")[:-1])


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    pattern = re.sub(r"(?<![^/])(?:\*\*/)+", "**/", pattern)
    parts = pattern.split("/")
    if max(parts.count("**"), *(part.count("*") for part in parts)) > _MOST_STARS:
        raise CorpusError(
            f"README.md has the pattern {pattern[:100]!r} of more than {_MOST_STARS} stars, which"
            " takes too long to match; write a simpler one"
        )
    try:
        from fsspec.utils import glob_translate
    except ImportError as error:
        raise CorpusError(
            "patterns of files in a README.md need fsspec 2023.12.2 or newer:"
            " pip install 'shardkit[parquet]'"
        ) from error
    try:
        return re.compile(glob_translate(pattern))
    except ValueError as error:
        raise CorpusError(
            f"README.md has the pattern {pattern!r}, in which '**' is a part of a name; datasets"
            " takes it for folders alone, as in '**/*.parquet'"
        ) from error
