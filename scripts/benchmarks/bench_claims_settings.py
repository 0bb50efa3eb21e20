"""The sections of bench_claims.py about settings of torch's DataLoader; what all sections share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from article_loaders import SIZE, Folder, crop, torch_loader
from bench_corpora import Corpus, repeat_files
from bench_run import Bench, Row, Timed
from plain_folder import PlainFolder

from shardkit import images
from shardkit.loading.loader import Loader
from shardkit.measure.timing import Case, Work
from shardkit.reading.dataset import Dataset
from shardkit.system.page_cache import Cache, cache_state, evict

BATCH = 32
WORKERS = 2
NUM_LARGE = 800
NUM_SETTINGS, NUM_SHORT = 512, 160
STEP_SHARE = 3 / 7
"""Of what one process needs to make a batch: without workers, such a step runs 30 % of the time."""

OpenLoader = Callable[..., Iterable[Any]]
"""``(persistent=)``, whether its workers outlive an epoch -> a loader"""

NONE = "num_workers=0"
TWO = "num_workers=2"
SHARDKIT = "shardkit, images.train, 2 threads"
SETTINGS: dict[str, dict[str, Any]] = {
    NONE: {"workers": 0},
    "num_workers=1": {"workers": 1},
    TWO: {"workers": 2},
    "num_workers=4": {"workers": 4},
    f"{TWO}, prefetch_factor=8": {"workers": 2, "prefetch_factor": 8},
}


def settings(bench: Bench) -> list[Row]:
    """DataLoader, folder in memory, decoded and cropped by Pillow: loading alone (samples/s)"""
    dataset, cache = crops(bench, NUM_SETTINGS)
    opened = with_settings(dataset)
    check_pixels(opened)
    cases: dict[str, Case] = {
        name: partial(epoch, open_loader(persistent=True), cache)
        for name, open_loader in opened.items()
    }
    return beside_two_workers(bench.time(cases))


def settings_cold(bench: Bench) -> list[Row]:
    """The same, dropped from memory before each epoch, workers started anew (samples/s)"""
    dataset, _ = crops(bench, NUM_SETTINGS)
    paths = dataset.files.paths
    opened = with_settings(dataset)
    return beside_two_workers(
        bench.time({name: partial(first_epoch, make, paths) for name, make in opened.items()})
    )


def with_a_step(bench: Bench) -> list[Row]:
    """In memory, with a step that leaves the cores alone, 3/7 of a batch's decoding (samples/s)"""
    dataset, cache = crops(bench, NUM_SETTINGS)
    opened = {name: make(persistent=True) for name, make in with_settings(dataset).items()}
    _, alone = epoch(opened[NONE], cache), epoch(opened[NONE], cache)
    step_s = STEP_SHARE * BATCH * (alone.seconds or 0.0) / alone.samples
    ours = Dataset(part(bench, bench.large(), NUM_LARGE).packed("lmdb")).select(range(len(dataset)))
    opened[SHARDKIT] = Loader(
        ours, BATCH, shuffle="full", workers=WORKERS, transform=images.train(SIZE), last="pad"
    )
    result = bench.time(
        {name: partial(epoch, loader, cache, step_s=step_s) for name, loader in opened.items()}
    )
    return [
        replace(row, note=f"the step runs {row.samples_per_s / BATCH * step_s:.0%} of the time")
        for row in beside_two_workers(result)
    ]


def short_epochs(bench: Bench) -> list[Row]:
    """In memory, in epochs of 160 pictures: workers that live on, and workers started anew"""
    dataset, cache = crops(bench, NUM_SHORT)
    anew, kept = f"{TWO}, started anew", f"{TWO}, persistent_workers"
    loaders = {
        name: torch_loader(dataset, BATCH, WORKERS, persistent=name == kept)
        for name in (anew, kept)
    }
    result = bench.time({name: partial(epoch, loader, cache) for name, loader in loaders.items()})
    return result.rows(anew)


def crops(bench: Bench, count: int) -> tuple[Folder, Cache]:
    corpus = part(bench, bench.large(), NUM_LARGE)
    cache, files = corpus.warm(), corpus.files
    return Folder(PlainFolder(files.paths[:count], files.labels[:count]), crop), cache


def with_settings(dataset: Folder) -> dict[str, OpenLoader]:
    return {
        name: partial(torch_loader, dataset, BATCH, **chosen) for name, chosen in SETTINGS.items()
    }


def beside_two_workers(result: Timed) -> list[Row]:
    """Each beside two workers; two workers beside none."""
    references = {NONE: None, TWO: NONE}
    return [result.row(name, references.get(name, TWO)) for name in result.measurements]


# --- what the sections share --------------------------------------------------------------


def part(bench: Bench, corpus: Corpus, count: int) -> Corpus:
    """So many of the files, and one shard of them, since articles have one LMDB file."""
    folder = bench.workdir / "packed" / f"claims-{corpus.folder.name}"
    if not folder.exists():
        repeat_files(corpus.folder, folder, min(count, len(corpus.files)))
    return Corpus(folder, folder.with_name(f"{folder.name}-packed"), "64GB")


def epoch(loader: Iterable[Any], cache: Cache, num_bytes: int = 0, step_s: float = 0.0) -> Work:
    started, num = time.perf_counter(), 0
    for batch in loader:
        num += num_valid(batch)
        time.sleep(step_s)
    return Work(num, num_bytes, time.perf_counter() - started, cache)


def first_epoch(open_loader: OpenLoader, paths: Sequence[str | Path], num_bytes: int = 0) -> Work:
    """After dropping the files from memory; workers start on the clock, since an LMDB that is open
    in one cannot be dropped."""
    cache = cache_state(evict(paths))
    return epoch(open_loader(persistent=False), cache, num_bytes)


def num_valid(batch: Any) -> int:
    return int(batch["valid"].sum()) if isinstance(batch, dict) else len(batch[1])


def check_pixels(opened: dict[str, OpenLoader]) -> None:
    """Stop the program unless an epoch of each has the same pictures under the same labels."""
    sums = {
        name: sorted(pixel_sums(open_loader(persistent=False)))
        for name, open_loader in opened.items()
    }
    first, *others = sums
    for name in others:
        if sums[name] != sums[first]:
            raise SystemExit(f"{name} does not return the pictures of {first}")


def pixel_sums(loader: Iterable[Any]) -> list[tuple[int, int]]:
    """Of each sample: the sum of its pixels, and its label."""
    found: list[tuple[int, int]] = []
    for batch in loader:
        images, labels = (batch["image"], batch["cls"]) if isinstance(batch, dict) else batch
        num = num_valid(batch)  # what pads the last batch is at its end
        found += zip(images.sum((1, 2, 3)).tolist()[:num], labels.tolist()[:num], strict=True)
    return found
