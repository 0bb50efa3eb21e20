"""How fast shardkit's kernel makes crops of the pictures that a script reads, on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from shardkit import images
from shardkit.errors import BadImageError, UsageError
from shardkit.images import kernel
from shardkit.measure.doctor.evidence import KernelTrial, RankEvidence
from shardkit.system.resources import allowance

LEAST_PICTURES = 8
"""Fewer give no figure: pictures differ by a factor of ten."""

JPEG = b"\xff\xd8"
"""What a JPEG begins with."""

A_THREAD = 8
"""Pictures that each thread makes at the least: of one or two, most threads wait for the last."""

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
    num_pictures = len(values)
    values = [*values] * -(-A_THREAD * threads // num_pictures)
    seconds: list[float] = []
    while len(seconds) < ROUNDS and sum(seconds) < MOST_S:
        keys = np.arange(len(values), dtype=np.uint64) + np.uint64(len(seconds) * len(values))
        start = time.perf_counter()
        try:
            transform.batch({"jpg": values}, keys)
        except (BadImageError, UsageError, MemoryError):  # the script's to complain of
            return None
        seconds.append(time.perf_counter() - start)
    each = median(seconds[1:] or seconds) * threads / len(values)
    return KernelTrial(each, num_pictures, side)


def _jpegs(paths: Sequence[str]) -> list[bytes]:
    """The files that are some."""
    found: list[bytes] = []
    left = MOST_BYTES
    for path in paths:
        data = _jpeg(Path(path), left)
        if data:
            found.append(data)
            left -= len(data)
    return found


def _jpeg(path: Path, most_bytes: int) -> bytes:
    """A file that is one, and no larger; nothing of any other."""
    try:
        if not path.is_file() or path.stat().st_size > most_bytes:
            return b""
        with path.open("rb") as file:
            begins = file.read(len(JPEG))
            return begins + file.read(most_bytes) if begins == JPEG else b""
    except OSError:
        return b""
