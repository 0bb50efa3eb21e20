"""The file that torch.profiler's ``export_chrome_trace`` writes, read as plain events.

It is JSON in Chrome's trace format: an object whose ``traceEvents`` are spans (``"ph": "X"``)
with a category, a name, ``ts`` and ``dur`` in microseconds, the process (for a GPU's events: its
number) as ``pid`` and the thread (or the stream) as ``tid``. The categories are Kineto's, see
libkineto/src/ActivityType.cpp. A trace of some steps has up to millions of events and hundreds of
megabytes, so that each becomes a small tuple while the JSON is parsed, and what nobody asks for is
left out.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import FormatError, UsageError
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
RUNTIME = ("cuda_runtime", "cuda_driver")
"""The host's calls of CUDA, and of HIP in builds for AMD."""
ON_HOST = (*RUNTIME, "cpu_op", "user_annotation", "python_function")
_KEPT = frozenset((*ON_GPU, *ON_HOST))

NO_CORRELATION = -1


class Event(NamedTuple):
    """A span of a trace.

    Attributes:
        category: one of :data:`ON_GPU` or :data:`ON_HOST`.
        lane: the thread or the stream. owner: the process, or the number of the GPU.
        start, seconds: when it began, from some moment that all events share, and how long it took.
        correlation: the same number for a call of CUDA and what that did on the GPU.
    """

    category: str
    name: str
    owner: str | int
    lane: str | int
    start: float
    seconds: float
    correlation: int = NO_CORRELATION

    @property
    def end(self) -> float:
        return self.start + self.seconds


def read_trace(path: str | os.PathLike[str]) -> list[Event]:
    """The events of a trace, ``.json`` or ``.json.gz``, in the file's order.

    Raises UsageError if there is no such file, FormatError if it is none of torch.profiler's or is
    cut short, StorageError if it cannot be read.
    """
    shown = show_path(path)
    text = _unpacked(Path(path), shown).decode("utf-8", "replace")
    try:
        found = json.loads(text, object_hook=_event)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{shown} is no whole trace: {error}; export it again with "
            "torch.profiler's export_chrome_trace"
        ) from error
    listed = found.get("traceEvents") if isinstance(found, dict) else found
    entries = listed if isinstance(listed, list) else []
    events = [entry for entry in entries if isinstance(entry, Event)]
    if not events:
        raise FormatError(
            f"{shown} has no event of torch.profiler: expected traceEvents with cpu_op, kernel or "
            "python_function; write it with export_chrome_trace"
        )
    return events


def _unpacked(path: Path, shown: str) -> bytes:
    with os_errors(f"cannot read the trace {shown}"):
        try:
            packed = path.read_bytes()
        except FileNotFoundError as error:
            raise UsageError(f"there is no trace {shown}") from error
    if not packed.startswith(b"\x1f\x8b"):
        return packed
    try:
        return gzip.decompress(packed)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(f"{shown} is cut short or damaged: {error}; export it again") from error


def _event(item: dict[str, Any]) -> dict[str, Any] | Event | None:
    """A span that is asked for as an event; any other of the trace's entries as None."""
    if "ph" not in item:
        return item
    if item["ph"] != "X" or item.get("cat") not in _KEPT or "ts" not in item:
        return None
    args = item.get("args")
    correlation = args.get("correlation", NO_CORRELATION) if isinstance(args, dict) else None
    return Event(
        sys.intern(str(item["cat"])),
        sys.intern(str(item.get("name", ""))),
        item.get("pid", 0),
        item.get("tid", 0),
        float(item["ts"]) / 1e6,
        max(0.0, float(item.get("dur", 0))) / 1e6,
        NO_CORRELATION if correlation is None else int(correlation),
    )
