"""The report of a bench: plain values, and what they say in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from shardkit.measure.loading import Loading
from shardkit.measure.machine import machine
from shardkit.measure.same import Samples
from shardkit.measure.target import Target
from shardkit.measure.timing import Case, Measurement, Result
from shardkit.measure.verdict import spread, verdict

VERSION = 1


def make_report(
    targets: Sequence[Target],
    cases: Mapping[tuple[str, int], Loading],
    limits: Mapping[str, Case],
    result: Result,
    samples: Samples,
    options: Any,
) -> dict[str, Any]:
    first = targets[0].name
    return {
        "version": VERSION,
        "machine": machine(),
        "commit": None,
        "command": "",
        "options": asdict(options),
        "checked": f"{len(targets)} targets returned the same {len(samples.sizes):,} samples",
        "limits": [_limit(name, result[name]) for name in limits],
        "rows": [
            _row(case, result[f"{name}/{workers}"], result, f"{first}/{workers}", options, limits)
            for (name, workers), case in cases.items()
        ],
    }


def _limit(name: str, measured: Measurement) -> dict[str, Any]:
    return {
        "name": name,
        "samples_per_s": statistics.median(measured.rates("samples")),
        "bytes_per_s": statistics.median(measured.rates("bytes")),
    }


def _row(
    case: Loading,
    own: Measurement,
    result: Result,
    reference: str,
    options: Any,
    limits: Mapping[str, Case],
) -> dict[str, Any]:
    target = case.target
    rates = own.rates("samples")
    is_reference = own.name == reference
    ratios = spread([a / b for a, b in zip(rates, result[reference].rates("samples"), strict=True)])
    rounds = case.rounds[-len(own.works) :]
    limit = next(iter(limits), None)
    return {
        "target": target.name,
        "format": target.format,
        "path": str(target.path),
        "where": target.where,
        "read": options.read,
        "workers": case.workers,
        "worker_type": options.worker_type,
        "batch_size": options.batch_size,
        "cache": own.cache,
        "rounds": len(own.works),
        "samples": own.works[0].samples,
        "samples_per_s": spread(rates).to_json(),
        "bytes_per_s": spread(own.rates("bytes")).to_json(),
        "ratio": None if is_reference else ratios.to_json(),
        "verdict": "reference" if is_reference else verdict(ratios),
        "limit": limit,
        "of_limit": limit and result.ratio(own.name, limit),
        **batch_times(np.concatenate([one.batch_s for one in rounds])),
        "seconds": {
            name: statistics.median(one.seconds[i] for one in rounds)
            for i, name in enumerate(("read", "transform", "collate", "wait"))
        },
        "device_bytes": _device_bytes([one.device_bytes for one in rounds]),
        "dataset_bytes": 0,
    }


def _device_bytes(read: Sequence[int | None]) -> int | None:
    known = [num for num in read if num is not None]
    return int(statistics.median(known)) if known else None


BINS = 40


def batch_times(seconds: Any) -> dict[str, Any]:
    """Percentiles and a histogram of how long batches took, in ms."""
    ms = np.asarray(seconds) * 1e3
    p5, p50, p95, p99 = np.percentile(ms, [5, 50, 95, 99]).tolist()
    counts, edges = np.histogram(ms, bins=BINS, range=(0.0, max(p99 * 1.25, 1e-3)))
    return {
        "batch_ms": {"p5": p5, "p50": p50, "p95": p95, "p99": p99, "max": float(ms.max())},
        "batch_histogram": {"edges_ms": edges.tolist(), "counts": counts.tolist()},
    }
