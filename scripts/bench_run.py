"""What the programs of `make bench` have in common: sections of timed rows, targets, a report."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench_corpora import FULL, QUICK, Corpus, Scale, large_corpus, small_corpus

from shardkit.measure.machine import describe, machine
from shardkit.measure.timing import Case, Result, Row, interleave, render


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

    def time(self, cases: dict[str, Case]) -> Result:
        return interleave(cases, self.rounds)

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
