"""What a watched process writes down: a line of JSON for each event, in a file of its own.

Most lines are written at once, in one call each: a process that is killed leaves all but the one
it was writing. Those of steps are gathered for a moment, since a function that was not called for
some milliseconds takes ten times as long as it does when it is called again at once: a killed
process may lose the steps of that moment. Whoever reads them skips a torn last line.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
"""A file does not grow beyond that: some hundred thousand steps."""

GATHERED_S = 0.25
"""What is gathered is written after that, once something else comes."""


class Records:
    """The file of one process, which is made at its first line.

    A folder that is gone, or a full disk, must not end a training run: nothing is written then.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd: int | None = None
        self._num_bytes = 0
        self._gathered: deque[dict[str, Any]] = deque()
        self._since = 0.0
        self._at_exit: Finalize | None = None

    def write(self, kind: str, /, **what: Any) -> None:
        """Append one event, after those that were gathered."""
        self._gathered.append({"is": kind, **what})
        self.flush()

    def gather(self, kind: str, /, **what: Any) -> None:
        """Append one event soon."""
        if self._at_exit is None:
            self._at_exit = Finalize(None, self.flush, exitpriority=0)
        if not self._gathered:
            self._since = time.perf_counter()
        self._gathered.append({"is": kind, **what})
        if time.perf_counter() - self._since > GATHERED_S:
            self.flush()

    def flush(self) -> None:
        """Append what was gathered, in any thread."""
        events = []
        with suppress(IndexError):
            while True:
                events.append(self._gathered.popleft())
        if not events or self._num_bytes > MOST_BYTES:
            return
        # What a script's own loader says of itself may be of any type.
        lines = [json.dumps(event, separators=(",", ":"), default=str) for event in events]
        text = "".join(f"{line}\n" for line in lines).encode()
        self._num_bytes += len(text)
        try:
            is_whole = os.write(self._file(), text) == len(text)
        except OSError:
            is_whole = False
        if not is_whole:  # the disk is full: nothing may follow on a torn line
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

    def forget(self) -> None:
        """Drop what was gathered: a child writes a file of its own."""
        if self._fd is not None:
            os.close(self._fd)
        if self._at_exit is not None:
            self._at_exit.cancel()
        self._fd, self._num_bytes, self._gathered, self._at_exit = None, 0, deque(), None


def read_records(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the events of each process, in order."""
    return {int(path.stem): read_file(path) for path in sorted(folder.glob("[0-9]*.jsonl"))}


def read_file(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of one file."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [json.loads(line) for line in whole.splitlines()]
