"""Check what the machine lets a training loop have: shared memory, open files, cores.

Nobody knows the script here, so a usual one is taken: on each rank a worker process for each core
of its share, torch's two batches ahead for each of them, and batches of 64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardkit.loading.settings import DEFAULT_PREFETCH
from shardkit.measure.doctor.preflight.check import Check
from shardkit.measure.doctor.preflight.dataset import Found
from shardkit.measure.tune.space import SHM_SHARE, SPARE_FILES
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.resources import Allowance

BATCH = 64
"""Samples, as `bench` and `tune` take them."""

CROP_BYTES = 3 * 224 * 224 * 4
"""What a picture is for most networks: three channels of 32-bit floats."""

BATCH_TENSORS = 2
"""Pictures and labels. Each takes an open file on its way from a worker process."""

WORKER_FILES = 8
"""Open files of the loop's process for each worker of DataLoader: pipes, a sentinel, events."""


@dataclass(frozen=True)
class Feeding:
    """The usual script.

    Attributes:
        workers: of each rank. batch_bytes: of one batch.
    """

    ranks: int
    workers: int
    batch_bytes: int

    @property
    def waiting(self) -> int:
        """Batches of all ranks, made and not yet taken or at work, while the loop is behind."""
        return self.ranks * self.workers * (DEFAULT_PREFETCH + 1)

    @property
    def waiting_bytes(self) -> int:
        return self.waiting * self.batch_bytes

    def __str__(self) -> str:
        ranks = f"{self.ranks} ranks with " if self.ranks > 1 else ""
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        each = " each" if self.ranks > 1 else ""
        return f"{ranks}{workers}{each}, batches of {BATCH} ({format_bytes(self.batch_bytes)})"


def usual_feeding(found: Found, machine: Allowance, ranks: int) -> Feeding:
    """Batches of pictures are crops; of all else they are as large as what lies in the files."""
    sample = CROP_BYTES if found.has_pictures else max(1, round(found.value_bytes))
    return Feeding(ranks, machine.share(ranks), BATCH * sample)


def shared_memory(free: int | None, feeding: Feeding) -> Check:
    """DataLoader's processes send their batches through /dev/shm, of which Docker gives 64 MB: one
    that finds it full is killed by SIGBUS. Some of it is left to NCCL."""
    name, needed = "shared memory", math.ceil(feeding.waiting_bytes / SHM_SHARE)
    if free is None:
        return Check(
            name, "fail", "no /dev/shm", "DataLoader's worker processes need it: mount a tmpfs"
            " there, or use shardkit.Loader, whose workers do without",
        )  # fmt: skip
    got = f"{format_bytes(free)} free in /dev/shm"
    if free >= needed:
        return Check(name, "ok", got)
    least = feeding.ranks * feeding.workers * feeding.batch_bytes
    size = f"{math.ceil(needed / 1e9)}g"
    return Check(
        name,
        "fail" if free < least else "warn",
        got,
        f"{feeding} take up to {format_bytes(feeding.waiting_bytes)} of it, and a worker that finds"
        f" it full dies of a bus error: docker run --shm-size={size} (Kubernetes: an emptyDir of"
        " medium Memory at /dev/shm), fewer workers, or shardkit.Loader, which needs none",
    )


def open_files(left: int | None, hard: int | None, feeding: Feeding, files: int) -> Check:
    """``left`` may still be opened, and ``hard`` is what the soft limit may be raised to; None is
    no limit. ``files`` are the shards that a reader may hold open."""
    name = "open files"
    waiting = feeding.waiting // feeding.ranks * BATCH_TENSORS
    needed = waiting + feeding.workers * WORKER_FILES + files + SPARE_FILES
    if left is None or left >= needed:
        return Check(name, "ok", "no limit" if left is None else f"{left:,} more may be opened")
    raised = 1 << (2 * needed - 1).bit_length()
    may = hard is None or hard >= raised
    how = f"run `ulimit -n {raised}` before the script" if may else (
        f"the limit cannot be raised beyond {hard:,} here: set nofile in limits.conf, or docker run"
        f" --ulimit nofile={raised}"
    )  # fmt: skip
    return Check(
        name,
        "warn",
        f"{left:,} more may be opened",
        f"a rank with {feeding.workers} workers may need {needed:,}, for batches on their way,"
        f" pipes and shards, and ends with 'Too many open files': {how}",
    )


def cores(machine: Allowance, all_cores: int, ranks: int) -> Check:
    """Libraries start a thread for each core that they see; a quota then stops them all."""
    name, quota = "cores", machine.cpu_quota
    got = f"{machine.cpus} of {all_cores}"
    if quota is not None and quota < machine.cores:
        got = f"a quota of {quota:g} on {machine.cores}"
    if machine.cpus < 2 * ranks:
        each = f"{ranks} ranks share them" if ranks > 1 else "the loop and its workers share them"
        return Check(
            name, "warn", got, f"{each}: a rank wants one for its loop and one for a worker at"
            " least; ask for more cores, or do less work a sample (`shardkit pack` with --crop or"
            " --max-side)",
        )  # fmt: skip
    if machine.cpus < all_cores:
        share = machine.share(ranks)
        return Check(
            name, "warn", got, f"os.cpu_count() says {all_cores}, and programs that believe it"
            " start too many workers and threads: give num_workers and OMP_NUM_THREADS, each"
            f" {share} at most, for each rank",
        )  # fmt: skip
    return Check(name, "ok", got)
