"""The second program of `make bench`: what Loader adds to reading and decoding, and how it waits.

Cases of a section run in turn, round after round; a ratio is taken within a round, and the median
over the rounds is printed. Before anything is timed, both sides are shown to give the same data.

    make bench
    make bench BENCH="--jpegs my-pictures"
    python scripts/benchmarks/bench_feed.py --only overhead --rounds 9
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_corpora import Corpus, large_corpus
from bench_run import Bench, Row, Timed, cold_read, run_sections

from shardkit import images
from shardkit.batches.collate import collate
from shardkit.batches.transform import Draws
from shardkit.loading.loader import Loader
from shardkit.loading.workers import WorkerType
from shardkit.measure.timing import Case, Measurement, Work
from shardkit.order.epochs import Order
from shardkit.reading.dataset import Dataset
from shardkit.system.page_cache import cache_state, evict

FORMAT = "lmdb"
"""All four have the same read path; bench_pack_read.py compares them."""

BATCH = 64
SIZE = 224
SEED = 3

# --- decoding -----------------------------------------------------------------------------


def decode(bench: Bench) -> list[Row]:
    """Batches of 64 crops 224x224 of JPEGs, by the side of the decode calls alone (images/s)"""
    corpus = bench.large()
    dataset = Dataset(corpus.packed(FORMAT))
    corpus.files.check_same(FORMAT, dataset)
    cache = corpus.warm()
    pictures, _ = corpus.files.read(np.arange(len(corpus.files)))
    size = 8 if bench.is_quick else BATCH
    batches = batches_of(len(dataset), size)

    transform, draws = images.train(SIZE), Draws(SEED, epoch=0)

    def bare(number: int) -> Any:
        keys = draws.keys(np.arange(number * size, (number + 1) * size))
        return transform.batch({"jpg": [pictures[row] for row in batches[number]]}, keys)["image"]

    check_same_pixels(decoding_loader(dataset, size), bare)

    def loop(threads: int) -> Work:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(bare, range(len(batches))):
                pass
        return Work(len(batches) * size, cache=cache)

    def load(workers: int) -> Work:
        loader = decoding_loader(dataset, size, workers)
        return Work(sum(len(batch["image"]) for batch in loader), cache=cache)

    cases: dict[str, Case] = {}
    for num in (1, 2):
        cases[bare_name(num)] = partial(loop, num)
        cases[f"Loader, {threads_in_words(num)}"] = partial(load, num)
    result = bench.time(cases)
    rows = []
    for num in (1, 2):
        name, reference = f"Loader, {threads_in_words(num)}", bare_name(num)
        row = result.row(name, reference)
        if num == 2:
            row = bench.judge(row, 0.9, result.ratio(name, reference))
        rows += [result.row(reference), row]
    return rows


def bare_name(num: int) -> str:
    return f"decode calls, {threads_in_words(num)}"


def threads_in_words(num: int) -> str:
    return "no worker" if not num else f"{num} thread{'s' * (num > 1)}"


def decoding_loader(dataset: Dataset, size: int, workers: int = 2) -> Loader:
    crop = images.train(SIZE)
    return Loader(dataset, size, shuffle="full", seed=SEED, transform=crop, workers=workers)


def check_same_pixels(loader: Loader, bare: Callable[[int], Any], most: int = 8) -> None:
    """Stop the program unless the first batches are, pixel for pixel, those of the bare loop."""
    for number, batch in enumerate(loader):
        if not np.array_equal(batch["image"].numpy(), bare(number)):
            raise SystemExit(f"batch {number} of the loader is not that of the bare loop")
        if number + 1 == most:
            return


def batches_of(num_rows: int, size: int = BATCH) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """The rows of each whole batch of the first epoch, as Loader has them."""
    rows = Order(num_rows, "full", SEED).rows(np.arange(num_rows // size * size))
    return list(rows.reshape(-1, size))


# --- overhead -----------------------------------------------------------------------------


def overhead(bench: Bench) -> list[Row]:
    """Batches of 64 samples of 1 KB, bytes and label: Loader beside read and collate (samples/s)"""
    corpus = bench.small()
    dataset = Dataset(corpus.packed(FORMAT))
    corpus.files.check_same(FORMAT, dataset)
    cache = corpus.warm()
    batches = batches_of(len(dataset))
    times = 1 if bench.is_quick else 4

    def loader(workers: int) -> Loader:
        return Loader(dataset, BATCH, shuffle="full", seed=SEED, workers=workers)

    def bare() -> Work:
        for _ in range(times):
            for rows in batches:
                collate(dataset.read(rows))
        return Work(times * len(batches) * BATCH, cache=cache)

    def load(workers: int) -> Work:
        loaded = loader(workers)
        for _ in range(times):
            for _ in loaded:
                pass
        return Work(times * len(batches) * BATCH, cache=cache)

    for rows, batch in zip(batches, loader(2), strict=True):
        plain = collate(dataset.read(rows))
        if batch["jpg"] != plain["jpg"] or not bool((batch["cls"] == plain["cls"]).all()):
            raise SystemExit("the loader's batches are not those of the bare loop")
    names = {f"Loader, {threads_in_words(num)}": num for num in (0, 1, 2)}
    result = bench.time(
        {"read and collate": bare} | {name: partial(load, num) for name, num in names.items()}
    )
    rows_out = [result.row("read and collate")]
    for name in names:
        extra_ms = added(result[name], result["read and collate"]) / (times * len(batches)) * 1e3
        row = result.row(name, "read and collate")
        row = replace(row, note=f"{extra_ms:+.3f} ms a batch")
        rows_out.append(bench.judge(row, 0.2, extra_ms, is_most=True))
    return rows_out


def added(case: Measurement, reference: Measurement) -> float:
    """Seconds more than the reference took: in each round, then the median."""
    pairs = zip(case.seconds, reference.seconds, strict=True)
    return statistics.median(own - theirs for own, theirs in pairs)


# --- waiting ------------------------------------------------------------------------------

COMPUTE_S = 0.050
LOAD_S = COMPUTE_S / 1.5
WAIT_BATCH = 8


def wait(bench: Bench) -> list[Row]:
    """A step of 50 ms and a loader that needs 33 ms a batch: how long the loop waits (samples/s)"""
    dataset = Dataset(bench.small().packed(FORMAT))
    num_batches = 4 if bench.is_quick else 200  # 10 s: starting workers is part of it
    dataset = dataset.select(np.arange(num_batches * WAIT_BATCH))
    shares: dict[str, list[tuple[float, float]]] = {}

    def loop(name: str, worker_type: WorkerType, workers: int) -> Work:
        # So many workers at so slow a pace: a batch in 33 ms.
        transform = partial(slow, seconds=LOAD_S * workers / WAIT_BATCH)
        loader = Loader(
            dataset, WAIT_BATCH, transform=transform, workers=workers, worker_type=worker_type
        )
        started = time.perf_counter()
        first_s = 0.0
        for _ in loader:
            first_s = first_s or loader.stats.wait_s
            time.sleep(COMPUTE_S)
        seconds = time.perf_counter() - started
        wait_s = loader.stats.wait_s
        shares.setdefault(name, []).append((wait_s / seconds, (wait_s - first_s) / seconds))
        return Work(num_batches * WAIT_BATCH, seconds=seconds)

    kinds: dict[str, tuple[WorkerType, int]] = {
        "1 thread": ("thread", 1),
        "2 threads": ("thread", 2),
        "2 processes": ("process", 2),
    }
    result = bench.time({name: partial(loop, name, *kind) for name, kind in kinds.items()})
    rows = []
    for name in kinds:
        timed = np.array(shares[name][-bench.rounds :])
        percent, later = (np.median(timed, axis=0) * 100).tolist()
        note = f"waits {percent:.2f} % of the time, {later:.2f} % after the first batch"
        row = replace(result.row(name), note=note)
        rows.append(bench.judge(row, 2, percent, is_most=True))
    return rows


def slow(sample: dict[str, Any], seconds: float) -> dict[str, Any]:
    time.sleep(seconds)
    return sample


# --- cold ---------------------------------------------------------------------------------

FIO = "limit: fio, random 128 KB, depth 32"
IN_ORDER = "limit: the files in order"


@dataclass(frozen=True)
class Cold:
    """A dataset on a disk, and cases that read all of it after dropping it from memory."""

    folder: Path
    num_bytes: int
    fio_block: str

    @property
    def shards(self) -> list[Path]:
        return sorted(self.folder.glob(f"train-*.{FORMAT}"))

    def epoch(self, shuffle: str | None, readahead: int) -> Work:
        """Opened anew each time: a page that a process has mapped cannot be dropped."""
        cache = cache_state(evict(self.shards))
        loader = Loader(
            Dataset(self.folder),
            BATCH,
            shuffle=shuffle,  # type: ignore[arg-type]
            seed=SEED,
            workers=1,
            last="pad",
            as_buffer=["jpg"],
            readahead=readahead,
        )
        started = time.perf_counter()
        num = sum(int(batch["valid"].sum()) for batch in loader)
        return Work(num, self.num_bytes, time.perf_counter() - started, cache)

    def in_order(self) -> Work:
        works = [cold_read(path)() for path in self.shards]
        seconds = sum(work.seconds or 0.0 for work in works)
        return Work(bytes=sum(work.bytes for work in works), seconds=seconds, cache="cold")

    def fio(self, engine: str, is_direct: bool, depth: int = 32) -> Work:
        """Every block of the files once, ``depth`` at a time."""
        cache = cache_state(evict(self.shards))
        command = [
            "fio", "--name=bench", "--rw=randread", f"--bs={self.fio_block}", f"--iodepth={depth}",
            "--readonly", "--output-format=json",
            f"--ioengine={engine}", f"--direct={int(is_direct)}",
            f"--filename={':'.join(map(str, self.shards))}",
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        read = json.loads(done.stdout)["jobs"][0]["read"]
        return Work(bytes=read["io_bytes"], seconds=read["runtime"] / 1e3, cache=cache)


def cold(bench: Bench) -> list[Row]:
    """An epoch of samples of 110 KB, one worker, page cache dropped before each (samples/s)"""
    with cold_corpus(bench) as corpus:
        block = "4k" if bench.is_quick else "128k"  # fio skips files of less than a block
        files = Cold(corpus.packed(FORMAT), corpus.num_bytes, block)
        corpus.files.check_same(FORMAT, Dataset(files.folder))
        cases: dict[str, Case] = {
            "full order, readahead=0": partial(files.epoch, "full", 0),
            "full order": partial(files.epoch, "full", 4),
            "block order": partial(files.epoch, "block", 4),
            "packing order": partial(files.epoch, None, 4),
            IN_ORDER: files.in_order,
        }
        has_fio = bool(shutil.which("fio"))
        if has_fio:
            cases |= {f"{FIO}, {name}": partial(files.fio, *how) for name, how in FIOS.items()}
        return cold_rows(bench, bench.time(cases), has_fio)


FIOS = {"libaio, direct": ("libaio", True), "io_uring, buffered": ("io_uring", False)}


def cold_rows(bench: Bench, result: Timed, has_fio: bool) -> list[Row]:
    without, full = "full order, readahead=0", "full order"
    row = bench.judge(result.row(full, without), 1.4, result.ratio(full, without))
    for name in FIOS:
        if has_fio:
            share = result.ratio(full, f"{FIO}, {name}", "bytes")
            row = bench.judge(row, 0.6, share, f"{share:.2f} of fio ({name}), ")
    if not has_fio:
        row = replace(row, note=f"{row.note}; no fio here to compare with".lstrip("; "))
    block = result.row("block order", IN_ORDER, "bytes")
    return [
        result.row(without),
        row,
        bench.judge(block, 0.9, result.ratio("block order", IN_ORDER, "bytes")),
        result.row("packing order", IN_ORDER, "bytes"),
        result.row(IN_ORDER),
        *(result.row(f"{FIO}, {name}", IN_ORDER, "bytes") for name in FIOS if has_fio),
    ]


@contextmanager
def cold_corpus(bench: Bench) -> Iterator[Corpus]:
    """Three times the large files: block order has windows of 4,096 samples, and wants several."""
    scale = replace(bench.scale, num_large=3 * bench.scale.num_large)
    workdir = bench.workdir / "cold"
    try:
        yield large_corpus(workdir, scale, bench.jpegs)
    finally:
        shutil.rmtree(workdir, ignore_errors=True)


# --- the command --------------------------------------------------------------------------

SECTIONS = {
    "decode": decode,
    "overhead": overhead,
    "wait": wait,
    "cold": cold,
}

if __name__ == "__main__":
    run_sections(__doc__ or "", SECTIONS)
