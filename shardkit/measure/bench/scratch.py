"""Datasets and copies that a bench makes for itself, and removes when it is over."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import DestinationError, UsageError
from shardkit.formats import FORMATS, get_format
from shardkit.measure.bench.folder import FolderTarget
from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.bench.target import PackedTarget, Target
from shardkit.operations.stage import refuse_little_space
from shardkit.order.epochs import Order
from shardkit.packing.options import PackOptions
from shardkit.packing.run import run_pack
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path

NUM_SAMPLES = 2_000
NUM_BYTES = 200_000_000
"""How much of a folder is packed into every format, unless the user gives a limit."""

_PREFIX = ".shardkit-bench-"

INDEX_BYTES = 4096
"""What a format may add to each sample, generously."""


def chosen_formats(names: Sequence[str] | str) -> list[str]:
    """``"all"``, ``"lmdb,npy"`` or a list of names. Raises UsageError for an unknown one."""
    if names == "all":
        return list(FORMATS)
    listed = names.split(",") if isinstance(names, str) else names
    return list(dict.fromkeys(get_format(name).name for name in listed))


@contextmanager
def packed_samples(
    targets: Sequence[Target],
    names: Sequence[str] | str,
    options: BenchOptions,
    say: Callable[[str], None],
) -> Iterator[list[Target]]:
    """A sample of the only target, a folder, and the same sample in these formats.

    Raises:
        UsageError: other targets, or too little space.
    """
    wanted = chosen_formats(names)
    folder = targets[0]
    if len(targets) > 1 or not isinstance(folder, FolderTarget):
        raise UsageError(
            "--formats packs a sample of one plain folder: name that alone; datasets that are"
            " packed already are compared without --formats"
        )
    drawn = draw(folder, options)
    num_bytes = int(drawn.sizes(np.arange(len(drawn))).sum())
    with _scratch(folder.path.resolve().parent, Path.cwd()) as scratch:
        refuse_little_space(scratch, len(wanted) * (num_bytes + INDEX_BYTES * len(drawn)))
        say(
            f"packing {len(drawn):,} samples ({format_bytes(num_bytes)}) into"
            f" {', '.join(wanted)} in {show_path(scratch)}, which is removed afterwards"
        )
        yield [drawn, *(_packed(drawn, to, scratch) for to in wanted)]


def draw(folder: FolderTarget, options: BenchOptions) -> FolderTarget:
    """Some samples of a folder, drawn by ``seed`` from all of it."""
    order = Order(len(folder), "full", options.seed)
    rows = order.rows(np.arange(min(len(folder), options.limit or NUM_SAMPLES)))
    if options.limit is None:
        sizes = np.cumsum(folder.sizes(rows))
        rows = rows[: max(int(np.searchsorted(sizes, NUM_BYTES, side="right")), 1)]
    rows = folder.usable(np.sort(rows))
    if not len(rows):
        raise UsageError(f"{show_path(folder.path)}: none of the files drawn is a sample")
    return folder.part(rows)


def _packed(folder: FolderTarget, to: str, scratch: Path) -> Target:
    dest = scratch / to
    made = PackOptions(to=to, workers=0, progress=False)
    corpus: Any = folder.corpus
    run_pack(folder.path, corpus, dest, made, time.perf_counter())
    return PackedTarget(dest)


@contextmanager
def copies(
    targets: Sequence[Target],
    rows: Sequence[Integers],
    medium: Path,
    say: Callable[[str], None],
) -> Iterator[list[Target]]:
    """A copy of every target on another medium."""
    if not medium.is_dir():
        raise UsageError(f"{show_path(medium)} is no folder: name one on the other medium")
    with _scratch(medium) as scratch:
        say(f"copying to {show_path(scratch)}, which is removed afterwards")
        yield [
            target.copied(own, scratch / str(number), show_path(medium))
            for number, (target, own) in enumerate(zip(targets, rows, strict=True))
        ]


@contextmanager
def _scratch(*folders: Path) -> Iterator[Path]:
    """A new folder in the first of these that takes one, removed in the end."""
    for folder in folders:
        _remove_left_behind(folder)
    scratch = _make(folders)
    lock = os.open(scratch, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield scratch
    finally:
        os.close(lock)
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_left_behind(folder: Path) -> None:
    """What a killed bench could not remove: nobody holds its lock any more."""
    for scratch in folder.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # somebody else's
            lock = os.open(scratch, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(scratch, ignore_errors=True)
            finally:
                os.close(lock)


def _make(folders: Sequence[Path]) -> Path:
    refusals = []
    for folder in folders:
        try:
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
        except OSError as error:
            refusals.append(f"{show_path(folder)}: {error.strerror}")
    raise DestinationError(
        f"no folder to write to ({', '.join(refusals)}); run from one that can be written"
    )
