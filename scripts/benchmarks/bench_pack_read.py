"""What `make bench` runs: packing against tar and cp, reading against a copy and the folder.

Cases of a section run in turn, round after round; a ratio is taken within a round, and the median
over the rounds is printed. Before anything is timed, all sides are shown to return the same data.

    make bench
    make bench BENCH="--jpegs my-pictures --json bench.json"
    make bench BENCH="--only cold --rounds 3"
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_corpora import FORMATS, Corpus
from bench_run import Bench, Row, cold_read, memory_copy, run_sections, synced_write
from plain_folder import Batches

from shardkit.measure.timing import Case, Work
from shardkit.reading.dataset import Dataset
from shardkit.system.page_cache import cache_state, evict, resident_fraction

BATCH = 64
AHEAD = 4
"""Batches announced to the kernel before they are read, where the page cache is cold."""


# --- packing ------------------------------------------------------------------------------


def pack_small(bench: Bench) -> list[Row]:
    """Packing files of 1 KB, by the side of tar cf (files/s)"""
    command = ["tar", "cf", "{dest}", "-C", "{folder}", "."]
    check = ["tar", "df", "{dest}", "-C", "{folder}"]
    # By number of workers. webdataset has two headers a sample (picture and label), tar has one.
    targets = {"webdataset": {1: 0.3, 2: 0.5}}
    others = {1: 0.6, 2: 0.9}
    return pack_by_the_side_of(
        bench, bench.small(), command, check, lambda to, n: targets.get(to, others)[n]
    )


def pack_large(bench: Bench) -> list[Row]:
    """Packing files of 110 KB, by the side of cp -r (files/s)"""
    command = ["cp", "-r", "{folder}", "{dest}"]
    check = ["diff", "-r", "{folder}", "{dest}"]
    return pack_by_the_side_of(bench, bench.large(), command, check, lambda to, workers: 0.7)


def pack_by_the_side_of(
    bench: Bench,
    corpus: Corpus,
    command: list[str],
    check: list[str],
    target: Callable[[str, int], float],
) -> list[Row]:
    """Rows of a rival command, of each format with 1 and 2 workers, and of writing as many bytes.

    ``check`` fails unless the rival, too, holds the data of the folder.
    """
    corpus.check_same()
    cache = corpus.warm()
    num_files, num_bytes = len(corpus.files), corpus.num_bytes
    rival = " ".join(command[:2])
    names = {"folder": corpus.folder, "dest": corpus.scratch / "rival"}

    def run(words: list[str]) -> float:
        corpus.fresh("rival")
        started = time.perf_counter()
        subprocess.run([word.format(**names) for word in words], check=True)
        return time.perf_counter() - started

    def packed(to: str, workers: int) -> Case:
        return lambda: Work(num_files, num_bytes, corpus.pack(to, workers), cache)

    packs = {(to, workers): packed(to, workers) for workers in (1, 2) for to in FORMATS}
    labels = {key: f"{key[0]}, {key[1]} worker{'s' * (key[1] > 1)}" for key in packs}
    result = bench.time(
        {rival: lambda: Work(num_files, num_bytes, run(command), cache)}
        | {labels[key]: case for key, case in packs.items()}
        | {"limit: write and fsync": synced_write(corpus.scratch, num_bytes)}
    )
    run(command)
    subprocess.run([word.format(**names) for word in check], check=True)
    corpus.fresh("rival")
    rows = [result.row(rival)]
    for key, label in labels.items():
        row = result.row(label, rival)
        rows.append(bench.judge(row, target(*key), result.ratio(label, rival)))
    return [*rows, result.row("limit: write and fsync", rival, "bytes")]


# --- reading, warm ------------------------------------------------------------------------


def read_small(bench: Bench) -> list[Row]:
    """Random batches of 64 samples of 1 KB, bytes and label, one thread (samples/s)"""
    corpus = bench.small()
    batches, buffer = start_reading(corpus)
    cases = {"folder": warm_epoch(corpus, [corpus.folder], batches, corpus.files.read)}
    for to in FORMATS:
        dataset, files = Dataset(corpus.packed(to)), [corpus.packed(to)]
        cases[to] = warm_epoch(corpus, files, batches, dataset.read)
        cases[f"{to}, copied"] = warm_epoch(corpus, files, batches, copier(dataset, buffer))
    result = bench.time(cases)
    rows = result.rows("folder")
    return [
        bench.judge(row, 1_500_000, row.samples_per_s) if row.name in FORMATS else row
        for row in rows
    ]


def read_large(bench: Bench) -> list[Row]:
    """Random batches of 64 samples of 110 KB, copied into one buffer, one thread (bytes/s)"""
    corpus = bench.large()
    batches, buffer = start_reading(corpus)
    limit = "limit: memory copy"
    cases = {limit: memory_copy(corpus.num_bytes // len(batches), corpus.num_bytes)}
    cases["folder"] = warm_epoch(corpus, [corpus.folder], batches, corpus.files.read)
    for to in FORMATS:
        copy = copier(Dataset(corpus.packed(to)), buffer)
        cases[to] = warm_epoch(corpus, [corpus.packed(to)], batches, copy)
    result = bench.time(cases)
    rows = result.rows(limit, "bytes")
    return [
        bench.judge(row, 0.8, result.ratio(row.name, limit, "bytes"))
        if row.name in FORMATS
        else row
        for row in rows
    ]


def start_reading(corpus: Corpus) -> tuple[Batches, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Data proven the same and warm; one shuffled epoch of rows; a buffer that holds any batch."""
    corpus.check_same()
    corpus.warm()
    largest = max(map(len, corpus.files.read(np.arange(len(corpus.files)))[0]))
    return corpus.files.batches(BATCH), np.zeros(BATCH * largest, np.uint8)


def copier(
    dataset: Dataset, buffer: np.ndarray[Any, np.dtype[np.uint8]]
) -> Callable[[np.ndarray[Any, Any]], object]:
    return lambda rows: dataset.read_into(rows, "jpg", buffer)


def warm_epoch(
    corpus: Corpus,
    places: list[Path],
    batches: Batches,
    read: Callable[[np.ndarray[Any, Any]], object],
) -> Case:
    """A case that reads every batch once; all it reads was read before."""
    cache = cache_state(resident_fraction(files_in(places)))

    def run() -> Work:
        for rows in batches:
            read(rows)
        return Work(len(corpus.files), corpus.num_bytes, cache=cache)

    return run


def files_in(places: list[Path]) -> list[Path]:
    return [path for place in places for path in place.rglob("*") if path.is_file()]


# --- reading, cold ------------------------------------------------------------------------


def cold(bench: Bench) -> list[Row]:
    """One shuffled epoch of samples of 110 KB, page cache dropped before each (samples/s)"""
    corpus = bench.large()
    batches, buffer = start_reading(corpus)
    one_file = corpus.scratch / "one-file"
    with open(one_file, "wb") as file:
        for path in corpus.files.paths:
            file.write(Path(path).read_bytes())
    cases = {"folder": cold_folder(corpus, batches)}
    cases |= {to: cold_dataset(corpus, to, batches, buffer) for to in FORMATS}
    result = bench.time(cases | {"limit: one file, in order": cold_read(one_file)})
    one_file.unlink()
    rows = [
        bench.judge(result.row(to, "folder"), 2.5, result.ratio(to, "folder")) for to in FORMATS
    ]
    slowest = min(rows, key=lambda row: row.samples_per_s)
    evenness = slowest.samples_per_s / max(row.samples_per_s for row in rows)
    rows[rows.index(slowest)] = bench.judge(
        slowest, 0.8, evenness, f"{evenness:.2f} of the fastest format, "
    )
    last = result.row("limit: one file, in order", "folder", "bytes")
    return [result.row("folder"), *rows, last]


def cold_folder(corpus: Corpus, batches: Batches) -> Case:
    def run() -> Work:
        cache = cache_state(evict(corpus.files.paths))
        started = time.perf_counter()
        for rows in batches:
            corpus.files.read(rows)
        seconds = time.perf_counter() - started
        return Work(len(corpus.files), corpus.num_bytes, seconds, cache)

    return run


def cold_dataset(
    corpus: Corpus, to: str, batches: Batches, buffer: np.ndarray[Any, np.dtype[np.uint8]]
) -> Case:
    """Opened anew each time: a page that a process has mapped cannot be dropped."""
    folder = corpus.packed(to)

    def run() -> Work:
        cache = cache_state(evict(files_in([folder])))
        dataset = Dataset(folder)
        started = time.perf_counter()
        for rows in batches[:AHEAD]:
            dataset.advise(rows)
        for number, rows in enumerate(batches):
            if number + AHEAD < len(batches):
                dataset.advise(batches[number + AHEAD])
            dataset.read_into(rows, "jpg", buffer)
        seconds = time.perf_counter() - started
        return Work(len(corpus.files), corpus.num_bytes, seconds, cache)

    return run


# --- the command --------------------------------------------------------------------------

SECTIONS = {
    "pack-small": pack_small,
    "pack-large": pack_large,
    "read-small": read_small,
    "read-large": read_large,
    "cold": cold,
}


if __name__ == "__main__":
    run_sections(__doc__ or "", SECTIONS)
