"""Is tune's choice as fast as the best of the full grid, the cross product of what it may try?

For pictures cropped for training, raw bytes small and large, and tokens: tune, then time every
setting of the full grid, and then the choice beside the best of the grid again, in turn. The ratio
is taken within each round; the median over the rounds should be 0.95 or more. The full grid is
each kind of worker in each number at each depth; tune looks at one of these after another.

A trial times a part of an epoch and reckons the rate of the whole: in the same rounds the choice
is timed over one whole epoch, too, as a row of its own. That takes long with many samples.

    python scripts/benchmarks/check_tune.py --jpegs my-pictures --only image
    python scripts/benchmarks/check_tune.py --only raw-small raw-large tokens
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from bench_run import Bench, Row, run_sections

from shardkit import images
from shardkit.batches.source import Source, check_source
from shardkit.loading.settings import Settings
from shardkit.loading.workers import WorkerType
from shardkit.measure.race import PREFETCHES, scores, worker_counts
from shardkit.measure.timing import Case, Work, interleave
from shardkit.measure.tuning import Workload, tune
from shardkit.reading.dataset import Dataset
from shardkit.sequences.token_dataset import TokenDataset
from shardkit.system.resources import allowance

BATCH = 64
SIZE = 224
SEQ_LEN = 2048
TARGET = 0.95
TUNE_S, TRIAL_S = 40.0, 0.3
WHOLE = "the choice, a whole epoch"
NUM_BEST = 3
"""Of the grid, that are timed again: the first of a noisy grid need not be its best."""


def image(bench: Bench) -> list[Row]:
    """Crops 224x224 of JPEGs (images/s)"""
    dataset = Dataset(bench.large().packed("lmdb"))
    return check(bench, dataset, {"transform": images.train(SIZE)})


def raw_small(bench: Bench) -> list[Row]:
    """Samples of 1 KB as they are (samples/s)"""
    return check(bench, Dataset(bench.small().packed("lmdb")), {})


def raw_large(bench: Bench) -> list[Row]:
    """Samples of 110 KB as they are (samples/s)"""
    return check(bench, Dataset(bench.large().packed("lmdb")), {})


def tokens(bench: Bench) -> list[Row]:
    """Windows of 2,048 tokens (windows/s)"""
    path = bench.workdir / "tokens.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    num = (1 if bench.is_quick else 100) << 19
    np.random.default_rng(0).integers(0, 32_000, num, np.uint16).tofile(path)
    try:
        return check(bench, check_source(TokenDataset(path, seq_len=SEQ_LEN)), {})
    finally:
        path.unlink()


def check(bench: Bench, source: Source, options: dict[str, Any]) -> list[Row]:
    """Tune, time the grid, and time the choice and the grid's best in turn."""
    work = Workload(source, 8 if bench.is_quick else BATCH, {"shuffle": "full", **options})
    seconds, trial_s, grid_rounds = (1.0, 0.01, 1) if bench.is_quick else (TUNE_S, TRIAL_S, 2)
    found = tune(source, work.batch_size, seconds=seconds, save=False, **work.options)
    chosen = found.settings
    best = best_of_grid(work, trial_s, grid_rounds)
    compared: dict[str, Case] = {
        str(one): partial(work.timed, one, 2 * trial_s) for one in [chosen, *best]
    }
    compared[WHOLE] = partial(whole_epoch, work, chosen)
    result = bench.time(compared)
    rows = [result.row(str(chosen), str(one)) for one in best if one != chosen]
    whole = replace(result.row(WHOLE, str(chosen)), note="what the trials reckon with is 1.00")
    if not rows:
        return [replace(result.row(str(chosen)), note="the best of the grid itself"), whole]
    worst = min(rows, key=lambda row: row.ratio or 0.0)
    others = [*(result.row(str(one)) for one in best if one != chosen), whole]
    return [bench.judge(worst, TARGET, worst.ratio or 0.0, f"beside {worst.reference}: "), *others]


def whole_epoch(work: Workload, one: Settings) -> Work:
    """Timed from its beginning to the end of its workers."""
    loader = work.loader(one)
    started = time.perf_counter()
    for _ in loader:
        pass
    return Work(len(loader) * work.batch_size, seconds=time.perf_counter() - started)


def best_of_grid(work: Workload, trial_s: float, rounds: int) -> list[Settings]:
    cases = {one: partial(work.timed, one, trial_s) for one in grid()}
    result = interleave({str(one): case for one, case in cases.items()}, rounds, warmup=0)
    standing = scores({one: result[str(one)].rates("samples") for one in cases})
    return sorted(standing, key=lambda one: standing[one], reverse=True)[:NUM_BEST]


def grid() -> list[Settings]:
    """Return each number of each kind of worker at each depth."""
    kinds: tuple[WorkerType, ...] = ("thread", "process")
    found = product(kinds, worker_counts(allowance().cpus), PREFETCHES)
    return [Settings(workers, kind, depth) for kind, workers, depth in found]


SECTIONS = {"image": image, "raw-small": raw_small, "raw-large": raw_large, "tokens": tokens}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    run_sections(__doc__ or "", SECTIONS)
