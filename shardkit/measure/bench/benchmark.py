"""``bench``: the same samples through every target, interleaved with limits of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.measure.bench.bench_report import Report
from shardkit.measure.bench.cases import Loading, limits
from shardkit.measure.bench.evaluate import make_report
from shardkit.measure.bench.options import BenchOptions, refuse_without_pictures
from shardkit.measure.bench.same import align, check_same
from shardkit.measure.bench.scratch import packed_samples
from shardkit.measure.bench.target import (
    FolderTarget,
    PackedTarget,
    PackedTokens,
    Target,
    is_packed,
    name_apart,
)
from shardkit.measure.timing import interleave
from shardkit.order.epochs import Order
from shardkit.remote.urls import Url, as_place, show_place
from shardkit.system.resources import allowance

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
        options: see :class:`shardkit.measure.bench.options.BenchOptions`.

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
    if isinstance(place, Path) and place.is_dir() and not is_packed(place):
        if options.read == "tokens":
            raise UsageError(f"{show_place(place)} is a plain folder, which holds no tokens")
        return FolderTarget(place)
    return PackedTokens(place) if options.read == "tokens" else PackedTarget(place)


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
    samples = check_same(targets, rows)
    refuse_without_pictures(options.read, targets[0].name, samples.fields)
    # A loader never makes a batch larger than an epoch.
    options = replace(options, batch_size=min(options.batch_size, len(samples.sizes)))
    cases = {
        f"{target.name}, {workers}": Loading(target, own, samples.sizes, workers, options)
        for workers in options.workers
        for target, own in zip(targets, rows, strict=True)
    }
    warmup = 1 if options.cold else WARM_UP
    num, rounds = len(cases), options.rounds
    say(f"measuring {num} case{'s' * (num > 1)} in {rounds} round{'s' * (rounds != 1)}")
    # Limits come last: the error for a damaged picture names it only if a loader finds it.
    beyond = limits(targets, rows, samples.sizes, options)
    result = interleave({**cases, **beyond}, options.rounds or 1, warmup)
    return make_report(cases, beyond, result, samples, options)
