"""The report of a bench: made of what was measured, as JSON, in sentences, as tables and a page."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.commit.durable_files import write_output
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.bench.cases import BenchOptions, Loading, limits_of
from shardkit.measure.figures import NOTHING, amount, percent, times
from shardkit.measure.machine import Machine, commit, describe, machine
from shardkit.measure.page import Section, bar, page
from shardkit.measure.timing import Interval, Measurement, Result, Unit, spread, verdict
from shardkit.remote.urls import Url
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.page_cache import Cache
from shardkit.system.paths import show_path

VERSION = 2
"""Of the JSON; a higher one if a field goes or changes its meaning."""

CLOSE = 0.85
"""From this share of a limit on, it is the limit that holds a target up."""

FEW_ROUNDS = 6
"""With fewer rounds no interval holds with 95 %."""

WORK = {
    "read": "finding and reading samples",
    "transform": "decoding and cropping",
    "collate": "copying them into batches",
}


@dataclass(frozen=True)
class BatchTimes:
    """Median and 99th percentile of the loop's waits for a batch, and the longest; milliseconds."""

    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Seconds:
    """Seconds of a round that all workers spent on each kind of work, and that the loop waited."""

    read: float
    transform: float
    collate: float
    wait: float


@dataclass(frozen=True)
class Row:
    """A target, read by some number of workers.

    Attributes:
        target: its name. format: ``lmdb``, ``folder`` ... path: absolute.
        workers, worker_type: as in
            :class:`shardkit.measure.bench.cases.BenchOptions`.
        cache: ``warm``, ``cold`` or ``unknown``. rounds: that were timed. samples: a round.
        samples_per_s, bytes_per_s: medians of the rounds, and their intervals.
        ratio: of its rate to that of the first target with as many workers; None for the first.
        verdict: see :data:`shardkit.measure.timing.Verdict`.
        limit: the name of the nearest, or None. of_limit: the share of it that is reached.
        seconds: of a round. device_bytes: read from the device in a round; None where nobody
            counts them. dataset_bytes: of all files that are read from.
    """

    target: str
    format: str
    path: str
    workers: int
    worker_type: str
    cache: str
    rounds: int
    samples: int
    samples_per_s: Interval
    bytes_per_s: Interval
    ratio: Interval | None
    verdict: str
    limit: str | None
    of_limit: float | None
    batch_ms: BatchTimes
    seconds: Seconds
    device_bytes: int | None
    dataset_bytes: int


@dataclass(frozen=True)
class Limit:
    """A rate that no reader can pass; medians of the rounds."""

    name: str
    cache: str
    samples_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Report:
    """Result of :func:`shardkit.bench`.

    Attributes:
        version: of the JSON. commit: of a checkout, or None. command: the command line, or
            nothing. checked: what was compared before anything was timed. rows: one for each
            target and number of workers. notes: what else there is to know, a sentence each.
    """

    version: int
    machine: Machine
    commit: str | None
    command: str
    options: BenchOptions
    checked: str
    limits: tuple[Limit, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


# --- made of what was measured ------------------------------------------------------------

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
    cases: Cases,
    limits: Iterable[str],
    result: Result,
    fields: Sequence[str],
    sizes: Integers,
    options: BenchOptions,
) -> Report:
    """Return the report of what was measured, on samples of these fields and sizes."""
    rows = [_row(cases, name, result, options) for name in cases]
    size = format_bytes(int(sizes.sum()))
    checked = f"{len(sizes):,} samples of {', '.join(fields)}, {size}"
    if (num := len({id(case.target) for case in cases.values()})) > 1:
        checked = f"{num} targets returned the same {checked}"
    return Report(
        version=VERSION,
        machine=machine(),
        commit=commit(),
        command="",
        options=options,
        checked=checked,
        limits=tuple(
            Limit(own.name, own.cache, *(statistics.median(own.rates(unit)) for unit in UNITS))
            for own in map(result.__getitem__, limits)
        ),
        rows=tuple(rows),
        notes=tuple(_notes(options, fields, rows)),
    )


def _row(cases: Cases, name: str, result: Result, options: BenchOptions) -> Row:
    case, own = cases[name], result[name]
    rounds = case.rounds[-len(own.works) :]
    samples_per_s, bytes_per_s = (spread(own.rates(unit)) for unit in UNITS)
    # Files that could not be dropped from memory are no limit.
    names = limits_of(case.target, case.workers, options)
    shares = {one: result.ratio(name, one) for one in names if result[one].cache != "unknown"}
    limit = max(shares, key=shares.__getitem__, default=None)
    spent = np.median([one.seconds for one in rounds], axis=0).tolist()
    waits = 1e3 * np.concatenate([one.batch_s for one in rounds])
    first = next(n for n, c in cases.items() if c.workers == case.workers)
    cache, read = _cache(case, own)
    ratio, word = None, "reference"
    if name != first:
        rates = (result[one].rates("samples") for one in (name, first))
        ratio = spread([own / theirs for own, theirs in zip(*rates, strict=True)])
        # Nothing is said of one that came from the disk and one that may not have.
        is_mixed = {cache, _cache(cases[first], result[first])[0]} == {"cold", "unknown"}
        word = "unclear" if is_mixed else verdict(ratio)
    place = case.target.place
    return Row(
        target=case.target.name,
        format=case.target.format,
        path=str(place) if isinstance(place, Url) else show_path(os.path.abspath(place)),
        workers=case.workers,
        worker_type=options.worker_type,
        cache=cache,
        rounds=len(own.works),
        samples=round(statistics.median(work.samples for work in own.works)),
        samples_per_s=samples_per_s,
        bytes_per_s=bytes_per_s,
        ratio=ratio,
        verdict=word,
        limit=limit,
        of_limit=None if limit is None else shares[limit],
        batch_ms=BatchTimes(*np.percentile(waits, [50, 99, 100]).tolist()),
        seconds=Seconds(*spent),
        device_bytes=read,
        dataset_bytes=case.dataset_bytes,
    )


def _cache(case: Loading, own: Measurement) -> tuple[Cache, int | None]:
    """Return the state, and bytes that the device gave, if it counts them. Cold is only what the
    page cache and the device's counter both call so."""
    rounds = case.rounds[-len(own.works) :]
    counts = [one.device_bytes for one in rounds if one.device_bytes is not None]
    read = int(statistics.median(counts)) if counts else None
    if case.target.is_in_memory:
        return "warm", read
    if own.cache == "cold":
        expected = LEAST_COLD * min(case.sample_bytes, case.dataset_bytes)
        return "cold" if read is None or read >= expected else "unknown", read
    most = MOST_WARM * min(work.bytes for work in own.works)
    is_warm = not case.is_cold and read is not None and read <= most
    return "warm" if is_warm else "unknown", read


def _notes(options: BenchOptions, fields: Sequence[str], rows: Sequence[Row]) -> list[str]:
    notes = []
    if options.cold:
        notes.append(
            "cold: files were written out and dropped from the page cache (posix_fadvise) before"
            " each case, which starts its workers anew; what a drive or a host caches was left"
        )
        for state, why in NOT_COLD.items():
            names = ", ".join(dict.fromkeys(row.target for row in rows if row.cache == state))
            notes += [f"not cold: {names}: {why}"] if names else []
    if any(row.format == "folder" for row in rows):
        notes.append(
            "folder: its files, opened and read one by one; the loader and the decoder are the same"
        )
    if options.read == "raw" and not IMAGE_FIELDS.isdisjoint(fields):
        notes.append("nothing was decoded: what training gets of it, --read train says")
    return notes


# --- in words -----------------------------------------------------------------------------


def cache_states(rows: Sequence[Row]) -> str:
    """Return ``warm``, or ``cold or unknown``."""
    return " or ".join(sorted({row.cache for row in rows}))


def in_words(rows: Sequence[Row], notes: Iterable[str]) -> list[str]:
    """Return the fastest, by how much, how far from the limit, and what takes the time; then the
    notes: a line each.
    """
    best = max(rows, key=lambda row: row.samples_per_s.median)
    if best.ratio is not None and best.ratio.median < 1:  # the other won most of the rounds
        best = reference(best, rows)
    num, kind = best.workers, best.worker_type
    plural = ("es" if kind == "process" else "s") * (num > 1)
    workers = f"{num} {kind}{plural}" if num else "no worker"
    line = f"{best.target} with {workers}, {best.samples_per_s.median:,.0f} samples/s"
    if best.ratio is not None:
        median, low, high = map(times, (best.ratio.median, best.ratio.low, best.ratio.high))
        ratio = f"{median} times {reference(best, rows).target} ({low} to {high})"
        line = f"{line}, {ratio}, {best.verdict}"
    return [f"fastest: {line}", _limited(best), *_unclear(rows), *notes]


def reference(row: Row, rows: Sequence[Row]) -> Row:
    """Return the row that this one is compared with."""
    return next(one for one in rows if one.workers == row.workers)


def _limited(best: Row) -> str:
    """Return how near the fastest is to its limit, and what takes its time."""
    spent = {name: getattr(best.seconds, name) for name in WORK}
    name, most = max(spent.items(), key=lambda item: item[1])
    goes = f"{percent(most / max(sum(spent.values()), 1e-9))} of the work is {WORK[name]}"
    if best.limit is None or best.of_limit is None:
        return goes
    if best.of_limit >= CLOSE:
        goes = "little is left to win"
    return f"it reaches {percent(best.of_limit)} of the limit, {best.limit}; {goes}"


def _unclear(rows: Sequence[Row]) -> list[str]:
    names = ", ".join(dict.fromkeys(row.target for row in rows if row.verdict == "unclear"))
    if not names:
        return []
    rounds = rows[0].rounds
    if any({row.cache, reference(row, rows).cache} == {"cold", "unknown"} for row in rows):
        return [f"not compared: {names}: one side came from the disk, the other may not have"]
    if rounds < FEW_ROUNDS:
        return [f"too few rounds to judge {names}: try --rounds {FEW_ROUNDS} or more"]
    return [f"unclear: the rounds of {names} differ too much; try --rounds {2 * rounds}"]


# --- in tables, and as a page -------------------------------------------------------------


def write_page(path: str | Path, report: Report) -> None:
    """Write a report of :func:`shardkit.bench` as a page.

    Raises:
        StorageError: the file cannot be written.
    """
    write_output(path, as_page(report).encode())


def as_page(report: Report) -> str:
    """Return the page, as HTML."""
    heads, lines = rates(report)
    every = [row.samples_per_s.median for row in report.rows]
    fastest = max(every) or 1.0
    every += [limit.samples_per_s for limit in report.limits]
    rows = [[*line, bar(min(r / fastest, 1.0))] for line, r in zip(lines, every, strict=True)]
    parts = [_case(row) | _times(row) for row in report.rows]
    sections = [
        Section("Rates", rows, (*heads, "")),
        Section("Where the time goes", [[*line.values()] for line in parts], tuple(parts[0])),
    ]
    names = ", ".join(dict.fromkeys(row.target for row in report.rows))
    options = report.options
    facts = [
        ("machine", describe(report.machine)),
        ("commit", report.commit or NOTHING),
        ("cache", cache_states(report.rows)),
        (
            "measured",
            f"{report.checked}; {options.read}, batches of {options.batch_size},"
            f" {options.rounds} rounds, interleaved",
        ),
        *([("command", report.command)] if report.command else []),
    ]
    return page(
        f"shardkit bench: {names}",
        in_words(report.rows, report.notes),
        facts,
        sections,
        json.dumps(report.to_json(), indent=1),
    )


def rates(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines, a line for each row and limit, without columns that are empty."""
    cells = [*map(_rates, report.rows), *map(_limit, report.limits)]
    heads = [head for head in cells[0] if any(line.get(head) for line in cells)]
    return heads, [[line.get(head, "") for head in heads] for line in cells]


def _case(row: Row) -> dict[str, str]:
    return {"target": row.target, "workers": str(row.workers), "cache": row.cache}


def _rates(row: Row) -> dict[str, str]:
    rate, read, against = row.samples_per_s, row.device_bytes, "reference"
    if row.ratio:
        median, low, high = map(times, (row.ratio.median, row.ratio.low, row.ratio.high))
        against = f"{median} ({low}-{high}) {row.verdict}"
    is_cold = row.cache != "warm" and read
    return _case(row) | {
        "samples/s": f"{rate.median:,.0f}",
        "95 % interval": f"{rate.low:,.0f}-{rate.high:,.0f}",
        "MB/s": f"{row.bytes_per_s.median / 1e6:,.0f}",
        "from disk": f"{(read or 0) / row.dataset_bytes:.2f}" if is_cold else "",
        "of limit": "" if row.of_limit is None else percent(row.of_limit),
        "against the first": against,
    }


def _limit(limit: Limit) -> dict[str, str]:
    return {
        "target": f"limit: {limit.name}",
        "cache": limit.cache,
        "samples/s": f"{limit.samples_per_s:,.0f}",
        "MB/s": f"{limit.bytes_per_s / 1e6:,.0f}",
    }


def _times(row: Row) -> dict[str, str]:
    """Return microseconds a sample of all workers together, and how long the loop waited, which is
    less with workers."""
    each = 1e6 / max(row.samples, 1)  # rounds are of different lengths
    batch = row.batch_ms
    return {f"{part}, µs a sample": amount(each * us) for part, us in vars(row.seconds).items()} | {
        "ms a batch": amount(batch.p50),
        "99 %": amount(batch.p99),
        "longest": amount(batch.max),
        "nearest limit": row.limit or NOTHING,
        "path": row.path,
    }
