"""Samples of a folder that a bench packs for itself, and removes when it is over."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from shardkit.errors import DestinationError, UsageError
from shardkit.formats import FORMATS, get_format
from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.bench.target import FolderTarget, PackedTarget, Target
from shardkit.operations.stage import refuse_little_space
from shardkit.packing.options import PackOptions
from shardkit.packing.run import run_pack
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path

NUM_SAMPLES = 2_000
NUM_BYTES = 200_000_000
"""How much of a folder is packed into every format, unless the user gives a limit."""

INDEX_BYTES = 4096
"""What a format may add to each sample, generously."""

_PREFIX = ".shardkit-bench-"


@contextmanager
def packed_samples(
    targets: Sequence[Target],
    names: Sequence[str] | str,
    options: BenchOptions,
    say: Callable[[str], None],
) -> Iterator[list[Target]]:
    """Yield the only target, a folder, and samples of it, drawn by the seed, in these formats.

    Raises:
        UsageError: other targets, or an unknown format. DestinationError: too little space.
    """
    listed = names.split(",") if isinstance(names, str) else names
    wanted = FORMATS if names == "all" else dict.fromkeys(get_format(one).name for one in listed)
    folder = targets[0]
    if len(targets) > 1 or not isinstance(folder, FolderTarget):
        raise UsageError(
            "--formats packs a sample of one plain folder: name that alone; datasets that are"
            " packed already are compared without --formats"
        )
    usual = min(NUM_SAMPLES, max(int(NUM_BYTES / max(folder.mean_bytes, 1)), 1))
    num = min(options.limit or usual, len(folder))
    num_bytes = int(num * folder.mean_bytes)
    with _scratch(folder.path.resolve().parent, Path.cwd()) as scratch:
        refuse_little_space(scratch, len(wanted) * (num_bytes + INDEX_BYTES * num))
        say(
            f"packing {num:,} samples (about {format_bytes(num_bytes)}) into {', '.join(wanted)} in"
            f" {show_path(scratch)}, which is removed afterwards"
        )
        for to in wanted:
            made = PackOptions(
                to=to,
                workers=0,
                shuffle=True,
                seed=options.seed,
                limit=num,
                on_error="skip",
                max_rejects=1.0,
                progress=False,
            )
            run_pack(folder.path, folder.corpus, scratch / to, made, time.perf_counter())
        yield [folder, *(PackedTarget(scratch / to) for to in wanted)]


@contextmanager
def _scratch(*folders: Path) -> Iterator[Path]:
    """Make a new folder in the first of these that takes one; remove it in the end, and what a
    killed bench could not remove: those whose lock nobody holds.
    """
    refusals = []
    for folder in folders:
        for left in folder.glob(f"{_PREFIX}*"):
            with suppress(OSError), _locked(left, fcntl.LOCK_NB):  # else it is in use, or another's
                shutil.rmtree(left, ignore_errors=True)
        try:
            scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
            break
        except OSError as error:
            refusals.append(f"{show_path(folder)}: {error.strerror}")
    else:
        raise DestinationError(
            f"no folder to write to ({', '.join(refusals)}); run from one that can be written"
        )
    try:
        with _locked(scratch):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(folder: Path, flags: int = 0) -> Iterator[None]:
    lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(lock)
