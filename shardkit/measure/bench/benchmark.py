"""``bench``: the same samples through every target, interleaved with limits of the machine."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.commit.work_folder import WORK_NAME
from shardkit.errors import DataError, DestinationError, UsageError
from shardkit.formats import FORMATS, get_format
from shardkit.index.file_names import INDEX_NAME
from shardkit.measure.bench.bench_report import Report, make_report
from shardkit.measure.bench.cases import (
    BenchOptions,
    Loading,
    limits,
    refuse_without_pictures,
)
from shardkit.measure.bench.targets import (
    FolderTarget,
    PackedTarget,
    PackedTokens,
    Target,
    name_apart,
)
from shardkit.measure.timing import interleave
from shardkit.operations.stage import refuse_little_space
from shardkit.order.epochs import Order
from shardkit.packing.options import PackOptions
from shardkit.packing.run import run_pack
from shardkit.remote.urls import Url, as_place, show_place
from shardkit.shards.values import own_values
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path
from shardkit.system.resources import allowance
from shardkit.tars.find import is_tar_source

MOST = 20_000
"""Different samples that a warm bench reads, unless the user gives a limit: enough to know the rate
of a dataset that may not fit into memory, and more than a processor's cache holds."""

WARM_UP = 2
"""Rounds before those that count: in the first, cases find out how long to make the second. Cold
ones are as long as they are."""

Say = Callable[[str], None]


def bench(
    *targets: str | Path,
    formats: Sequence[str] | str | None = None,
    workers: Sequence[int] | None = None,
    say: Say = lambda line: None,
    **options: Any,
) -> Report:
    """Measure how fast the same samples come from different targets.

    Args:
        targets: datasets of any format, also behind URLs, third-party tars, plain folders. The
            others are compared with the first.
        formats: names, or ``"all"``: pack a sample of the only target, a folder, into each of
            these formats, in a temporary folder beside it, and measure those, too.
        workers: counts to measure with; by default 0 and one a core.
        say: called with a line before what takes long.
        options: see :class:`shardkit.measure.bench.cases.BenchOptions`.

    Returns:
        A report; its ``rows`` are one for each target and number of workers.

    Raises:
        UsageError: the call makes no sense. DataError: the targets do not hold the same samples.
    """
    try:
        counts = (0, allowance().cpus) if workers is None else tuple(workers)
        made = BenchOptions(workers=counts, **options)
    except TypeError as error:
        raise UsageError(f"bench: {error}") from error
    paths = [as_place(path, "a target") for path in targets]
    if not paths:
        raise UsageError("name at least one dataset or folder to measure")
    with ExitStack() as stack:
        opened = [open_target(path, made) for path in paths]
        if formats is not None:
            opened = stack.enter_context(packed_samples(opened, formats, made, say))
        name_apart(opened)
        return _measure(opened, _choose(opened, made), made, say)


def open_target(place: Path | Url, options: BenchOptions) -> Target:
    """Return the target at a place. Raises UsageError for one that cannot be read so."""
    if isinstance(place, Path) and place.is_dir() and not _is_packed(place):
        if options.read == "tokens":
            raise UsageError(f"{show_place(place)} is a plain folder, which holds no tokens")
        return FolderTarget(place)
    return PackedTokens(place) if options.read == "tokens" else PackedTarget(place)


def _is_packed(path: Path) -> bool:
    """Return True if a folder is, or is to be, a dataset, or is made of tars."""
    is_ours = os.path.lexists(path / INDEX_NAME) or (path / WORK_NAME).is_dir()
    return is_ours or is_tar_source(path)


def _choose(targets: Sequence[Target], options: BenchOptions) -> list[Integers]:
    """Return the rows to measure, of each target: all samples of the smallest, or some of them."""
    base = min(targets, key=len)
    order = Order(len(base), "full", options.seed)
    if not len(order):
        raise UsageError(f"{base.name} has no samples to measure")
    most = options.limit or (len(order) if options.cold else MOST)
    return align(base, targets, order.rows(np.arange(min(most, len(order)))))


def _measure(
    targets: Sequence[Target], rows: Sequence[Integers], options: BenchOptions, say: Say
) -> Report:
    fields, sizes = check_same(targets, rows)
    refuse_without_pictures(options.read, targets[0].name, fields)
    # A loader never makes a batch larger than an epoch.
    options = replace(options, batch_size=min(options.batch_size, len(sizes)))
    cases = {
        f"{target.name}, {workers}": Loading(target, own, sizes, workers, options)
        for workers in options.workers
        for target, own in zip(targets, rows, strict=True)
    }
    warmup = 1 if options.cold else WARM_UP
    num, rounds = len(cases), options.rounds
    say(f"measuring {num} case{'s' * (num > 1)} in {rounds} round{'s' * (rounds != 1)}")
    # Limits come last: the error for a damaged picture names it only if a loader finds it.
    beyond = limits(targets, rows, sizes, options)
    result = interleave({**cases, **beyond}, options.rounds or 1, warmup)
    return make_report(cases, beyond, result, fields, sizes, options)


# --- the same samples ----------------------------------------------------------------------

HELD = 256
"""Samples of every target that are in memory at once."""


def align(base: Target, targets: Sequence[Target], rows: Integers) -> list[Integers]:
    """Return the rows, in each target, of the samples that are ``rows`` of the base: by key.

    Raises:
        DataError: a target lacks one.
    """
    keys = base.keys(rows)
    found = []
    for target in targets:
        is_as_long = len(target) == len(base)
        has_keys = keys is not None and target.keys(rows[:0]) is not None
        if not has_keys and not is_as_long:
            raise DataError(
                f"{target.name} has {len(target):,} samples, {base.name} {len(base):,}:"
                " they do not hold the same"
            )
        # Mostly packed in one order, and then far quicker than to look every key up.
        if keys is None or not has_keys or (is_as_long and target.keys(rows) == keys):
            found.append(rows)
            continue
        try:
            found.append(target.find(keys))
        except DataError:
            if not is_as_long:
                raise
            found.append(rows)  # third-party tars name theirs otherwise: the values decide
    return found


def check_same(targets: Sequence[Target], rows: Sequence[Integers]) -> tuple[list[str], Integers]:
    """Read these rows of every target and compare all values with the first's. Return the names of
    the fields, and the bytes of each sample's values, (N,) int64; labels count for nothing.

    Raises:
        DataError: names the first difference.
    """
    sources = [target.open(own) for target, own in zip(targets, rows, strict=True)]
    sizes = np.zeros(len(rows[0]), np.int64)
    fields: list[str] = []
    for start in range(0, len(sizes), HELD):
        part = np.arange(start, min(start + HELD, len(sizes)))
        first = _columns(sources[0].read(part))
        fields = sorted(first)
        sizes[part] = targets[0].sample_bytes or np.sum(
            [[_size(value) for value in column] for column in first.values()], axis=0
        )
        for target, source in zip(targets[1:], sources[1:], strict=True):
            difference = find_difference(first, _columns(source.read(part)))
            if difference is not None:
                at, field = difference
                row = rows[0][[start + at]]
                keys = targets[0].keys(row)
                where = f"row {row[0]}" if keys is None else f"sample {keys[0]!r}"
                raise DataError(
                    f"{target.name} does not return the samples of {targets[0].name}: {field} of"
                    f" {where} differs"
                )
    return fields, sizes


Columns = dict[str, list[Any]]


def _columns(read: dict[str, Any]) -> Columns:
    """Return lists of values; a column without a single value is left out."""
    lists = {name: own_values(name, values) for name, values in read.items()}
    return {name: column for name, column in lists.items() if any(v is not None for v in column)}


def find_difference(first: Columns, other: Columns) -> tuple[int, str] | None:
    """Return (which sample, which field) of the first difference; None if there is none."""
    num = len(next(iter((first or other).values()), []))
    nothing = [None] * num
    for at in range(num):
        for name in sorted(first.keys() | other.keys()):
            own, theirs = first.get(name, nothing)[at], other.get(name, nothing)[at]
            if _plain(own) != _plain(theirs):
                return at, name
    return None


def _plain(value: Any) -> Any:
    """Return a value to compare: of arrays dtype, shape and bytes, so that NaN equals NaN."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value if isinstance(value, bytes) else repr(value)


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, str):
        return len(value.encode(errors="surrogateescape"))
    if isinstance(value, bytes):
        return len(value)
    return 0 if value is None or isinstance(value, int | float) else len(repr(value))


# --- packed for the bench -----------------------------------------------------------------

NUM_SAMPLES = 2_000
NUM_BYTES = 200_000_000
"""Samples of a folder that are packed into every format, unless the user gives a limit."""

INDEX_BYTES = 4096
"""Bytes that a format may add to each sample, generously."""

_PREFIX = ".shardkit-bench-"


@contextmanager
def packed_samples(
    targets: Sequence[Target],
    names: Sequence[str] | str,
    options: BenchOptions,
    say: Say,
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
