"""The report of a bench, as plain values."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.bench.limits import Limits
from shardkit.measure.bench.loading import Loading
from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.bench.same import Samples
from shardkit.measure.bench.target import Target
from shardkit.measure.machine import commit, machine
from shardkit.measure.report.words import label, reference
from shardkit.measure.timing import Measurement, Result
from shardkit.measure.verdict import spread, verdict
from shardkit.system.devices import is_in_memory
from shardkit.system.page_cache import Cache
from shardkit.system.storage import format_bytes

VERSION = 1

BINS = 40
"""Of the histogram of batches."""

MOST_APART = 1e4
"""The end of its last bin over the start of the first."""

MOST_WARM = 0.01
LEAST_COLD = 0.9
"""Shares of the samples' bytes that may come from the device for warm, and must for cold. Cold less
than 1, since what one sample shares a page with may have been measured before it."""


NOT_COLD = {
    "unknown": "some stayed in the page cache, or did not come from the device: mapped by"
    " another process, another user's, or on a file system that cannot tell",
    "warm": "in memory, whatever is dropped",
}


@dataclass(frozen=True)
class BenchRun:
    """All that was measured."""

    targets: list[Target]
    cases: dict[str, Loading]
    limits: Limits
    result: Result
    samples: Samples
    options: BenchOptions


def make_report(run: BenchRun) -> dict[str, Any]:
    rows = _withhold([_row(run, name) for name in run.cases])
    return {
        "version": VERSION,
        "machine": machine(),
        "commit": commit(),
        "command": "",
        "options": {**asdict(run.options), "workers": list(run.options.workers)},
        "checked": _checked(run),
        "limits": [_limit(name, run.result[name]) for name in run.limits.cases],
        "rows": rows,
        "notes": _notes(run, rows),
    }


def _checked(run: BenchRun) -> str:
    num, sizes = len(run.targets), run.samples.sizes
    whole = len(run.targets[0])
    drawn = f"{len(sizes):,}" if len(sizes) == whole else f"{len(sizes):,} of {whole:,}"
    what = f"{drawn} samples of {', '.join(run.samples.fields)}"
    size = format_bytes(int(sizes.sum()))
    return f"{num} targets returned the same {what}, {size}" if num > 1 else f"{what}, {size}"


def _limit(name: str, measured: Measurement) -> dict[str, Any]:
    return {
        "name": name,
        "cache": measured.cache,
        "samples_per_s": statistics.median(measured.rates("samples")),
        "bytes_per_s": statistics.median(measured.rates("bytes")),
    }


def _row(run: BenchRun, name: str) -> dict[str, Any]:
    case, own, options = run.cases[name], run.result[name], run.options
    rounds = case.rounds[-len(own.works) :]
    device_bytes = _median([one.device_bytes for one in rounds])
    return {
        "target": case.target.name,
        "format": case.target.format,
        "path": os.path.abspath(case.target.path),
        "where": case.target.where,
        "read": options.read,
        "workers": case.workers,
        "worker_type": options.worker_type,
        "batch_size": options.batch_size,
        "cache": _cache(case, own, device_bytes),
        "rounds": len(own.works),
        "samples": round(statistics.median(work.samples for work in own.works)),
        "samples_per_s": spread(own.rates("samples")).to_json(),
        "bytes_per_s": spread(own.rates("bytes")).to_json(),
        **_compared(run, name),
        **_limited(run, name),
        **batch_times(np.concatenate([one.batch_s for one in rounds])),
        "seconds": {
            part: statistics.median(one.seconds[i] for one in rounds)
            for i, part in enumerate(("read", "transform", "collate", "wait"))
        },
        "device_bytes": device_bytes,
        "dataset_bytes": case.dataset_bytes,
    }


def _withhold(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """No verdict between what came from the disk and what may not have."""
    for row in rows:
        other = reference(row, rows)
        if {row["cache"], other["cache"]} == {"cold", "unknown"}:
            row["verdict"] = "unclear"
    return rows


def _compared(run: BenchRun, name: str) -> dict[str, Any]:
    """With the first target at the same number of workers, round by round."""
    case = run.cases[name]
    first = next(n for n, c in run.cases.items() if c.workers == case.workers)
    if name == first:
        return {"ratio": None, "verdict": "reference"}
    rates = (run.result[one].rates("samples") for one in (name, first))
    ratio = spread([own / theirs for own, theirs in zip(*rates, strict=True)])
    return {"ratio": ratio.to_json(), "verdict": verdict(ratio)}


def _limited(run: BenchRun, name: str) -> dict[str, Any]:
    """The limit that lies nearest, and the share of it that is reached. Files that could not be
    dropped from memory are no limit."""
    case = run.cases[name]
    shares = {
        limit: run.result.ratio(name, limit)
        for limit in run.limits.of(case.target, case.workers)
        if run.result[limit].cache != "unknown"
    }
    nearest = max(shares, key=lambda limit: shares[limit], default=None)
    return {"limit": nearest, "of_limit": None if nearest is None else shares[nearest]}


def _cache(case: Loading, own: Measurement, device_bytes: int | None) -> Cache:
    """Cold only if the page cache says so, and the device's counter, where there is one."""
    if is_in_memory(case.target.path):
        return "warm"
    if own.cache == "cold":
        expected = min(case.sample_bytes, case.dataset_bytes)
        is_read = device_bytes is None or device_bytes >= LEAST_COLD * expected
        return "cold" if is_read else "unknown"
    if case.is_cold or device_bytes is None:
        return "unknown"
    return (
        "warm" if device_bytes <= MOST_WARM * min(work.bytes for work in own.works) else "unknown"
    )


def _median(read: Sequence[int | None]) -> int | None:
    known = [num for num in read if num is not None]
    return int(statistics.median(known)) if known else None


def batch_times(seconds: Any) -> dict[str, Any]:
    """Percentiles and a histogram of how long batches took, in ms.

    Bins grow, each by the same factor: with workers, one that is ready takes 1/100 of the time of
    one that is waited for. The first has all below, too, and the last all above.
    """
    ms = np.asarray(seconds) * 1e3
    p5, p50, p95, p99 = np.percentile(ms, [5, 50, 95, 99]).tolist()
    top = max(p99 * 1.25, 1e-3)
    edges = np.geomspace(max(float(ms.min()), top / MOST_APART), top, BINS + 1)
    counts, _ = np.histogram(np.clip(ms, edges[0], edges[-1]), edges)
    return {
        "batch_ms": {"p5": p5, "p50": p50, "p95": p95, "p99": p99, "max": float(ms.max())},
        "batch_histogram": {"edges_ms": edges.tolist(), "counts": counts.tolist()},
    }


def _notes(run: BenchRun, rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = _cold_notes(rows) if run.options.cold else []
    if any(row["format"] == "folder" for row in rows):
        notes.append(
            "folder: its files, opened and read one by one; the loader and the decoder are the same"
        )
    if run.options.read == "raw" and not IMAGE_FIELDS.isdisjoint(run.samples.fields):
        notes.append("nothing was decoded: what training gets of it, --read train says")
    return notes


def _cold_notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    notes = [
        "cold: files were written out and dropped from the page cache (posix_fadvise) before each"
        " case; what a drive or a virtual machine's host caches was left"
    ]
    if any(row["workers"] and row["worker_type"] == "process" for row in rows):
        notes.append("processes are started anew for each case, and that counts")
    for state, why in NOT_COLD.items():
        names = ", ".join(dict.fromkeys(label(row) for row in rows if row["cache"] == state))
        if names:
            notes.append(f"not cold: {names}: {why}")
    return notes
