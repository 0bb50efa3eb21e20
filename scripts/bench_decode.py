"""The third program of `make bench`: decoding JPEGs to training batches, beside bare decoding.

Cases of a section run in turn, round after round; a ratio is taken within a round, and the median
over the rounds is printed. Before anything is timed, pixels are compared with Pillow's.

    make bench BENCH="--jpegs my-pictures"
    python scripts/bench_decode.py --only crops --rounds 9
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from bench_corpora import Corpus
from bench_run import Bench, SkippedError, run_sections
from decode_crop import SIZE, Box, random_crop
from PIL import Image

from shardkit.images import kernel
from shardkit.measure.timing import Case, Row, Work

THREADS = (1, 2)
SEED = 3

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Job:
    """Pictures, and what is to become of them: contenders take as much of it as they can.

    Attributes:
        values: (N,) JPEG files in memory. boxes: (N, 4) x, y, width, height of the crops.
        flips: (N,) bool. size: of the pixels to be made. batch: how many a call.
    """

    values: list[bytes]
    boxes: Array
    flips: Array
    size: int
    batch: int

    def parts(self) -> list[slice]:
        return [slice(i, i + self.batch) for i in range(0, len(self.values), self.batch)]


def random_job(corpus: Corpus, size: int, batch: int) -> Job:
    """Random crops and flips, as RandomResizedCrop draws them, of all the kernel can decode."""
    values, _ = corpus.files.read(np.arange(len(corpus.files)))
    sizes, status = kernel.headers(values)
    good = np.flatnonzero(status == kernel.Status.OK).tolist()
    rng = np.random.default_rng(SEED)
    boxes = [random_box(int(width), int(height), rng) for width, height in sizes[good]]
    flips = rng.random(len(good)) < 0.5
    return Job([values[row] for row in good], np.array(boxes, np.float64), flips, size, batch)


def random_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """x, y, width, height."""
    left, top, right, bottom = random_crop(width, height, rng)
    return left, top, right - left, bottom - top


# --- contenders ---------------------------------------------------------------------------


def by_kernel(job: Job, threads: int) -> Work:
    """Decode, crop, resize and flip into one batch array that is used again."""
    out = np.empty((job.batch, job.size, job.size, 3), np.uint8)
    for part in job.parts():
        values = job.values[part]
        boxes, flips = job.boxes[part], job.flips[part]
        if kernel.crop_resize(values, boxes, flips, out[: len(values)], threads).any():
            raise SystemExit("the kernel could not decode a picture of the corpus")
    return Work(len(job.values))


def by_simplejpeg(job: Job, threads: int) -> Work:
    """Decode whole pictures, and nothing else."""
    decode = import_module("simplejpeg").decode_jpeg

    def some(values: list[bytes]) -> None:
        for value in values:
            decode(value)

    if threads == 1:
        some(job.values)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, [job.values[i::threads] for i in range(threads)]))
    return Work(len(job.values))


# --- sections -----------------------------------------------------------------------------


def crops(bench: Bench) -> list[Row]:
    """Random crops 224x224 with flips of large JPEGs, beside bare full decoding (images/s)"""
    check_available()
    if not find_spec("simplejpeg"):
        raise SkippedError("simplejpeg is not installed")
    job = random_job(bench.large(), SIZE, 64)
    check_against_pillow(job)
    bare = {n: f"simplejpeg, whole pictures, {n} thread{'s' * (n > 1)}" for n in THREADS}
    ours = {n: f"kernel, crops, {n} thread{'s' * (n > 1)}" for n in THREADS}
    cases: dict[str, Case] = {}
    for n in THREADS:
        cases[bare[n]] = partial(by_simplejpeg, job, n)
        cases[ours[n]] = partial(by_kernel, job, n)
    result = bench.time(cases)
    rows = []
    for n in THREADS:
        row = result.row(ours[n], bare[n])
        if n == 2:
            row = bench.judge(row, 1.1, result.ratio(ours[n], bare[n]))
        rows += [result.row(bare[n]), row]
    return rows


def small_crops(bench: Bench) -> list[Row]:
    """Batches of 512 JPEGs of 32x32, decoded whole and flipped (images/s)"""
    check_available()
    job = random_job(bench.small(), 32, 512)
    whole = np.tile(np.array([0.0, 0, 32, 32]), (len(job.values), 1))
    job = replace(job, boxes=whole)
    check_against_pillow(job)
    names = {n: f"kernel, {n} thread{'s' * (n > 1)}" for n in THREADS}
    result = bench.time({names[n]: partial(by_kernel, job, n) for n in THREADS})
    rows = [result.row(names[n]) for n in THREADS]
    return [*rows[:-1], bench.judge(rows[-1], 140_000, rows[-1].samples_per_s)]


def check_available() -> None:
    if not kernel.is_available():
        raise SkippedError(kernel.why_not())


def check_against_pillow(job: Job, most: int = 64) -> None:
    """Stop the program unless the first pictures are near what Pillow makes of them.

    At most 1 of 255 apart in any pixel; where the crop was decoded smaller, 4 in the mean.
    """
    values, boxes, flips = job.values[:most], job.boxes[:most], job.flips[:most]
    out = np.empty((len(values), job.size, job.size, 3), np.uint8)
    kernel.crop_resize(values, boxes, flips, out)
    for value, box, flip, pixels in zip(values, boxes, flips, out, strict=True):
        expected = by_pillow(value, box, job.size)
        apart = np.abs(pixels[:, :: -1 if flip else 1].astype(int) - expected)
        is_smaller = min(box[2:]) >= 2 * job.size
        if apart.mean() > 4 if is_smaller else apart.max() > 1:
            raise SystemExit(f"a crop {box} is {apart.max()} of 255 from what Pillow makes of it")


def by_pillow(value: bytes, box: Array, size: int) -> Array:
    left, top, width, height = box.tolist()
    image = Image.open(io.BytesIO(value)).convert("RGB")
    where = (left, top, left + width, top + height)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, where))


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {"crops": crops, "small-crops": small_crops}


if __name__ == "__main__":
    run_sections(__doc__ or "", SECTIONS)
