"""What a watched process writes down: a line of JSON for each event, in a file of its own.

Lines are written at once, in one call each: a process that is killed leaves all but the one it was
writing. Whoever reads them skips a torn last line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
"""A file does not grow beyond that: some hundred thousand steps."""


class Records:
    """The file of one process, which is made at its first line.

    A folder that is gone, or a full disk, must not end a training run: nothing is written then.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._num_bytes = 0

    def write(self, kind: str, /, **what: Any) -> None:
        """Append one event."""
        if self._num_bytes > MOST_BYTES:
            return
        # What a script's own loader says of itself may be of any type.
        text = json.dumps({"is": kind, **what}, separators=(",", ":"), default=str)
        line = text.encode() + b"\n"
        self._num_bytes += len(line)
        try:
            os.write(self._file(), line)
        except OSError:
            self._num_bytes = MOST_BYTES + 1

    def mark(self, what: str) -> None:
        """Leave an empty file of this process, which is seen without reading."""
        try:
            open(os.path.join(self._folder, f"{os.getpid()}.{what}"), "w").close()
        except OSError:
            self._num_bytes = MOST_BYTES + 1

    def _file(self) -> int:
        if self._fd is None:
            path = os.path.join(self._folder, f"{os.getpid()}.jsonl")
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return self._fd

    def close(self) -> None:
        """Of this process; in a child, which writes a file of its own."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._num_bytes = None, 0


def read_records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Process -> its events, in order."""
    return {int(path.stem): read_file(path) for path in sorted(folder.glob("[0-9]*.jsonl"))}


def read_file(path: Path) -> list[dict[str, Any]]:
    """The whole lines of one file."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]
