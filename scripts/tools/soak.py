"""Run loaders for some minutes, and see that nothing grows: memory, threads, files, processes.

    python scripts/tools/soak.py 3

Each turn runs every kind of loop in this process: thread and process workers, early breaks,
resumes, errors, a mix, the prefetcher. A line is printed every few seconds. The exit status is 1
if the second half of the run holds more than the first. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from make_pictures import Pictures

from shardkit.errors import DataError
from shardkit.loading.cuda_prefetch import CudaPrefetcher
from shardkit.loading.loader import Loader
from shardkit.loading.workers import WorkerType
from shardkit.packing.pack import pack
from shardkit.reading.dataset import Dataset
from shardkit.reading.mix import mix

MOST_SHARE = 1.05
MOST_BYTES = 10 << 20
"""The second half may hold this many times the memory of the first, and this much more."""

# --- what is held -------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """What this process and its children hold at one moment.

    Attributes:
        rss: bytes of this process. pss: bytes of all; a page shared by n counts 1/n for each. own:
            the part of pss that is no file: with strangers on the machine who map the same
            libraries, pss grows when they end, so it is printed and not judged.
    """

    at_s: float
    rss: int
    pss: int
    own: int
    threads: int
    files: int
    children: int

    def __str__(self) -> str:
        return (
            f"{self.at_s:6.1f} s  RSS {self.rss / 1e6:6.1f} MB  PSS {self.pss / 1e6:6.1f} MB"
            f" ({self.own / 1e6:.1f} no file)"
            f"  {self.threads:3} threads  {self.files:3} files  {self.children:2} children"
        )


LOOKING = threading.Lock()
"""A look opens files under /proc: two at once would each count the other's."""


def look(started: float) -> Held:
    own = os.getpid()
    with LOOKING:
        children = list(descendants(own))
        return Held(
            at_s=time.perf_counter() - started,
            rss=rollup(own, "Rss"),
            pss=sum(rollup(pid, "Pss") for pid in (own, *children)),
            own=sum(rollup(pid, "Pss_Anon", "Pss_Shmem") for pid in (own, *children)),
            threads=len(os.listdir("/proc/self/task")),
            files=len(os.listdir("/proc/self/fd")),
            children=len(children),
        )


def rollup(pid: int, *names: str) -> int:
    """Lines of /proc/PID/smaps_rollup, summed, in bytes; 0 for a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.partition(":")[0] in names)


def descendants(pid: int) -> Iterator[int]:
    """Children, their children, and so on."""
    try:
        tasks = [Path(f"/proc/{pid}/task/{task}") for task in os.listdir(f"/proc/{pid}/task")]
        children = [
            int(child) for task in tasks for child in (task / "children").read_text().split()
        ]
    except OSError:  # it has just ended
        return
    for child in children:
        yield child
        yield from descendants(child)


@contextmanager
def watch(seen: list[Held], started: float, every_s: float) -> Iterator[None]:
    """Look, and print, every so many seconds, in a thread."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(every_s):
            seen.append(look(started))
            print(seen[-1], flush=True)

    watcher = threading.Thread(target=run)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def growth(seen: list[Held], names: Iterable[str]) -> list[str]:
    """What the second half holds more of than the first, in words."""
    half = len(seen) // 2
    words = []
    for name in names:
        values = [getattr(held, name) for held in seen]
        before, after = statistics.median(values[:half]), statistics.median(values[half:])
        is_memory = name in ("rss", "own")
        most = before * MOST_SHARE + MOST_BYTES if is_memory else before
        if after > most:
            words.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
    return words


# --- what is run --------------------------------------------------------------------------

BATCH = 32

MIN_LOOKS = 20
"""While it runs memory goes up and down with the kind of worker: fewer looks say nothing."""


def turn(one: Dataset, two: Dataset, worker_type: WorkerType, workers: int, number: int) -> None:
    """Every kind of loop, once."""
    options: dict[str, Any] = {"workers": workers, "worker_type": worker_type, "seed": number}

    def loader(**more: Any) -> Loader:
        return Loader(one, BATCH, **{"shuffle": "full", **options, **more})

    run(loader(transform=flip))
    run(loader(shuffle="block", as_buffer=["jpg"]), most=3)
    resume(loader(last="pad"), loader(last="pad"))
    run(loader(transform=stumble, on_error="skip"))
    try:
        run(loader(transform=stumble))
        raise SystemExit("a loader passed over samples that its transform refused")
    except DataError:
        pass
    both = mix({"one": one, "two": two})
    run(Loader(both, BATCH, shuffle="full", with_keys=True, **options))
    prefetcher = CudaPrefetcher(loader())
    run(prefetcher, most=5)
    run(prefetcher)


def run(batches: Iterable[Any], most: int | None = None) -> None:
    """An epoch, or its first batches."""
    for _ in itertools.islice(batches, most):
        pass


def resume(first: Loader, second: Loader) -> None:
    """An epoch that one loader begins and another one ends."""
    run(first, most=4)
    second.load_state_dict(first.state_dict())
    run(second)


def flip(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    pixels = np.frombuffer(sample["jpg"], np.uint8)[:256]
    return {"jpg": pixels[::-1] if rng.random() < 0.5 else pixels, "cls": sample["cls"]}


def stumble(sample: dict[str, Any]) -> dict[str, Any]:
    """Refuses some pictures, always the same."""
    if sample["jpg"][-20] == 17:
        raise ValueError("a sample of no use")
    return sample


def datasets(folder: Path) -> tuple[Dataset, Dataset]:
    print(f"packing into {folder}", flush=True)
    Pictures(count=1000).write(folder / "pictures")
    for to in ("lmdb", "webdataset"):
        pack(folder / "pictures", folder / to, to=to, shard_size="200KB", progress=False)
    return Dataset(folder / "lmdb"), Dataset(folder / "webdataset")


# --- the command --------------------------------------------------------------------------


def soak(folder: Path, seconds: float, every_s: float) -> list[str]:
    """What grew, in words."""
    one, two = datasets(folder)
    kinds: list[tuple[WorkerType, int]] = [("thread", 0), ("thread", 2), ("process", 2)]
    while_running: list[Held] = []
    between_turns: list[Held] = []
    for kind in kinds:  # what is imported and mapped once is no growth
        turn(one, two, *kind, number=0)
    started = time.perf_counter()
    with watch(while_running, started, every_s):
        for number in itertools.count(1):
            for kind in kinds:
                turn(one, two, *kind, number=number)
            gc.collect()
            between_turns.append(look(started))
            if time.perf_counter() - started > seconds and number > 1:
                break
    print(f"{len(between_turns)} turns; after the first and the last:")
    print(between_turns[0], between_turns[-1], sep="\n")
    grown = growth(between_turns, ["rss", "own", "threads", "files", "children"])
    return grown + growth(while_running, ["own"]) if len(while_running) >= MIN_LOOKS else grown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("minutes", type=float, help="how long to run")
    parser.add_argument("--every", type=float, default=5.0, help="seconds a line (%(default)s)")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", "replaced by the next good sample")
    with tempfile.TemporaryDirectory(prefix="shardkit-soak-") as folder:
        grown = soak(Path(folder), args.minutes * 60, args.every)
    if grown:
        print("\n".join(grown))
        sys.exit(1)
    print("nothing grew")


if __name__ == "__main__":
    main()
