"""What a change of a dataset costs: 1,000 samples appended to ten thousand, to a million.

    PYTHONPATH=. python scripts/benchmarks/bench_versions.py
    PYTHONPATH=. python scripts/benchmarks/bench_versions.py --counts 10000000 --within /mnt/disk

Samples are lines of JSON of some 100 bytes, which pack fast, so that what is left is the index.
Each count is a dataset of its own, of which copies are changed, round by round. In each, what was
appended is compared with what packing it alone gives. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shardkit
from shardkit.measure.machine import describe, machine

COUNTS = [10_000, 100_000, 1_000_000]
ADDED = 1_000
QUIET: dict[str, Any] = {"workers": 0, "progress": False}


def write_lines(path: Path, first: int, count: int) -> None:
    with path.open("w") as file:
        for number in range(first, first + count):
            file.write(json.dumps({"number": number, "text": f"sample {number:09d} " * 4}) + "\n")


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Rounds:
    """Times of one count of samples, seconds each."""

    def __init__(self, folder: Path, count: int, rounds: int) -> None:
        self.folder, self.count = folder, count
        write_lines(folder / "much.jsonl", 0, count)
        write_lines(folder / "little.jsonl", count, ADDED)
        shardkit.pack(folder / "much.jsonl", folder / "much", to="npy", **QUIET)
        self.times: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            found = self._one()
            for name, seconds in found.items() if number else ():  # the first warms up
                self.times.setdefault(name, []).append(seconds)
        self.index_bytes = sum(path.stat().st_size for path in (folder / "much").glob("train.*"))

    def _one(self) -> dict[str, float]:
        """On links to the files, which no change writes to."""
        dataset, apart = self.folder / "dataset", self.folder / "apart"
        shutil.copytree(self.folder / "much", dataset, copy_function=os.link)
        found = {
            f"pack {ADDED:,} alone": timed(lambda: self._pack(apart)),
            f"append {ADDED:,}": timed(
                lambda: shardkit.append(dataset, self.folder / "little.jsonl", **QUIET)
            ),
        }
        self._refuse_others(dataset, apart)
        drop = shardkit.open(dataset).keys(range(0, self.count, self.count // 100))
        edits: dict[str, Callable[[], object]] = {
            "edit: drop 100": lambda: shardkit.edit(dataset, drop_keys=drop, progress=False),
            "edit: split anew": lambda: shardkit.edit(dataset, val_fraction=0.1, progress=False),
            "open the last version": lambda: shardkit.open(dataset, "train"),
            "prune": lambda: shardkit.prune(dataset),
        }
        found |= {name: timed(work) for name, work in edits.items()}
        shutil.rmtree(dataset)
        shutil.rmtree(apart)
        return found

    def _pack(self, apart: Path) -> None:
        shardkit.pack(self.folder / "little.jsonl", apart, to="npy", **QUIET)

    def _refuse_others(self, dataset: Path, apart: Path) -> None:
        grown, new = shardkit.open(dataset), shardkit.open(apart)
        last = range(self.count, self.count + ADDED)
        if len(grown) != self.count + ADDED or grown.read(last) != new.read(range(ADDED)):
            raise SystemExit("what was appended is not what packing it alone gives")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--within", type=Path, help="a folder on the disk to measure")
    args = parser.parse_args()
    made = []
    for count in args.counts:
        with tempfile.TemporaryDirectory(dir=args.within) as folder:
            made.append(Rounds(Path(folder), count, args.rounds))
    print(describe(machine()))
    print(
        f"\n| seconds, of {args.rounds} the median | {' | '.join(f'{m.count:,}' for m in made)} |"
    )
    print("|---|" + "---:|" * len(made))
    for name in made[0].times:
        medians = (f"{statistics.median(each.times[name]):.3f}" for each in made)
        print(f"| {name} | {' | '.join(medians)} |")
    sizes = (f"{each.index_bytes / each.count:.0f}" for each in made)
    print(f"| bytes of index a sample | {' | '.join(sizes)} |")


if __name__ == "__main__":
    main()
