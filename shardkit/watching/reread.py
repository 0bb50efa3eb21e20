"""The same batches read again: with their files in memory, and after these were dropped from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shardkit.watching.records import read_file

MOST_FILES = 20_000
"""That are dropped: what some dozens of batches read."""


class Rereading:
    """The indices of the first batches, which are asked for again.

    Args:
        most: batches that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[Any] = []
        self._place: int | None = None

    def begin(self, is_again: bool) -> None:
        """A block of steps begins: batches are asked for again, or new ones."""
        self._place = 0 if is_again and self._kept else None

    def index(self, own: Any) -> Any:
        """What a worker is asked for, instead of the sampler's own next batch."""
        if self._place is None:
            if len(self._kept) < self._most:
                self._kept.append(own)
            return own
        chosen = self._kept[self._place % len(self._kept)]
        self._place += 1
        return chosen


def drop_files(folder: str) -> int:
    """Drop what was read of from the page cache; the number of files. What cannot be opened or
    dropped, as on a tmpfs, stays."""
    dropped = 0
    for path in _paths(Path(folder)):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            os.fdatasync(fd)  # only pages that are on the disk can be dropped
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            dropped += 1
        except OSError:
            pass
        finally:
            os.close(fd)
    return dropped


def _paths(folder: Path) -> set[str]:
    found: set[str] = set()
    for records in folder.glob("[0-9]*.jsonl"):
        for event in read_file(records):
            found.update(event.get("paths", ()))
            if len(found) > MOST_FILES:
                return found
    return found
