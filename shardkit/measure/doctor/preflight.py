"""``shardkit doctor DATASET``: what would slow or stop a training, before it begins.

Nobody knows the script here, so a usual one is taken: on each rank a worker process for each core
of its share, torch's two batches ahead for each of them, and batches of 64.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Literal

from shardkit.arguments import integer
from shardkit.errors import DatasetMissingError
from shardkit.images.sniff import IMAGE_EXTENSIONS, IMAGE_FIELDS
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import read_info
from shardkit.loading.auto import local_ranks
from shardkit.loading.settings import DEFAULT_PREFETCH
from shardkit.measure.figures import table
from shardkit.measure.race import SHM_SHARE, SPARE_FILES
from shardkit.shards.locate import refuse_orphans
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.file_systems import is_remote, mount_at
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors
from shardkit.system.resources import Allowance, allowance
from shardkit.tars.find import find_tar_names, is_tar_source

BATCH = 64
"""Samples, as `bench` and `tune` take them."""

CROP_BYTES = 3 * 224 * 224 * 4
"""An image as most networks take it: three channels of 32-bit floats."""

BATCH_TENSORS, WORKER_FILES = 2, 8
"""Open files of the loop's process: images and labels of a batch on its way from a worker process;
pipes, a sentinel and events of each of DataLoader's workers."""

SPARE_BYTES = 1 << 30
"""Of a disk, for checkpoints and logs."""

LOOKED_AT = 200
"""Files that tell what a sample is: on a network file system each look may cost a millisecond."""

State = Literal["ok", "warn", "fail"]
"""``warn``: training may be slow, or may stop in some settings. ``fail``: it will stop."""


@dataclass(frozen=True)
class Check:
    """A line of the report: what was found, and (``why``) what that means and what to do."""

    name: str
    state: State
    got: str
    why: str = ""


@dataclass(frozen=True)
class Found:
    """A dataset of ours, tars of other tools, or plain files. ``num_shards`` are those of the
    largest split. In a batch, images are cropped, all else is as large as in the files."""

    path: Path
    kind: Literal["dataset", "tars", "files"]
    num_shards: int
    sample_bytes: int


@dataclass(frozen=True)
class Feeding:
    """The usual script; ``workers`` are those of each rank."""

    ranks: int
    workers: int
    batch_bytes: int

    @property
    def waiting(self) -> int:
        """Batches of a rank, made and not yet taken or at work, while the loop is behind."""
        return self.workers * (DEFAULT_PREFETCH + 1)

    def __str__(self) -> str:
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        return f"{self.ranks} ranks with {workers} each" if self.ranks > 1 else workers


def preflight(path: str | Path, ranks: int | None = None) -> list[Check]:
    """Look at a dataset and at the machine that is to train from it. Nothing is written.

    Args:
        ranks: processes that train on this machine; None: as many as LOCAL_WORLD_SIZE says, or one.

    Raises:
        DatasetMissingError: nothing is there, or nothing in it. UsageError: ``ranks`` is no number
        from 1 on. IndexFileError: a dataset of ours is damaged. StorageError: it may not be read.
    """
    ranks = local_ranks() if ranks is None else integer("ranks", ranks, 1)
    path = as_path(path, "the dataset")
    with os_errors(f"looking at {show_path(path)}"):
        found, here, mount = find(path), allowance(), mount_at(path)
        feeding = Feeding(ranks, here.share(ranks), BATCH * found.sample_bytes)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        checks = [
            file_system(found, "unknown" if mount is None else mount.kind, is_remote(path)),
            free_space(shutil.disk_usage(path).free),
            cpu_quota(here, os.cpu_count() or here.cores, ranks),
            shared_memory(here.shm_bytes, feeding),
            open_files(here.open_files, hard, feeding, found.num_shards),
        ]
    return checks if found.kind == "files" else [*checks, shards(found, feeding)]


def find(path: Path) -> Found:
    """Return what lies at a path; for errors see :func:`preflight`."""
    if not path.exists():
        raise DatasetMissingError(
            f"there is nothing at {show_path(path)}; give the folder that the script reads"
        )
    if (path / INDEX_NAME).exists():
        info = read_info(path)
        split = max(info.splits.values(), key=lambda split: split.num_rows)
        num_bytes = sum(n for shard in split.shards for n in shard.file_bytes.values())
        each = CROP_BYTES if IMAGE_FIELDS & set(info.fields) else num_bytes // (split.num_rows or 1)
        return Found(path, "dataset", len(split.shards), each)
    refuse_orphans(path)
    if is_tar_source(path):
        folder, names = find_tar_names(path)
        num = sum((folder / name).is_file() for name in names)
        # Most tars are of images: nobody reads them through to learn it.
        return Found(path, "tars", num, CROP_BYTES)
    some = list(islice(_files(path), LOOKED_AT))
    if not some:
        raise DatasetMissingError(f"{show_path(path)} holds no files; give the folder with them")
    has_images = IMAGE_EXTENSIONS & {file.suffix.lower() for file in some}
    mean = sum(file.stat().st_size for file in some) // len(some)
    return Found(path, "files", 0, CROP_BYTES if has_images else mean)


def _files(path: Path) -> Iterator[Path]:
    """Yield the files at and below a path, without hidden ones and links that lead nowhere."""
    if not path.is_dir():
        yield path
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (file for file in files if file.is_file())


def file_system(found: Found, kind: str, is_remote: bool) -> Check:
    """Warn of a file system behind a network, or behind another process (FUSE)."""
    if not is_remote:
        return Check("file system", "ok", kind)
    path = show_path(found.path)
    how = f"`shardkit stage {path} FOLDER` copies it to a disk of this machine, and checks it"
    if found.kind == "files":
        how = f"`shardkit pack {path} FOLDER/packed` reads each file once, onto such a disk"
    why = f"each read waits for a server or another process, and others load it, too: {how}"
    return Check("file system", "warn", f"{kind}, not a disk of this machine", why)


def free_space(free: int) -> Check:
    """Warn of a disk that is nearly full."""
    got = f"{format_bytes(free)} free"
    if free >= SPARE_BYTES:
        return Check("free space", "ok", got)
    return Check("free space", "warn", got, "checkpoints and logs need space: free some")


def cpu_quota(machine: Allowance, all_cores: int, ranks: int) -> Check:
    """Warn of fewer cores than a program sees: libraries start a thread for each of them, and a
    quota then stops them all."""
    got = f"{machine.cpus} of {all_cores} cores"
    if machine.cpu_quota is not None and machine.cpu_quota < machine.cores:
        got = f"a quota of {machine.cpu_quota:g} on {machine.cores} cores"
    if machine.cpus >= all_cores:
        return Check("CPU quota", "ok", got)
    why = (
        f"os.cpu_count() says {all_cores}, and programs that believe it start too many workers and"
        f" threads: give num_workers and OMP_NUM_THREADS, each {machine.share(ranks)} at most, for"
        " each rank"
    )
    return Check("CPU quota", "warn", got, why)


def shared_memory(free: int | None, feeding: Feeding) -> Check:
    """Check that the batches of DataLoader's processes fit in /dev/shm, of which Docker gives
    64 MB: a worker that finds it full is killed by SIGBUS. Some of it is left to NCCL."""
    each, taken = feeding.batch_bytes, feeding.ranks * feeding.waiting * feeding.batch_bytes
    got = "no /dev/shm" if free is None else f"{format_bytes(free)} free in /dev/shm"
    if free is not None and free >= taken / SHM_SHARE:
        return Check("shared memory", "ok", got)
    why = (
        f"{feeding}, batches of {BATCH} ({format_bytes(each)}) take up to {format_bytes(taken)} of"
        f" it, and a worker that finds it full dies of a bus error: docker run --shm-size="
        f"{math.ceil(taken / SHM_SHARE / 1e9)}g (Kubernetes: an emptyDir of medium Memory at"
        " /dev/shm), fewer workers, or shardkit.Loader, which needs none"
    )
    will_fail = free is None or free < feeding.ranks * feeding.workers * each
    return Check("shared memory", "fail" if will_fail else "warn", got, why)


def open_files(left: int | None, hard: int, feeding: Feeding, files: int) -> Check:
    """Check the limit of open files: ``left`` may still be opened, None is no limit; ``hard`` is
    the hard limit; ``files`` are the shards that a reader may hold open."""
    needed = feeding.waiting * BATCH_TENSORS + feeding.workers * WORKER_FILES + files + SPARE_FILES
    got = "no limit" if left is None else f"{left:,} more may be opened"
    if left is None or left >= needed:
        return Check("open files", "ok", got)
    raised = 1 << (2 * needed - 1).bit_length()
    how = f"run `ulimit -n {raised}` before the script"
    if raised > hard != resource.RLIM_INFINITY:
        how = f"the limit is {hard:,} here: set nofile in limits.conf, or docker run --ulimit"
        how += f" nofile={raised}"
    why = (
        f"a rank with {feeding.workers} workers may need {needed:,}, for batches on their way,"
        f" pipes and shards, and ends with 'Too many open files': {how}"
    )
    return Check("open files", "warn", got, why)


def shards(found: Found, feeding: Feeding) -> Check:
    """Warn of fewer tars of other tools than workers of all ranks: their loaders deal whole ones,
    and ours, and what reads our datasets, deal rows."""
    got, needed = f"{found.num_shards:,} for {feeding}", feeding.ranks * feeding.workers
    if found.kind == "dataset" or found.num_shards >= needed:
        return Check("shards", "ok", got)
    why = (
        f"loaders that deal whole shards leave some worker without any, with fewer than {needed}:"
        f" read it with shardkit.open, which deals rows, or `shardkit convert"
        f" {show_path(found.path)}` with a smaller --shard-size"
    )
    return Check("shards", "warn", got, why)


def preflight_lines(checks: list[Check]) -> list[str]:
    """Return a line for each check, and below it what to do."""
    heads = table([(check.state, check.name, check.got) for check in checks], left=(0, 1, 2))
    lines = []
    for head, check in zip(heads, checks, strict=True):
        lines += [head, *wrap(check.why, 100, initial_indent=6 * " ", subsequent_indent=6 * " ")]
    return lines
