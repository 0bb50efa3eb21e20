"""What articles on fast loading promise, measured: LMDB for a folder, settings of DataLoader.

The other side is written as articles write it (article_loaders.py). Cases of a section run in turn,
round after round; a ratio is taken within a round, and the median over the rounds is printed.
Before anything is timed, all sides are shown to give the same data.

Cold means that the files' pages were dropped from memory; names and sizes of files stay there,
which flatters the folder. Side streams and pinned memory want a GPU: see bench_feed.py, gpu-copy.

    python scripts/benchmarks/bench_claims.py --jpegs my-pictures
    python scripts/benchmarks/bench_claims.py --only pictures-cold --rounds 9
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from article_loaders import Folder, Lmdb, Make, keep, resize, torch_loader
from bench_claims_settings import (
    BATCH,
    NUM_LARGE,
    WORKERS,
    OpenLoader,
    check_pixels,
    epoch,
    first_epoch,
    part,
    settings,
    settings_cold,
    short_epochs,
    with_a_step,
)
from bench_corpora import Corpus
from bench_feed import Cold
from bench_run import Bench, Row, Timed, run_sections

from shardkit.loading.loader import Loader
from shardkit.measure.timing import Case, Work
from shardkit.reading.dataset import Dataset
from shardkit.system.page_cache import Cache

NUM_SMALL = 20_000

Works = Mapping[str, tuple[Make, int]]
"""Names, and what is made of a file, in batches of how many."""
SMALL: Works = {"batches of 32": (keep, 32), "batches of 256": (keep, 256)}
PICTURES: Works = {"bytes": (keep, BATCH), "decoded": (resize, BATCH)}

# --- a folder or LMDB ---------------------------------------------------------------------


def small_warm(bench: Bench) -> list[Row]:
    """Files of 1 KB, in memory: a bare loop, and loaders with 2 workers (samples/s)"""
    return warm(bench, part(bench, bench.small(), NUM_SMALL), SMALL)


def small_cold(bench: Bench) -> list[Row]:
    """Files of 1 KB, dropped from memory before each epoch: loaders with 2 workers (samples/s)"""
    return cold(bench, part(bench, bench.small(), NUM_SMALL), SMALL, "4k")


def pictures_warm(bench: Bench) -> list[Row]:
    """JPEGs of 110 KB, in memory: bare loops, and loaders with 2 workers (samples/s)"""
    return warm(bench, part(bench, bench.large(), NUM_LARGE), PICTURES)


def pictures_cold(bench: Bench) -> list[Row]:
    """JPEGs of 110 KB, dropped from memory before each epoch: loaders, 2 workers (samples/s)"""
    return cold(bench, part(bench, bench.large(), NUM_LARGE), PICTURES, "128k")


def warm(bench: Bench, corpus: Corpus, works: Works) -> list[Row]:
    check_same(corpus, works)
    cache = corpus.warm()
    cases = bare_loops(corpus, cache)
    for name, open_loader in loaders(corpus, works).items():
        if "readahead" not in name:  # of a file in memory there is nothing to read ahead
            cases[name] = partial(epoch, open_loader(persistent=True), cache, corpus.num_bytes)
    return beside_the_folder(bench.time(cases))


def cold(bench: Bench, corpus: Corpus, works: Works, block: str) -> list[Row]:
    check_same(corpus, works)
    cases: dict[str, Case] = {}
    for name, open_loader in loaders(corpus, works).items():
        paths = corpus.files.paths if "folder" in name else [shard_of(corpus)]
        cases[name] = partial(first_epoch, open_loader, paths, corpus.num_bytes)
    if shutil.which("fio"):
        block = "4k" if bench.is_quick else block  # fio skips files of less than a block
        files = Cold(corpus.packed("lmdb"), corpus.num_bytes, block)
        cases[f"limit: fio, random {block}, direct, depth {WORKERS}"] = partial(
            files.fio, "libaio", is_direct=True, depth=WORKERS
        )
    return beside_the_folder(bench.time(cases))


def beside_the_folder(result: Timed) -> list[Row]:
    rows = []
    for name in result.measurements:
        reference = name.partition(": ")[0] + ": folder"
        is_alone = name == reference or reference not in result.measurements
        rows.append(result.row(name, None if is_alone else reference))
    return rows


def bare_loops(corpus: Corpus, cache: Cache) -> dict[str, Case]:
    """One process, no loader: what reading alone costs."""
    order = np.random.default_rng(0).permutation(len(corpus.files))
    dataset = Dataset(corpus.packed("lmdb"))

    def one_by_one(source: Folder | Lmdb) -> Work:
        for number in order.tolist():
            source[number]
        source.close()
        return Work(len(order), corpus.num_bytes, cache=cache)

    def in_batches() -> Work:
        for start in range(0, len(order), BATCH):
            for value in dataset.read(order[start : start + BATCH])["jpg"]:
                bytes(value)  # a copy, as the others make one
        return Work(len(order), corpus.num_bytes, cache=cache)

    return {
        "bare loop: folder": partial(one_by_one, Folder(corpus.files, keep)),
        "bare loop: lmdb": partial(one_by_one, Lmdb(corpus.files, keep, shard_of(corpus))),
        "bare loop: shardkit": in_batches,
    }


def loaders(corpus: Corpus, works: Works) -> dict[str, OpenLoader]:
    found: dict[str, OpenLoader] = {}
    for work, (make, size) in works.items():
        theirs = {
            "folder": Folder(corpus.files, make),
            "lmdb": Lmdb(corpus.files, make, shard_of(corpus)),
            "lmdb, readahead=False": Lmdb(corpus.files, make, shard_of(corpus), readahead=False),
        }
        for name, dataset in theirs.items():
            found[f"{work}: {name}"] = partial(torch_loader, dataset, size, WORKERS)
        found[f"{work}: shardkit"] = partial(our_loader, corpus, make, size)
    return found


def our_loader(corpus: Corpus, make: Make, size: int, persistent: bool) -> Iterable[Any]:
    """Its workers are threads, which live for an epoch: ``persistent`` or not is the same."""

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return {"image": make(sample["jpg"], 0), "cls": sample["cls"]}

    return Loader(
        Dataset(corpus.packed("lmdb")),
        size,
        shuffle="full",
        workers=WORKERS,
        transform=None if make is keep else transform,
        last="pad",
    )


def shard_of(corpus: Corpus) -> Path:
    (path,) = corpus.packed("lmdb").glob("train-*.lmdb")
    return path


def check_same(corpus: Corpus, works: Works) -> None:
    """Stop the program unless all readers give each file, and all loaders the same pictures."""
    corpus.files.check_same("shardkit", Dataset(corpus.packed("lmdb")))
    folder = Folder(corpus.files, keep)
    theirs = Lmdb(corpus.files, keep, shard_of(corpus))
    if any(theirs[number] != folder[number] for number in range(len(folder))):
        raise SystemExit("lmdb does not return the data of the folder")
    theirs.close()
    if "decoded" in works:
        check_pixels(loaders(corpus, {"decoded": works["decoded"]}))


# --- the command --------------------------------------------------------------------------

SECTIONS = {
    "small-warm": small_warm,
    "small-cold": small_cold,
    "pictures-warm": pictures_warm,
    "pictures-cold": pictures_cold,
    "settings": settings,
    "settings-cold": settings_cold,
    "with-a-step": with_a_step,
    "short-epochs": short_epochs,
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    run_sections(__doc__ or "", SECTIONS)
