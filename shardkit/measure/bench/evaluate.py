"""The report of a bench, made of what was measured."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.bench.bench_report import (
    VERSION,
    BatchTimes,
    Limit,
    Report,
    Row,
    Seconds,
    reference,
)
from shardkit.measure.bench.cases import Loading, limits_of
from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.bench.same import Samples
from shardkit.measure.machine import commit, machine
from shardkit.measure.timing import Interval, Measurement, Result, Unit, spread, verdict
from shardkit.remote.urls import Url
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.page_cache import Cache
from shardkit.system.paths import show_path

UNITS: tuple[Unit, Unit] = ("samples", "bytes")

MOST_WARM = 0.01
LEAST_COLD = 0.9
"""Shares of the samples' bytes that may come from the device for warm, and must for cold. Cold less
than 1, since what one sample shares a page with may have been measured before it."""


NOT_COLD = {
    "unknown": "some stayed in the page cache, or did not come from the device: mapped by"
    " another process, another user's, or on a file system that cannot tell",
    "warm": "in memory, whatever is dropped",
}


Cases = Mapping[str, Loading]
"""By name."""


def make_report(
    cases: Cases, limits: Iterable[str], result: Result, samples: Samples, options: BenchOptions
) -> Report:
    """Return the report of what was measured."""
    rows = _withhold([_row(cases, name, result, options) for name in cases])
    return Report(
        version=VERSION,
        machine=machine(),
        commit=commit(),
        command="",
        options=options,
        checked=_checked(len({id(case.target) for case in cases.values()}), samples),
        limits=tuple(
            Limit(own.name, own.cache, *(statistics.median(own.rates(unit)) for unit in UNITS))
            for own in map(result.__getitem__, limits)
        ),
        rows=tuple(rows),
        notes=tuple(_notes(options, samples, rows)),
    )


def _checked(num: int, samples: Samples) -> str:
    what = f"{len(samples.sizes):,} samples of {', '.join(samples.fields)}"
    size = format_bytes(int(samples.sizes.sum()))
    return f"{num} targets returned the same {what}, {size}" if num > 1 else f"{what}, {size}"


def _row(cases: Cases, name: str, result: Result, options: BenchOptions) -> Row:
    case, own = cases[name], result[name]
    rounds = case.rounds[-len(own.works) :]
    read = [one.device_bytes for one in rounds if one.device_bytes is not None]
    device_bytes = int(statistics.median(read)) if read else None
    samples_per_s, bytes_per_s = (spread(own.rates(unit)) for unit in UNITS)
    ratio = _ratio(cases, name, result)
    # Files that could not be dropped from memory are no limit.
    names = limits_of(case.target, case.workers, options)
    shares = {one: result.ratio(name, one) for one in names if result[one].cache != "unknown"}
    limit = max(shares, key=shares.__getitem__, default=None)
    spent = np.median([one.seconds for one in rounds], axis=0).tolist()
    waits = 1e3 * np.concatenate([one.batch_s for one in rounds])
    return Row(
        target=case.target.name,
        format=case.target.format,
        path=_shown(case.target.place),
        workers=case.workers,
        worker_type=options.worker_type,
        cache=_cache(case, own, device_bytes),
        rounds=len(own.works),
        samples=round(statistics.median(work.samples for work in own.works)),
        samples_per_s=samples_per_s,
        bytes_per_s=bytes_per_s,
        ratio=ratio,
        verdict=verdict(ratio) if ratio else "reference",
        limit=limit,
        of_limit=None if limit is None else shares[limit],
        batch_ms=BatchTimes(*np.percentile(waits, [50, 99, 100]).tolist()),
        seconds=Seconds(*spent),
        device_bytes=device_bytes,
        dataset_bytes=case.dataset_bytes,
    )


def _shown(place: Path | Url) -> str:
    return str(place) if isinstance(place, Url) else show_path(os.path.abspath(place))


def _withhold(rows: list[Row]) -> list[Row]:
    """Withhold the verdict between what came from the disk and what may not have."""
    mixed = {"cold", "unknown"}
    return [
        replace(row, verdict="unclear") if {row.cache, reference(row, rows).cache} == mixed else row
        for row in rows
    ]


def _ratio(cases: Cases, name: str, result: Result) -> Interval | None:
    """Return the ratio to the first target with as many workers; None for that itself."""
    first = next(n for n, c in cases.items() if c.workers == cases[name].workers)
    if name == first:
        return None
    rates = (result[one].rates("samples") for one in (name, first))
    return spread([own / theirs for own, theirs in zip(*rates, strict=True)])


def _cache(case: Loading, own: Measurement, device_bytes: int | None) -> Cache:
    """Return cold only if the page cache says so, and the device's counter, where there is one."""
    if case.target.is_in_memory:
        return "warm"
    if own.cache == "cold":
        expected = min(case.sample_bytes, case.dataset_bytes)
        is_read = device_bytes is None or device_bytes >= LEAST_COLD * expected
        return "cold" if is_read else "unknown"
    if case.is_cold or device_bytes is None:
        return "unknown"
    most = MOST_WARM * min(work.bytes for work in own.works)
    return "warm" if device_bytes <= most else "unknown"


def _notes(options: BenchOptions, samples: Samples, rows: Sequence[Row]) -> list[str]:
    notes = _cold_notes(rows) if options.cold else []
    if any(row.format == "folder" for row in rows):
        notes.append(
            "folder: its files, opened and read one by one; the loader and the decoder are the same"
        )
    if options.read == "raw" and not IMAGE_FIELDS.isdisjoint(samples.fields):
        notes.append("nothing was decoded: what training gets of it, --read train says")
    return notes


def _cold_notes(rows: Sequence[Row]) -> list[str]:
    notes = [
        "cold: files were written out and dropped from the page cache (posix_fadvise) before each"
        " case, which starts its workers anew; what a drive or a host caches was left"
    ]
    for state, why in NOT_COLD.items():
        names = ", ".join(dict.fromkeys(row.target for row in rows if row.cache == state))
        if names:
            notes.append(f"not cold: {names}: {why}")
    return notes
