"""What the programs of `make bench` have in common: sections of timed rows, targets, a report,
limits of the machine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_corpora import FULL, QUICK, Corpus, Scale, large_corpus, small_corpus

from shardkit.measure.figures import table
from shardkit.measure.machine import describe, machine
from shardkit.measure.timing import Case, Result, Unit, Work, interleave
from shardkit.system.page_cache import Cache, cache_state, evict


@dataclass(frozen=True)
class Row:
    """One line of a report.

    Attributes:
        name: of the case.
        cache: ``warm``, ``cold`` or ``unknown``.
        rounds: how many were timed.
        samples_per_s, bytes_per_s: medians of the rounds.
        median_s, min_s, max_s: time of a round, in seconds.
        reference: the case that ``ratio`` compares with, if any.
        ratio: median over the rounds of (rate / rate of the reference in that round); over 1 is
            faster.
        note: anything else, such as a target and whether it was met.
    """

    name: str
    cache: Cache
    rounds: int
    samples_per_s: float
    bytes_per_s: float
    median_s: float
    min_s: float
    max_s: float
    reference: str | None = None
    ratio: float | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Timed(Result):
    """All cases that were timed in turn, as rows."""

    def row(self, name: str, reference: str | None = None, unit: Unit = "samples") -> Row:
        """The line of one case, compared with ``reference`` by ``unit`` a second."""
        case = self[name]
        row = Row(
            name=name,
            cache=case.cache,
            rounds=len(case.works),
            samples_per_s=statistics.median(case.rates("samples")),
            bytes_per_s=statistics.median(case.rates("bytes")),
            median_s=statistics.median(case.seconds),
            min_s=min(case.seconds),
            max_s=max(case.seconds),
        )
        if reference is None:
            return row
        return replace(row, reference=reference, ratio=self.ratio(name, reference, unit))

    def rows(self, reference: str | None = None, unit: Unit = "samples") -> list[Row]:
        """A line a case; all but the reference itself are compared with it."""
        return [
            self.row(name, None if name == reference else reference, unit)
            for name in self.measurements
        ]


def time_in_turn(cases: Mapping[str, Case], rounds: int) -> Timed:
    return Timed(interleave(cases, rounds).measurements)


@dataclass(frozen=True)
class Bench:
    """What a section is given: its corpora, made when asked for, and how to time and to judge.

    Attributes:
        jpegs: a folder of the user's pictures, to be used as large files. is_quick: run a little
            of everything and judge nothing. peer: another Python, for the other side. text: a
            folder of the user's text.
    """

    workdir: Path
    jpegs: Path | None
    rounds: int
    is_quick: bool
    peer: Path | None = None
    text: Path | None = None

    @property
    def scale(self) -> Scale:
        return QUICK if self.is_quick else FULL

    def small(self) -> Corpus:
        return small_corpus(self.workdir, self.scale)

    def large(self) -> Corpus:
        return large_corpus(self.workdir, self.scale, self.jpegs)

    def time(self, cases: dict[str, Case]) -> Timed:
        return time_in_turn(cases, self.rounds)

    def judge(
        self, row: Row, target: float, value: float, what: str = "", is_most: bool = False
    ) -> Row:
        """The row with a target, and whether it was met, in words: ``value`` must be at least the
        target, or at most with ``is_most``."""
        if self.is_quick:
            return row
        is_met = value <= target if is_most else value >= target
        note = f"{what}target {target:,}: {'met' if is_met else 'MISSED'}"
        return replace(row, note=f"{row.note}; {note}" if row.note else note)


Section = Callable[[Bench], list[Row]]


class SkippedError(Exception):
    """Raised by a section that cannot run on this machine; says why."""


def run_sections(doc: str, sections: Mapping[str, Section]) -> None:
    """The whole program: arguments, sections, report."""
    args = parse_arguments(doc, sections)
    rounds = args.rounds or (1 if args.quick else 5)
    bench = Bench(args.workdir, args.jpegs, rounds, args.quick, args.peer, args.text)
    if args.only and not set(args.only) & set(sections):
        print(f"No section of this program is chosen: it has {', '.join(sections)}.")
        return
    here = machine()
    report: dict[str, Any] = {"machine": asdict(here), "sections": {}}
    print(describe(here), flush=True)
    shutil.rmtree(bench.workdir / "packed", ignore_errors=True)
    for name, section in sections.items():
        if args.only and name not in args.only:
            continue
        try:
            rows = section(bench)
        except SkippedError as why:
            print(f"\n{name}: {section.__doc__}\nskipped: {why}", flush=True)
            continue
        print(f"\n{name}: {section.__doc__}\n{render(rows)}", flush=True)
        report["sections"][name] = [row.to_json() for row in rows]
    shutil.rmtree(bench.workdir / "packed", ignore_errors=True)
    print(f"\n{bench.rounds} rounds in turn; seconds and rates are medians, ratios within a round.")
    if args.json:
        add_to(args.json, report)


def add_to(path: Path, report: dict[str, Any]) -> None:
    """Write the report; keep what another program of `make bench` wrote on this machine."""
    if path.exists():
        earlier = json.loads(path.read_text())
        load = {"load_1min": None}
        if earlier.get("machine", {}) | load == report["machine"] | load:
            report = report | {"sections": earlier["sections"] | report["sections"]}
    path.write_text(json.dumps(report, indent=1))


def parse_arguments(doc: str, sections: Mapping[str, Section]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("--workdir", type=Path, default=Path("bench-data"), help="(%(default)s)")
    parser.add_argument("--jpegs", type=Path, help="use the JPEGs in this folder as large files")
    parser.add_argument("--text", type=Path, help="use the text files in this folder")
    only = f"sections to run (all): {', '.join(sections)}; names of other programs' are left out"
    parser.add_argument("--only", nargs="+", metavar="SECTION", help=only)
    parser.add_argument("--peer", type=Path, help="Python of another environment, to compare with")
    parser.add_argument("--rounds", type=int, help="timed rounds (5)")
    parser.add_argument("--json", type=Path, help="write, or add, the rows to this file, too")
    parser.add_argument("--quick", action="store_true", help="few files, no targets: does it run?")
    return parser.parse_args()


def render(rows: Sequence[Row]) -> str:
    """Rows as a plain text table, numbers flush right."""
    head = ("", "cache", "samples/s", "MB/s", "seconds", "min-max", "ratio", "")
    return "\n".join(table([head, *map(_cells, rows)], left=(0, 1, len(head) - 1)))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.cache,
        f"{row.samples_per_s:,.0f}" if row.samples_per_s else "-",
        f"{row.bytes_per_s / 1e6:,.0f}" if row.bytes_per_s else "-",
        f"{row.median_s:.3f}",
        f"{row.min_s:.3f}-{row.max_s:.3f}",
        "-" if row.ratio is None else f"{row.ratio:.2f}",
        row.note,
    )


# --- limits of the machine, as cases --------------------------------------------------------


def cold_read(path: Path, chunk_bytes: int = 8 << 20) -> Case:
    """A case that reads a file from end to end, after dropping it from the page cache."""

    def read() -> Work:
        state = cache_state(evict([path]))
        buffer, num_bytes = bytearray(chunk_bytes), 0
        with open(path, "rb", buffering=0) as file:
            started = time.perf_counter()
            while count := file.readinto(buffer):
                num_bytes += count
            seconds = time.perf_counter() - started
        return Work(bytes=num_bytes, seconds=seconds, cache=state)

    return read


def synced_write(folder: Path, num_bytes: int) -> Case:
    """A case that writes a new file of random bytes into ``folder``, and waits for the disk.

    What others left to be written goes first, off the clock.
    """
    data = np.random.default_rng(0).bytes(num_bytes)

    def write() -> Work:
        path = folder / f".timing-{os.getpid()}"
        os.sync()
        try:
            with open(path, "wb", buffering=0) as file:
                started = time.perf_counter()
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
                seconds = time.perf_counter() - started
        finally:
            path.unlink(missing_ok=True)
        return Work(bytes=num_bytes, seconds=seconds)

    return write


def memory_copy(chunk_bytes: int, source_bytes: int) -> Case:
    """A case that copies a source into one buffer of ``chunk_bytes``, chunk after chunk.

    A source larger than the processor's cache gives the rate of main memory, one of
    ``chunk_bytes`` the rate of the cache.
    """
    # Ones, not zeros: a page never written to is one shared page of zeros, and copies too fast.
    source, chunk = np.ones(source_bytes, np.uint8), np.ones(chunk_bytes, np.uint8)
    starts = range(0, source_bytes - chunk_bytes + 1, chunk_bytes)

    def copy() -> Work:
        for start in starts:
            np.copyto(chunk, source[start : start + chunk_bytes])
        return Work(bytes=len(starts) * chunk_bytes, cache="warm")

    return copy
