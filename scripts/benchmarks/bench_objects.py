"""Packing rows that Python has in its hands: shardkit beside the writers of MosaicML and LitData.

    python scripts/benchmarks/bench_objects.py --peers /path/to/python

Rows are 1 KB of bytes and a class. Each case runs in a process of its own, which has imported what
it needs; the call alone is timed, in turn with the others. ``folder`` packs the same bytes from
files, and is the reference; ``MDSWriter of files`` reads those, too. ``--peers`` is a Python that
has mosaicml-streaming and litdata. In the first round each result is read back, and all rows are
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

WORKERS = None
"""shardkit's default; LitData is given two."""
NUM_BYTES = 1024


def row(number: int) -> tuple[bytes, int]:
    """Some bytes that do not shrink, and a class."""
    return np.random.default_rng(number).bytes(NUM_BYTES), number % 10


class Rows:
    """A map-style dataset that holds its rows."""

    def __init__(self, num: int) -> None:
        self.rows = [row(i) for i in range(num)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        data, label = self.rows[number]
        return {"bin": data, "cls": label}


def make_folder(folder: Path, rows: Rows) -> None:
    for number, (data, label) in enumerate(rows.rows):
        path = folder / str(label) / f"{number:08d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


# --- cases: each gives the call to time, and what reads its result back -------------------

Read = Callable[[], Iterator[tuple[bytes, int]]]


def with_shardkit(source: str, rows: Rows, folder: Path) -> tuple[Callable[[], object], Read]:
    import shardkit

    _ = shardkit.pack, shardkit.Writer  # imported when they are first asked for
    dest = folder / "shardkit"
    options: dict[str, Any] = {"to": "npy", "workers": WORKERS, "progress": False}

    def generated() -> Iterator[dict[str, Any]]:
        return (rows[i] for i in range(len(rows)))

    def write() -> None:
        with shardkit.Writer(dest, to="npy", workers=WORKERS) as writer:
            for i in range(len(rows)):
                writer.write(rows[i])

    def read() -> Iterator[tuple[bytes, int]]:
        for sample in shardkit.open(dest):
            yield bytes(sample["bin"]), sample["cls"]

    if source == "folder":
        make_folder(folder / "files", rows)
        options["corpus"] = "files"
        return lambda: shardkit.pack(folder / "files", dest, **options), read
    if source == "writer":
        return write, read
    given = rows if source == "rows" else generated
    return lambda: shardkit.pack(given, dest, **options), read


def with_mosaicml(source: str, rows: Rows, folder: Path) -> tuple[Callable[[], object], Read]:
    import no_torchvision  # noqa: F401
    from streaming import MDSWriter, StreamingDataset

    dest = str(folder / "mds")
    if source == "folder":
        make_folder(folder / "files", rows)

    def samples() -> Iterator[dict[str, Any]]:
        if source != "folder":
            yield from (rows[i] for i in range(len(rows)))
            return
        for label in sorted(os.listdir(folder / "files")):
            base = f"{folder}/files/{label}"
            for name in sorted(os.listdir(base)):
                with open(f"{base}/{name}", "rb") as file:
                    yield {"bin": file.read(), "cls": int(label)}

    def write() -> None:
        with MDSWriter(out=dest, columns={"bin": "bytes", "cls": "int"}) as writer:
            for sample in samples():
                writer.write(sample)

    def read() -> Iterator[tuple[bytes, int]]:
        for sample in StreamingDataset(local=dest, shuffle=False, batch_size=1):
            yield sample["bin"], int(sample["cls"])

    return write, read


def with_litdata(source: str, rows: Rows, folder: Path) -> tuple[Callable[[], object], Read]:
    import litdata

    dest = str(folder / "lit")

    def write() -> None:
        litdata.optimize(
            rows.__getitem__,
            [*range(len(rows))],
            dest,
            chunk_bytes="4MB",
            num_workers=2,
            verbose=False,
        )

    def read() -> Iterator[tuple[bytes, int]]:
        for sample in litdata.StreamingDataset(dest):
            yield sample["bin"], int(sample["cls"])

    return write, read


CASES: dict[str, tuple[Any, str]] = {
    "folder": (with_shardkit, "folder"),
    "rows": (with_shardkit, "rows"),
    "generator": (with_shardkit, "generator"),
    "Writer": (with_shardkit, "writer"),
    "MDSWriter": (with_mosaicml, ""),
    "MDSWriter of files": (with_mosaicml, "folder"),
    "litdata.optimize": (with_litdata, ""),
}
PEERS = ("MDSWriter", "MDSWriter of files", "litdata.optimize")


def run_case(name: str, num: int, is_checked: bool) -> None:
    """In a process of its own: print the seconds of one call."""
    make, source = CASES[name]
    rows = Rows(num)
    with TemporaryDirectory() as folder:
        call, read = make(source, rows, Path(folder))
        started = time.perf_counter()
        call()
        seconds = time.perf_counter() - started
        if is_checked and sorted(read()) != sorted(rows.rows):
            raise SystemExit(f"{name} returns other rows")
    print(json.dumps({"seconds": seconds}))


def timed(python: str, name: str, num: int, is_checked: bool) -> float:
    command = [python, __file__, "--case", name, "--rows", str(num)]
    command += ["--check"] if is_checked else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", help="a Python that has mosaicml-streaming and litdata")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        run_case(args.case, args.rows, args.check)
        return
    pythons = {n: args.peers if n in PEERS else sys.executable for n in CASES}
    names = [name for name, python in pythons.items() if python]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(args.rounds):
        for name in names:
            seconds[name].append(timed(pythons[name], name, args.rows, number == 0))
    reference = seconds["folder"]
    for name, own in seconds.items():
        ratios = sorted(base / one for base, one in zip(reference, own, strict=True))
        rate = args.rows / median(own)
        low, high = ratios[0], ratios[-1]
        print(f"{name:18}{rate:10,.0f} rows/s {median(ratios):6.2f} ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
