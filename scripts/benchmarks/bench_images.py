"""Pictures: decode + random crop 224 + flip into uint8 batches, by the side of the decoder alone.

Cases of a section run in turn, round after round; a ratio is taken within a round, and the median
over the rounds is printed. Before anything is timed, both sides are shown to give the same pixels.

    python scripts/benchmarks/bench_images.py --jpegs my-pictures
    python scripts/benchmarks/bench_images.py --jpegs my-pictures --peer other-venv/bin/python

``--peer`` is a Python with torch and plain Pillow, for the usual way to do it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from bench_corpora import Corpus
from bench_run import Bench, Row, SkippedError, run_sections

from shardkit import images
from shardkit.arrays import Hashes
from shardkit.errors import UsageError
from shardkit.images.augment import Train
from shardkit.images.decoders import DECODERS
from shardkit.images.restarts import add_restarts
from shardkit.measure.timing import Case, Work
from shardkit.packing.pack import pack
from shardkit.reading.dataset import Dataset

FORMAT = "lmdb"
SIZE = 224
BATCH = 64
SMALL_BATCH = 512
THREADS = 2
MARKED = "shardkit, kernel, packed with --restarts"
PEER = Path(__file__).with_name("pillow_peer.py")


@dataclass(frozen=True)
class Load:
    """JPEG files in memory, and one key for each: the same crops on every side."""

    paths: list[str]
    files: list[bytes]
    keys: Hashes
    batch: int

    @classmethod
    def of(cls, bench: Bench) -> Load:
        files = bench.large().files
        # Ten batches a thread: a last one that runs alone would cost much of an epoch of few.
        num, batch = (16, 4) if bench.is_quick else (2 * 10 * BATCH, BATCH)
        chosen = np.linspace(0, len(files) - 1, num).astype(int)
        read, _ = files.read(chosen)
        return cls([files.paths[i] for i in chosen], read, np.arange(num, dtype=np.uint64), batch)

    def batches(self) -> Iterator[slice]:
        for start in range(0, len(self.files), self.batch):
            yield slice(start, start + self.batch)

    def places(self) -> Any:
        """(N, 5): left, top, width, height and flip of each."""
        heads = [images.header(file) for file in self.files]
        sizes = np.array([(head.width, head.height) for head in heads], np.int32)
        boxes, flips = Train(size=SIZE)._places(sizes, self.keys)
        return np.concatenate([boxes, flips[:, None]], axis=1)

    def in_threads(self, work: Callable[[slice], object]) -> Work:
        with ThreadPoolExecutor(THREADS) as pool:
            for _ in pool.map(work, self.batches()):
                pass
        return Work(len(self.files), sum(map(len, self.files)), cache="warm")


def decode_crop(bench: Bench) -> list[Row]:
    """Batches of 64 crops 224x224, by the side of simplejpeg alone, on 2 cores (images/s)"""
    load = Load.of(bench)
    full = f"simplejpeg, full decode, {THREADS} threads"
    cases: dict[str, Case] = {full: partial(load.in_threads, partial(bare, load))}
    ours = transforms()
    for name, transform in ours.items():
        cases[f"shardkit, {name}"] = partial(load.in_threads, partial(batch, load, transform))
    first = {name: batch(load, transform, slice(0, load.batch)) for name, transform in ours.items()}
    if "kernel" in ours:
        marked = with_restarts(load)
        cases[MARKED] = partial(marked.in_threads, partial(batch, marked, ours["kernel"]))
        check_marked(load, marked, ours["kernel"])
    with peers(bench, load) as others:
        for name, peer in others.items():
            check_same(name, peer.first(), first)
            cases[name] = partial(peer.epoch, load)
        result = bench.time(cases)
    rows = [result.row(full)]
    for name in ours:
        row = result.row(f"shardkit, {name}", full)
        target = {"kernel": 1.25, "simplejpeg": 0.92}.get(name)
        ratio = result.ratio(f"shardkit, {name}", full)
        rows.append(bench.judge(row, target, ratio) if target else row)
    if MARKED in cases:
        unmarked = "shardkit, kernel"
        grown = sum(map(len, marked.files)) / sum(map(len, load.files)) - 1
        note = f"by the side of {unmarked}; {grown:+.2%} in bytes"
        row = replace(result.row(MARKED, unmarked), note=note)
        rows.append(bench.judge(row, 1.25, result.ratio(MARKED, unmarked)))
    for name, peer in others.items():
        rows.append(result.row(name, full))
        for backend in ours:
            ratio = result.ratio(f"shardkit, {backend}", name)
            row = replace(result.row(f"shardkit, {backend}", name), note=f"by the side of {name}")
            is_judged = peer.is_plain and backend == "simplejpeg"
            rows.append(bench.judge(row, 1.45, ratio) if is_judged else row)
    return rows


def with_restarts(load: Load) -> Load:
    """The same pictures as ``pack --restarts`` stores them."""
    return replace(load, files=[bytes(add_restarts(file)[0]) for file in load.files])


def check_marked(load: Load, marked: Load, transform: Train) -> None:
    """Stop the program unless restart markers change no pixel of any crop."""
    for rows in load.batches():
        if not np.array_equal(batch(load, transform, rows), batch(marked, transform, rows)):
            raise SystemExit("with restart markers, crops have other pixels")


def bare(load: Load, rows: slice) -> None:
    for file in load.files[rows]:
        simplejpeg.decode_jpeg(file)


def batch(load: Load, transform: Train, rows: slice) -> Any:
    return transform.batch({"jpg": load.files[rows]}, load.keys[rows])["image"]


def transforms() -> dict[str, Train]:
    """One for every backend there is."""
    found = {}
    for name in ("kernel", *DECODERS):
        try:
            found[name] = images.train(SIZE, backend=name)
        except UsageError as why:
            print(f"{name} is left out: {why}")
    if "simplejpeg" not in found:
        raise SkippedError("simplejpeg is the yardstick")
    return found


def check_same(name: str, theirs: Any, ours: dict[str, Any]) -> None:
    """Stop the program unless each of our backends gives that batch. Pictures decoded at a half or
    less, since their crop is large, may differ: by 5 levels on average over a picture."""
    for backend, pixels in ours.items():
        apart = np.abs(pixels.astype(np.int16) - theirs).mean(axis=(1, 2, 3))
        print(
            f"{backend} and {name}: pixels differ by {apart.mean():.3f} of 255 on average, in the"
            f" worst picture by {apart.max():.2f}"
        )
        if apart.max() > 5 or np.median(apart) > 0.5:
            raise SystemExit(f"{backend} does not give the pictures of {name}")


# --- the usual way ------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A process that does it the usual way."""

    process: subprocess.Popen[str]
    folder: Path
    is_plain: bool

    def ask(self, *words: object) -> Any:
        if self.process.stdin is None or self.process.stdout is None:
            raise SystemExit("the peer has no pipes")
        print(*words, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the peer ended: see what it wrote above")
        return json.loads(line)

    def first(self) -> Any:
        path = self.folder / "first.npy"
        self.ask("save", path)
        return np.load(path)

    def epoch(self, load: Load) -> Work:
        return Work(len(load.files), seconds=self.ask("epoch"), cache="warm")


@contextmanager
def peers(bench: Bench, load: Load) -> Iterator[dict[str, Peer]]:
    """Pillow in a DataLoader: in this environment, and in that of ``--peer``."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "paths.json").write_text(json.dumps(load.paths))
        np.save(folder / "boxes.npy", load.places())
        found = {}
        for python in [sys.executable, *([str(bench.peer)] if bench.peer else [])]:
            command = [python, PEER, folder / "paths.json", folder / "boxes.npy", load.batch, 2]
            process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(stop, process)
            version = Peer(process, folder, False).ask("versions")["pillow"]
            kind = "pillow-simd" if ".post" in version else "Pillow"
            name = f"{kind} {version}, DataLoader, {THREADS} processes"
            found[name] = Peer(process, folder, kind == "Pillow")
        yield found


def stop(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


# --- less to decode -----------------------------------------------------------------------


def packed_smaller(bench: Bench) -> list[Row]:
    """The same crops 224x224 of pictures packed with --resize 256, by the side of the originals"""
    corpus = bench.large()
    small = corpus.fresh("resized")
    pack(corpus.folder, small, to=FORMAT, resize=256, shard_size=corpus.shard_size, progress=False)
    originals, resized = Dataset(corpus.packed(FORMAT)), Dataset(small)
    if originals.keys() != resized.keys():
        raise SystemExit("the pictures packed smaller are not those of the folder")
    transform = images.train(SIZE)
    cases: dict[str, Case] = {
        "originals": partial(epoch, originals, transform, BATCH),
        "--resize 256": partial(epoch, resized, transform, BATCH),
    }
    result = bench.time(cases)
    row = result.row("--resize 256", "originals")
    target = bench.judge(row, 2.0, result.ratio("--resize 256", "originals"))
    return [result.row("originals"), target]


def small_pictures(bench: Bench) -> list[Row]:
    """Batches of 512 JPEGs of 32x32, decoded and mirrored, on 2 threads (images/s)"""
    corpus = bench.small()
    dataset = Dataset(corpus.packed(FORMAT))
    ours = {
        name: replace(transform, size=32, scale=(1, 1), ratio=(1, 1))
        for name, transform in transforms().items()
    }
    check_small(dataset, ours)
    cases: dict[str, Case] = {
        name: partial(epoch, dataset, transform, SMALL_BATCH) for name, transform in ours.items()
    }
    result = bench.time(cases)
    rows = [result.row(name) for name in cases]
    return [
        bench.judge(row, 140_000, row.samples_per_s) if row.name == "kernel" else row
        for row in rows
    ]


def check_small(dataset: Dataset, ours: dict[str, Train]) -> None:
    """Stop the program unless all make the same of the first pictures."""
    columns: dict[str, Any] = {"jpg": dataset.read(range(min(SMALL_BATCH, len(dataset))))["jpg"]}
    keys = np.arange(len(columns["jpg"]), dtype=np.uint64)
    made = [transform.batch(columns, keys)["image"] for transform in ours.values()]
    if any(np.abs(other.astype(int) - made[0]).max() > 1 for other in made):
        raise SystemExit("the backends differ by more than a rounding")


def raw_pictures(bench: Bench) -> list[Row]:
    """Batches of 512 pictures of 32x32 packed as pixels, half mirrored, on 1 thread (images/s)"""
    corpus = bench.small()
    cases: dict[str, Case] = {}
    for to in ("npy", "hdf5"):
        dest = corpus.fresh(f"raw-{to}")
        choice: dict[str, Any] = {"crop": 32, "image_format": "raw"}
        pack(corpus.folder, dest, to=to, shard_size="32MB", progress=False, **choice)
        dataset = Dataset(dest)
        check_raw(corpus, dataset)
        cases[to] = partial(epoch, dataset, images.flip(), SMALL_BATCH, 1)
    result = bench.time(cases)
    rows = [result.row(to) for to in cases]
    return [bench.judge(row, 1_000_000, row.samples_per_s) for row in rows]


def check_raw(corpus: Corpus, dataset: Dataset) -> None:
    """Stop the program unless the first pixels are what decoding the files gives."""
    files, _ = corpus.files.read(np.arange(min(64, len(dataset))))
    pixels = dataset.read(range(len(files)))["image.npy"]
    if not all(np.array_equal(images.decode(f), p) for f, p in zip(files, pixels, strict=True)):
        raise SystemExit("the pixels are not those of the files")


def epoch(dataset: Dataset, transform: Any, size: int, threads: int = THREADS) -> Work:
    """Shuffled batches, read and transformed; only whole ones."""
    order = np.random.default_rng(3).permutation(len(dataset))
    parts = [order[i : i + size] for i in range(0, len(order) - size + 1, size)] or [order]

    def make(rows: Any) -> None:
        transform.batch(dataset.read(rows), rows.astype(np.uint64))

    if threads == 1:
        for rows in parts:
            make(rows)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(make, parts):
                pass
    return Work(sum(map(len, parts)), cache="warm")


SECTIONS = {
    "decode-crop": decode_crop,
    "packed-smaller": packed_smaller,
    "small-pictures": small_pictures,
    "raw-pictures": raw_pictures,
}

if __name__ == "__main__":
    run_sections(__doc__ or "", SECTIONS)
