"""How long GPUs idle, by a trace of torch.profiler, and how much of their peak is used.

A trace is JSON in Chrome's format: an object whose ``traceEvents`` are spans (``"ph": "X"``) with a
category (Kineto's, see libkineto/src/ActivityType.cpp), a name, ``ts`` and ``dur`` in
microseconds, and the number of the GPU as ``pid``. A trace of some steps has up to millions of
events and hundreds of megabytes, so that each is dropped or becomes a small tuple while the JSON is
parsed.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import FormatError
from shardkit.measure.doctor.evidence import RankEvidence, TraceFacts, Utilisation
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


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
    gpus: dict[str | int, list[Event]] = defaultdict(list)
    for event in events:
        gpus[event.gpu].append(event)
    busy = sum(covered(seen) for seen in gpus.values())
    # Copies within the GPU's own memory (DtoD, what clone() does) are work like a kernel's.
    working = sum(
        covered(e for e in seen if e.category != "gpu_memcpy" or "DtoD" in e.name)
        for seen in gpus.values()
    )
    total = seconds * len(gpus)
    return TraceFacts(
        seconds=seconds,
        gpu_idle=_share(total - busy, total),
        kernels_per_s=_share(len(kernels), seconds),
        kernel_s=_share(sum(one.end - one.start for one in kernels), len(kernels)),
        copy_exposed=_share(busy - working, total),
    )


def _share(part: float, whole: float) -> float:
    """Return 0 of nothing, and never less than 0, which rounding makes of the difference of
    equals."""
    return max(0.0, part / whole) if whole > 0 else 0.0


def covered(events: Iterable[Event]) -> float:
    """Return the seconds in which at least one of some events went on."""
    total, until = 0.0, -math.inf
    for start, end in sorted((event.start, event.end) for event in events):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


# --- how much of the peak is used ---------------------------------------------------------
# The peaks are NVIDIA's own figures, of data sheets and architecture whitepapers, for dense
# matrices: the newer data sheets name twice as much, with 2:4 sparsity, and halve it in a footnote.
# Products of fp16 and bf16 are those that add up in fp32, as torch's do: GeForce cards have twice
# the rate only where fp16 adds up in fp16, too. A GPU that is not here, a slice of one (MIG) and a
# laptop's have no peak, since none that is near would be right.

DTYPES = ("float32", "tf32", "bfloat16", "float16", "float8")

GPUS: dict[str, tuple[float | None, ...]] = {
    r"GB200": (80, 1250, 2500, 2500, 5000),
    r"B200": (75, 1100, 2250, 2250, 4500),
    r"H200 NVL|H100 NVL": (60, 417.5, 835.5, 835.5, 1670.5),
    r"H200|GH200 (480GB|144G HBM3e)|H100 80GB HBM3": (66.9, 494.7, 989.4, 989.4, 1978.9),
    r"H100 PCIe": (51.2, 378, 756.5, 756.5, 1513),
    r"A100([- ](SXM4|PCIe|40GB|80GB)){1,2}": (19.5, 156, 312, 312, None),
    r"A40": (37.4, 74.8, 149.7, 149.7, None),
    r"A10": (31.2, 62.5, 125, 125, None),
    r"A10G": (35, 35, 70, 70, None),
    r"L4": (30.3, 60, 121, 121, 242.5),
    r"L40": (90.5, 90.5, 181.05, 181.05, 362),
    r"L40S": (91.6, 183, 362.05, 362.05, 733),
    r"V100-SXM2-(16|32)GB": (15.7, None, None, 125, None),
    r"V100-PCIE-(16|32)GB": (14, None, None, 112, None),
    r"V100S-PCIE-32GB": (16.4, None, None, 130, None),
    r"T4": (8.1, None, None, 65, None),
    r"RTX A6000": (38.7, 77.4, 154.8, 154.8, None),
    r"RTX 3090": (35.6, 35.6, 71, 71, None),
    r"RTX 4090": (82.6, 82.6, 165.2, 165.2, 330.3),
    r"RTX 6000 Ada Generation": (91.1, None, 364.2, 364.2, None),
    r"RTX 5090": (104.8, 104.8, 209.5, 209.5, 419),
}
"""TeraFLOPs a second of :data:`DTYPES`, by what is left of torch's name of a GPU without "NVIDIA",
"Tesla" and "GeForce". The whole of that has to match: a 3090 Ti, a 4090 D and a 4090 Laptop GPU are
others."""


def peak_of(gpu: str, dtype: str) -> float | None:
    """Return the most FLOPs a second that a GPU does in a dtype of :data:`DTYPES`; None for a GPU
    or a dtype that the table does not have. ``float32`` is without TF32, which is ``tf32``."""
    name = re.sub(r"^(NVIDIA|Tesla|GeForce|\s)+\b", "", gpu.strip(), flags=re.IGNORECASE)
    for pattern, rates in GPUS.items():
        if re.fullmatch(pattern, name, flags=re.IGNORECASE):
            # The kinds of 8-bit floats are equally fast: float8_e4m3fn, float8_e5m2.
            rate = dict(zip(DTYPES, rates, strict=True)).get(dtype.partition("_")[0])
            return None if rate is None else rate * 1e12
    return None


def utilisation(ranks: Sequence[RankEvidence], peak_tflops: float | None = None) -> Utilisation:
    """Return how much of its device's peak the first rank uses; None for what is unknown.

    Args:
        peak_tflops: of the device, in teraFLOPs a second, in place of the table's.
    """
    if not ranks:
        return Utilisation()
    rank = ranks[0]
    peak = peak_of(rank.gpu, rank.dtype or "") if peak_tflops is None else peak_tflops * 1e12
    rate = rank.flops * rank.rates.own.steps_per_s if rank.flops else None
    return Utilisation(rate, rate / peak if rate and peak else None, peak)
