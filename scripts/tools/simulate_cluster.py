"""What packing 10^9 samples on a cluster comes to: listing, parts, merge, memory.

    PYTHONPATH=. python scripts/tools/simulate_cluster.py
    PYTHONPATH=. python scripts/tools/simulate_cluster.py --nodes 1000 --opens 500000

Each step is measured at two sizes, in a process of its own, and what an entry, or a row, adds is
what these differ by; made-up entries stand for a listing of many millions, real files for what the
system takes to name them. The rest is arithmetic: what one machine would take, and which of the
limits of a cluster, which options change, is met first. Prints tables in Markdown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import shardkit
from shardkit.inputs.class_folders import ImageCorpus
from shardkit.inputs.corpus import Run
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions

NUM_PARTS = 4
FOLDER = 10_000
"""Made-up entries a folder."""


@dataclass(frozen=True)
class Step:
    """What one more entry, or row, adds; ``mem`` in bytes of the process's largest size."""

    seconds: float
    mem: float
    disk: float = 0.0


@dataclass(frozen=True)
class Took:
    seconds: float
    mem: int
    disk: int


def alone(work: Callable[[Path, int], int], folder: Path, count: int) -> Took:
    """Do it in a process of its own, whose memory is all its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        disk = work(folder, count)
        seconds = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        theirs.send((seconds, (after - before) << 10, disk))

    process = context.Process(target=child)
    process.start()
    found = Took(*ours.recv())
    process.join()
    return found


def step(work: Callable[[Path, int], int], count: int, within: Path) -> Step:
    """By the difference of ``count`` and three times as many."""
    took = []
    for number in (count, 3 * count):
        with tempfile.TemporaryDirectory(dir=within) as folder:
            took.append(alone(work, Path(folder), number))
    one, other = took
    return _difference(one, other, count)


def _difference(one: Took, other: Took, count: int) -> Step:
    """What each of the ``2 * count`` more adds; nothing, where noise is more than that."""
    more = {name: getattr(other, name) - getattr(one, name) for name in vars(one)}
    return Step(*(max(each, 0) / (2 * count) for each in more.values()))


# --- what is measured ---------------------------------------------------------------------


class MadeUp(ImageCorpus):
    """Pictures that are not there."""

    def __init__(self, count: int) -> None:
        self.source, self.classes, self.ignored, self.notes = Path(), None, {}, []
        self.count = count

    def splits(self) -> list[str]:
        return ["train"]

    def runs(self, scratch: Path) -> Iterator[Run]:
        for first in range(0, self.count, FOLDER):
            numbers = range(first, min(first + FOLDER, self.count))
            names = [b"%012d" % number for number in numbers]
            yield Run(
                split="train",
                base=f"{first:012d}",
                locators=[name + b".jpg" for name in names],
                keys=[b"%012d/" % first + name for name in names],
                sizes=[110_000 + number % 1000 for number in numbers],
                stamps=[1_700_000_000_000_000_000 + number for number in numbers],
            )


def listing_of_made_up(folder: Path, count: int) -> int:
    listing = Listing(folder)
    options = PackOptions(to="webdataset", shard_bytes=(4_000_000, 256_000_000))
    corpus = MadeUp(count)
    for _ in list_jobs(corpus, listing, options, corpus.runs(folder)):
        pass
    return sum(path.stat().st_size for path in folder.iterdir())


def make_files(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / "source" / f"{number // 1000:06d}" / f"{number:09d}.jpg"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(b"\xff\xd8\xff")


def naming_files(folder: Path, count: int) -> int:
    """Files are made before the clock of their listing begins: see :func:`named`."""
    (folder / "scratch").mkdir()
    num_entries = sum(map(len, ImageCorpus(folder / "source").runs(folder / "scratch")))
    if num_entries != count:
        raise SystemExit(f"{num_entries} of {count} files were listed")
    return 0


def named(within: Path, count: int) -> Step:
    """Seconds and bytes for each file that is named, its size and its time asked for."""
    took = []
    for number in (count, 3 * count):
        with tempfile.TemporaryDirectory(dir=within) as folder:
            make_files(Path(folder), number)
            took.append(alone(naming_files, Path(folder), number))
    one, other = took
    return _difference(one, other, count)


def merging(within: Path, count: int) -> Step:
    """Of a row; parts are packed before the clock begins."""
    took = []
    for number in (count, 3 * count):
        with tempfile.TemporaryDirectory(dir=within) as name:
            folder = Path(name)
            with (folder / "lines.jsonl").open("w") as file:
                for line in range(number):
                    file.write(json.dumps({"number": line}) + "\n")
            options: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False}
            for part in range(1, NUM_PARTS + 1):
                own = folder / "parts" / str(part)
                shardkit.pack(folder / "lines.jsonl", own, part=f"{part}/{NUM_PARTS}", **options)
            took.append(alone(_merge, folder, number))
    one, other = took
    return _difference(one, other, count)


def _merge(folder: Path, count: int) -> int:
    parts = [*(folder / "parts").iterdir()]
    shardkit.merge(parts, folder / "merged", progress=False)
    return sum(path.stat().st_size for path in (folder / "merged").glob("train.*"))


# --- arithmetic ---------------------------------------------------------------------------


def amount(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.2g} s"


def gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=float, default=1e9)
    parser.add_argument("--bytes", type=float, default=110_000, help="of each sample")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--cores", type=int, default=32, help="of each node")
    parser.add_argument("--network", type=float, default=1.25e9, help="bytes/s of each node")
    parser.add_argument(
        "--opens", type=float, default=100_000, help="files/s that the shared file system opens"
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="entries to measure with")
    parser.add_argument("--within", type=Path, help="a folder on the disk to measure")
    args = parser.parse_args()
    within = args.within or Path(tempfile.gettempdir())
    steps = {
        "name files, on this disk": named(within, args.count // 20),
        "list and cut them": step(listing_of_made_up, args.count, within),
        "merge, for each row": merging(within, args.count // 5),
    }
    print(f"{os.cpu_count()} cores; measured with {args.count:,} entries\n")
    print(f"| step | an entry | {args.samples:.0e} of them | memory | disk |")
    print("|---|---:|---:|---:|---:|")
    for name, each in steps.items():
        total = amount(each.seconds * args.samples)
        memory, disk = (gigabytes(each_ * args.samples) for each_ in (each.mem, each.disk))
        print(f"| {name} | {each.seconds * 1e6:.2f} µs | {total} | {memory} | {disk} |")
    listing = steps["list and cut them"].seconds * args.samples
    total = args.samples * args.bytes
    bounds = {
        "open each file once": args.samples / args.opens,
        "each of as many parts lists all of them": args.nodes * args.samples / args.opens,
        "one machine lists them": max(args.samples / args.opens, listing),
        "read all bytes, and write them": 2 * total / (args.nodes * args.network),
        "merge, on one machine": steps["merge, for each row"].seconds * args.samples,
    }
    print(f"\n| on {args.nodes} nodes | at least |\n|---|---:|")
    for name, seconds in bounds.items():
        print(f"| {name} | {amount(seconds)} |")


if __name__ == "__main__":
    main()
