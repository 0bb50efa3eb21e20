"""How fast shardkit's kernel makes crops of the pictures that a script reads, on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from shardkit import images
from shardkit.errors import BadImageError, UsageError
from shardkit.images import kernel
from shardkit.measure.doctor.evidence import RankEvidence
from shardkit.system.resources import allowance

LEAST_PICTURES = 8
"""Fewer give no figure: pictures differ by a factor of ten."""

JPEG = b"\xff\xd8"
"""What a JPEG begins with."""

A_THREAD = 8
"""Pictures that each thread makes at the least: of one or two, most threads wait for the last."""

MOST_BYTES = 64 << 20
"""Of pictures that are read."""

ROUNDS = 4


def crop_seconds(rank: RankEvidence) -> float | None:
    """Decode and crop some of a rank's pictures, on all cores at once, as training would; return
    seconds of a core for each; None where there are too few JPEGs, bad ones, or no kernel."""
    if not kernel.is_available() or rank.files is None or rank.picture_side is None:
        return None
    some = [*_jpegs(rank.files.some)]
    if len(some) < LEAST_PICTURES:
        return None
    threads = min(allowance().cpus, kernel.MAX_THREADS)
    transform = images.train(rank.picture_side, backend="kernel", threads=threads)
    values = some * -(-A_THREAD * threads // len(some))
    seconds = []
    for number in range(ROUNDS):
        keys = np.arange(len(values), dtype=np.uint64) + np.uint64(number * len(values))
        start = time.perf_counter()
        try:
            transform.batch({"jpg": values}, keys)
        except (BadImageError, UsageError, MemoryError):  # the script's to complain of
            return None
        seconds.append(time.perf_counter() - start)
    return median(seconds[1:]) * threads / len(values)


def _jpegs(paths: Sequence[str]) -> Iterator[bytes]:
    """Yield the files that are JPEGs."""
    left = MOST_BYTES
    for path in map(Path, paths):
        try:
            left -= path.stat().st_size
            if path.is_file() and left > 0 and (data := path.read_bytes()).startswith(JPEG):
                yield data
        except OSError:
            continue
