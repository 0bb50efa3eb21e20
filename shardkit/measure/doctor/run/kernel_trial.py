"""How fast shardkit's kernel makes crops of the pictures that a script reads, on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from shardkit import images
from shardkit.errors import BadImageError
from shardkit.images import kernel
from shardkit.measure.doctor.evidence import KernelTrial, RankEvidence
from shardkit.system.resources import allowance

LEAST_PICTURES = 8
"""Fewer give no figure: pictures differ by a factor of ten."""

MOST_BYTES = 64 << 20
"""Of pictures that are read."""

ROUNDS = 5
MOST_S = 2.0
"""Seconds of rounds, after the first."""


def kernel_trial(rank: RankEvidence) -> KernelTrial | None:
    """Decode and crop some of a rank's pictures, on all cores at once, as training would; None
    where there are no JPEGs, or no kernel."""
    if not kernel.is_available() or rank.files is None or rank.picture_side is None:
        return None
    return timed([*_jpegs(rank.files.some)], rank.picture_side)


def timed(values: Sequence[bytes], side: int) -> KernelTrial | None:
    """Seconds of a core for one crop of ``side`` pixels; None of too few pictures, or bad ones."""
    if len(values) < LEAST_PICTURES:
        return None
    threads = min(allowance().cpus, kernel.MAX_THREADS)
    transform = images.train(side, backend="kernel", threads=threads)
    seconds: list[float] = []
    while len(seconds) < ROUNDS and sum(seconds) < MOST_S:
        keys = np.arange(len(values), dtype=np.uint64) + np.uint64(len(seconds) * len(values))
        start = time.perf_counter()
        try:
            transform.batch({"jpg": values}, keys)
        except BadImageError:  # the script's to complain of
            return None
        seconds.append(time.perf_counter() - start)
    each = median(seconds[1:] or seconds) * threads / len(values)
    return KernelTrial(each, len(values), side)


def _jpegs(paths: Sequence[str]) -> list[bytes]:
    """The files that are some."""
    found, left = [], MOST_BYTES
    for path in paths:
        try:
            data = Path(path).read_bytes()
        except OSError:
            continue
        left -= len(data)
        if left < 0:
            break
        if data.startswith(b"\xff\xd8"):
            found.append(data)
    return found
