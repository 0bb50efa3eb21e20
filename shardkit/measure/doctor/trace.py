"""What a trace of torch.profiler says of the GPUs: how long they idle, and what they do else.

The file is JSON in Chrome's trace format: an object whose ``traceEvents`` are spans (``"ph": "X"``)
with a category (Kineto's, see libkineto/src/ActivityType.cpp), a name, ``ts`` and ``dur`` in
microseconds, and the number of the GPU as ``pid``. A trace of some steps has up to millions of
events and hundreds of megabytes, so that each is dropped or becomes a small tuple while the JSON is
parsed.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import FormatError
from shardkit.measure.doctor.evidence import TraceFacts
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})

Interval = tuple[float, float]
"""When something began, and when it ended, which is not before."""


class Event(NamedTuple):
    """A span of a GPU, in seconds from some moment that all share."""

    category: str
    name: str
    gpu: str | int
    start: float
    end: float


def read_trace(path: str | os.PathLike[str]) -> list[Event]:
    """Return the events of GPUs in a trace, ``.json`` or ``.json.gz``, in the file's order.

    Raises:
        FormatError: it is none of torch.profiler's, or is cut short. StorageError: it cannot be
        read.
    """
    shown = show_path(path)
    with os_errors(f"cannot read the trace {shown}"):
        data = Path(path).read_bytes()
    try:
        text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        found = json.loads(text.decode("utf-8", "replace"), object_hook=_event)
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"{shown} is cut short or damaged: {error}; export it again") from error
    listed = found.get("traceEvents") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise FormatError(
            f"{shown} has no traceEvents: write it with torch.profiler's export_chrome_trace"
        )
    return [entry for entry in listed if isinstance(entry, Event)]


def _event(item: dict[str, Any]) -> dict[str, Any] | Event | None:
    """Return a span of a GPU as an event, any other of the trace's entries as None."""
    if "ph" not in item:
        return item
    if item["ph"] != "X" or item.get("cat") not in ON_GPU or "ts" not in item:
        return None
    start = float(item["ts"]) / 1e6
    seconds = max(0.0, float(item.get("dur", 0))) / 1e6
    return Event(item["cat"], str(item.get("name")), item.get("pid", 0), start, start + seconds)


def trace_facts(events: Sequence[Event]) -> TraceFacts | None:
    """Return what ran on the GPUs; None if nothing did.

    Shares of time are means over the GPUs, all from the first thing on any of them to the last.
    Kernels a second are those of all GPUs together: one process launches them.
    """
    if not events:
        return None
    seconds = max(event.end for event in events) - min(event.start for event in events)
    kernels = [event for event in events if event.category == "kernel"]
    work: dict[str | int, list[Interval]] = defaultdict(list)
    copies: dict[str | int, list[Interval]] = defaultdict(list)
    for event in events:
        # Copies within the GPU's own memory (DtoD, what clone() does) are work like a kernel's.
        is_copy = event.category == "gpu_memcpy" and "DtoD" not in event.name
        (copies if is_copy else work)[event.gpu].append((event.start, event.end))
    gpus = work.keys() | copies.keys()
    busy = sum(length(union((*work[gpu], *copies[gpu]))) for gpu in gpus)
    working = sum(length(union(work[gpu])) for gpu in gpus)
    total = seconds * len(gpus)
    return TraceFacts(
        seconds=seconds,
        gpu_idle=_share(total - busy, total),
        kernels_per_s=_share(len(kernels), seconds),
        kernel_s=_share(sum(one.end - one.start for one in kernels), len(kernels)),
        copy_exposed=_share(busy - working, total),
    )


def _share(part: float, whole: float) -> float:
    """0 of nothing, and never less than 0, which rounding makes of the difference of equals."""
    return max(0.0, part / whole) if whole > 0 else 0.0


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the same times without overlaps: in order, with a gap between any two."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(merged: Iterable[Interval]) -> float:
    """Return how long a union's intervals are together."""
    return sum(end - start for start, end in merged)
