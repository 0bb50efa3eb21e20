"""The settings of a loader: the user's, else those that were tuned, else by a rule.

The rule of ``workers="auto"``: bytes as they are and tokens get one thread, which hides the disk
behind the training step; more only take the GIL from one another (batches of 64 samples of 1 KB,
warm: no worker 0.07 ms a batch, one thread 0.10 ms, two 0.11 ms). A transform gets a thread for
each core that this process may use (crops of JPEGs: 54 ms with one, 28 ms with two), or a process
where threads are refused (:mod:`shardkit.batches.transform`). Processes on the same machine that
torchrun started (LOCAL_WORLD_SIZE) share the cores. A transform that is plain Python code runs
faster in processes: only ``shardkit tune`` finds that out.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

from shardkit.arguments import integer
from shardkit.batches.maker import BatchMaker
from shardkit.batches.transform import Randomised
from shardkit.errors import UsageError
from shardkit.loading import tuned
from shardkit.loading.settings import DEFAULT_PREFETCH, Settings
from shardkit.loading.workers import WorkerType
from shardkit.system.resources import Allowance, allowance


def choose(
    maker: BatchMaker,
    workers: int | Literal["auto"],
    worker_type: WorkerType | None,
    prefetch: int | None,
) -> Settings:
    """What is given (not None) wins over what was found. Raises UsageError for nonsense."""
    if workers == "auto":
        settings = _found(maker, worker_type)
        return settings if prefetch is None else replace(settings, prefetch=prefetch)
    if isinstance(workers, str):
        raise UsageError(f'workers must be a whole number or "auto", got {workers!r}')
    return Settings(
        integer("workers", workers),
        "thread" if worker_type is None else worker_type,
        DEFAULT_PREFETCH if prefetch is None else integer("prefetch", prefetch, 1),
    )


def _found(maker: BatchMaker, worker_type: WorkerType | None) -> Settings:
    found, ranks = allowance(), local_ranks()
    stored = tuned.load(tuned.about(maker, found, ranks))
    if stored is not None and worker_type in (None, stored.worker_type):
        return stored
    return by_rule(maker.transform, found, ranks, worker_type)


def by_rule(
    transform: Randomised | None,
    found: Allowance,
    ranks: int = 1,
    worker_type: WorkerType | None = None,
) -> Settings:
    """What to take where nothing was measured, for one of ``ranks`` processes on the machine."""
    needed: WorkerType = "process" if transform is not None and transform.seeded else "thread"
    kind = needed if worker_type is None else worker_type
    if transform is None:
        return Settings(1, kind, why=f"by rule: a {kind} is enough for bytes as they are")
    return Settings(
        found.share(ranks), kind, why=f"by rule: a {kind} for each core this process may use"
    )


def local_ranks() -> int:
    """Processes that feed on this machine, as torchrun says. Raises UsageError for nonsense."""
    text = os.environ.get("LOCAL_WORLD_SIZE") or "1"
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"LOCAL_WORLD_SIZE must be 1 or more, got {text!r}")
    return int(text)
