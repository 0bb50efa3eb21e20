"""``bench``: the same samples through every target, in turn, beside what the machine can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, cast

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.measure.bench.evaluate import Measured, make_report
from shardkit.measure.bench.folder import FolderTarget
from shardkit.measure.bench.limits import Limits
from shardkit.measure.bench.loading import Loading
from shardkit.measure.bench.options import BenchOptions
from shardkit.measure.bench.same import align, check_same
from shardkit.measure.bench.scratch import copies, packed_samples
from shardkit.measure.bench.target import Target, TokenTarget, is_packed, name_apart, packed_target
from shardkit.measure.bench.work import refuse_without_pictures
from shardkit.measure.report.data import Report
from shardkit.measure.timing import interleave
from shardkit.order.epochs import Order
from shardkit.remote.urls import Url, as_place, show_place
from shardkit.system.paths import as_path
from shardkit.system.resources import allowance

PASS_S = 1.0
"""A warm bench reads at most as many different samples as the slowest target gives in so many
seconds: that is enough to know the rate of a dataset that may not fit into memory."""

WARM_UP = 2
"""Rounds before those that count: in the first, cases find out how long to make the second. Cold
ones are as long as they are."""

PROBED = 256
"""Samples read of each target to see how fast it is."""

PROBE_S = 0.05

Say = Callable[[str], None]


def bench(
    *targets: str | Path,
    raw: str | Path | None = None,
    formats: Sequence[str] | str | None = None,
    also: str | Path | None = None,
    workers: Sequence[int] | None = None,
    say: Say = lambda line: None,
    **options: Any,
) -> Report:
    """Measure how fast the same samples come from different targets.

    Args:
        targets: datasets of any format, also behind URLs, others' tars, plain folders. The first is
            what the others are compared with.
        raw: a plain folder to put before them.
        formats: names, or ``"all"``: pack a sample of the only target, a folder, into each of
            these formats, in a temporary folder beside it, and measure those, too.
        also: a folder on another medium, as ``/dev/shm``: measure a copy there of every target.
        workers: counts to measure with; by default 0 and one a core.
        say: called with a line before what takes long.
        options: see :class:`shardkit.measure.bench.options.BenchOptions`.

    Returns:
        What was found; its ``rows`` are one for each target and number of workers.

    Raises:
        UsageError: the call makes no sense. DataError: the targets do not hold the same samples.
    """
    try:
        counts = (0, allowance().cpus) if workers is None else tuple(workers)
        made = BenchOptions(workers=counts, **options)
    except TypeError as error:
        raise UsageError(f"bench: {error}") from error
    paths: list[Path | Url] = [] if raw is None else [as_path(raw, "the plain folder")]
    paths += [as_place(path, "a target") for path in targets]
    if not paths:
        raise UsageError("name at least one dataset or folder to measure")
    with ExitStack() as stack:
        opened: list[Target] = [open_target(path, made) for path in paths]
        if formats is not None:
            opened = stack.enter_context(packed_samples(opened, formats, made, say))
        name_apart(opened)
        rows = _choose(opened, made)
        if also is not None:
            medium = as_path(also, "the other medium")
            more = stack.enter_context(copies(opened, rows, medium, say))
            opened, rows = opened + more, rows + rows
        return _measure(opened, rows, made, say)


def open_target(place: Path | Url, options: BenchOptions) -> Target:
    """The target at a place. Raises UsageError for one that cannot be read as the options say."""
    is_plain = isinstance(place, Path) and place.is_dir() and not is_packed(place)
    if options.read == "tokens":
        if is_plain:
            raise UsageError(f"{show_place(place)} is a plain folder, which holds no tokens")
        return TokenTarget(place)
    return FolderTarget(cast(Path, place)) if is_plain else packed_target(place)


def _choose(targets: Sequence[Target], options: BenchOptions) -> list[Integers]:
    """The rows to measure, of each target: all of the first's, some that ``limit`` asks for, or,
    warm, as many as the slowest target reads in :data:`PASS_S`."""
    order = Order(len(targets[0]), "full", options.seed)
    most = min(len(order), options.limit or len(order))
    if not most:
        raise UsageError(f"{targets[0].name} has no samples to measure")
    if not options.cold and most > PROBED:
        probed = align(targets, order.rows(np.arange(PROBED)))
        rates = [_rate(target, own, options) for target, own in zip(targets, probed, strict=True)]
        most = min(most, max(PROBED, ceil(min(rates) * PASS_S)))
    return align(targets, order.rows(np.arange(most)))


def _rate(target: Target, rows: Integers, options: BenchOptions) -> float:
    """Samples a second, the second time; the first may have come from the disk."""
    sizes = np.ones(len(rows), np.int64)
    case = Loading(target, rows, sizes, workers=0, options=options, least_s=PROBE_S)
    case()
    done = case()
    return done.samples / max(done.seconds or 0.0, 1e-9)


def _measure(
    targets: Sequence[Target], rows: Sequence[Integers], options: BenchOptions, say: Say
) -> Report:
    samples = check_same(targets, rows)
    refuse_without_pictures(options.read, targets[0].name, samples.fields)
    # A loader never makes a batch larger than an epoch.
    options = replace(options, batch_size=min(options.batch_size, len(samples.sizes)))
    cases = {
        f"{target.label}, {workers}": Loading(target, own, samples.sizes, workers, options)
        for workers in options.workers
        for target, own in zip(targets, rows, strict=True)
    }
    limits = Limits(targets, rows, samples.sizes, options)
    warmup = 1 if options.cold else WARM_UP
    num, rounds = len(cases), options.rounds
    say(f"measuring {num} case{'s' * (num > 1)} in {rounds} round{'s' * (rounds != 1)}")
    result = interleave(limits.cases | dict(cases), options.rounds or 1, warmup)
    return make_report(Measured([*targets], cases, limits, result, samples, options))
