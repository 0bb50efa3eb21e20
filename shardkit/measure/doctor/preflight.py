"""``shardkit doctor DATASET``: what would slow or stop a training, before it begins.

Nobody knows the script here, so a usual one is taken: on each rank a worker process for each core
of its share, torch's two batches ahead for each of them, and batches of 64.
"""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Literal

from shardkit.arguments import integer
from shardkit.errors import DatasetMissingError
from shardkit.formats import FORMATS, TARS, Format
from shardkit.images.sniff import IMAGE_EXTENSIONS, IMAGE_FIELDS
from shardkit.index.manifest import INDEX_NAME, DatasetInfo, read_info
from shardkit.loading.auto import local_ranks
from shardkit.loading.settings import DEFAULT_PREFETCH
from shardkit.measure.table import table
from shardkit.measure.tune.space import SHM_SHARE, SPARE_FILES
from shardkit.shards.locate import refuse_orphans
from shardkit.shards.stored import container_of
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

BATCH_TENSORS = 2
"""Images and labels. Each takes an open file on its way from a worker process."""

WORKER_FILES = 8
"""Open files of the loop's process for each worker of DataLoader: pipes, a sentinel, events."""

SPARE_BYTES = 1 << 30
"""Of a disk, for checkpoints and logs."""

LOOKED_AT = 200
"""Files that tell what a sample is: on a network file system each look may cost a millisecond."""

WIDTH, INDENT = 100, 6 * " "
"""Characters of a line of advice, and what it begins with."""

_COMMAND = re.compile("`[^`]*`")
_NO_BREAK = "\N{NO-BREAK SPACE}"

State = Literal["ok", "warn", "fail"]
"""``warn``: training may be slow, or may stop in some settings. ``fail``: it will stop."""


@dataclass(frozen=True)
class Check:
    """A line of ``shardkit doctor DATASET``.

    Attributes:
        got: what was found, with its figures. why: what that means and what to do about it; where
            all is well it may be empty.
    """

    name: str
    state: State
    got: str
    why: str = ""


@dataclass(frozen=True)
class Found:
    """A dataset of ours, tars of other tools, or plain files.

    Attributes:
        container: the format of its shards; None for plain files.
        num_shards: of the largest split. value_bytes: mean size of a sample, or of a file.
    """

    path: Path
    kind: Literal["dataset", "tars", "files"]
    container: Format | None
    num_shards: int = 0
    value_bytes: float = 0.0
    has_images: bool = False


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

    def __str__(self) -> str:
        ranks = f"{self.ranks} ranks with " if self.ranks > 1 else ""
        each = " each" if self.ranks > 1 else ""
        size = format_bytes(self.batch_bytes)
        return f"{ranks}{_workers(self.workers)}{each}, batches of {BATCH} ({size})"


def preflight(path: str | Path, ranks: int | None = None) -> list[Check]:
    """Look at a dataset and at the machine that is to train from it. Nothing is written.

    Args:
        ranks: processes that train on this machine; None: as many as LOCAL_WORLD_SIZE says, or one.

    Raises:
        DatasetMissingError: nothing is there, or nothing in it. UsageError: ``ranks`` is no number
        from 1 on. IndexFileError: a dataset of ours is damaged. StorageError: it may not be read.
    """
    ranks = local_ranks() if ranks is None else integer("ranks", ranks, 1)
    found = find(path)
    with os_errors(f"looking at {show_path(path)}"):
        here = allowance()
        feeding = usual_feeding(found, here, ranks)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        mount = mount_at(found.path)
        checks = [
            file_system(found, "unknown" if mount is None else mount.kind, is_remote(found.path)),
            free_space(shutil.disk_usage(found.path).free),
            cpu_quota(here, os.cpu_count() or here.cores, ranks),
            shared_memory(here.shm_bytes, feeding),
            open_files(here.open_files, hard, feeding, found.num_shards),
            shards(found, ranks, feeding.workers),
        ]
        return [check for check in checks if check is not None]


# --- what lies at the path ----------------------------------------------------------------


def find(path: str | Path) -> Found:
    """Look at a path.

    Raises:
        DatasetMissingError: nothing is there, or an empty folder, or an incomplete dataset.
        IndexFileError: a dataset of ours is damaged. StorageError: it may not be read.
    """
    path = as_path(path, "the dataset")
    with os_errors(f"looking at {show_path(path)}"):
        if not path.exists():
            raise DatasetMissingError(
                f"there is nothing at {show_path(path)}; give the folder that the script reads"
            )
        if (path / INDEX_NAME).exists():
            return _ours(path, read_info(path))
        refuse_orphans(path)
        return _tars(path) if is_tar_source(path) else _files(path)


def _ours(path: Path, info: DatasetInfo) -> Found:
    splits = list(info.splits.values())
    num_bytes = sum(n for s in splits for shard in s.shards for n in shard.file_bytes.values())
    return Found(
        path=path,
        kind="dataset",
        container=container_of(info),
        num_shards=len(max(splits, key=lambda split: split.num_rows).shards),
        value_bytes=num_bytes / max(sum(split.num_rows for split in splits), 1),
        has_images=not IMAGE_FIELDS.isdisjoint(info.fields),
    )


def _tars(path: Path) -> Found:
    """Most tars are of images: nobody reads them through to learn it."""
    folder, names = find_tar_names(path)
    num = sum((folder / name).is_file() for name in names)
    return Found(path, "tars", FORMATS[TARS], num, has_images=True)


def _files(path: Path) -> Found:
    some = list(islice(_walk(path), LOOKED_AT))
    if not some:
        raise DatasetMissingError(
            f"{show_path(path)} holds no files; give the folder that has them"
        )
    return Found(
        path=path,
        kind="files",
        container=None,
        value_bytes=fmean(file.stat().st_size for file in some),
        has_images=not IMAGE_EXTENSIONS.isdisjoint(file.suffix.lower() for file in some),
    )


def _walk(path: Path) -> Iterator[Path]:
    """Yield the files at and below a path, without hidden ones and links that lead nowhere."""
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = (Path(folder, name) for name in names if not name.startswith("."))
        yield from (file for file in files if file.is_file())


# --- the checks ---------------------------------------------------------------------------


def usual_feeding(found: Found, machine: Allowance, ranks: int) -> Feeding:
    """Return the usual script: images are cropped, all else is as large as in the files."""
    sample = CROP_BYTES if found.has_images else max(1, round(found.value_bytes))
    return Feeding(ranks, machine.share(ranks), BATCH * sample)


def file_system(found: Found, kind: str, is_remote: bool) -> Check:
    """Warn of a file system behind a network, or behind another process (FUSE)."""
    if not is_remote:
        return Check("file system", "ok", kind)
    first = show_path(found.path)
    how = f"`shardkit stage {first} FOLDER` copies it to a disk of this machine, and checks it"
    if found.kind == "files":
        how = (
            f"`shardkit pack {first} FOLDER/packed`, with FOLDER on a disk of this machine, reads"
            " each file once"
        )
    return Check(
        "file system", "warn", f"{kind}, not a disk of this machine",
        f"each read waits for a server or another process, and others load it, too: {how}",
    )  # fmt: skip


def free_space(free: int) -> Check:
    """Warn of a disk that is nearly full."""
    got = f"{format_bytes(free)} free"
    if free < SPARE_BYTES:
        return Check("free space", "warn", got, "checkpoints and logs need space: free some")
    return Check("free space", "ok", got)


def cpu_quota(machine: Allowance, all_cores: int, ranks: int) -> Check:
    """Warn of fewer cores than a program sees: libraries start a thread for each of them, and a
    quota then stops them all."""
    got = f"{machine.cpus} of {all_cores} cores"
    if machine.cpu_quota is not None and machine.cpu_quota < machine.cores:
        got = f"a quota of {machine.cpu_quota:g} on {machine.cores} cores"
    if machine.cpus >= all_cores:
        return Check("CPU quota", "ok", got)
    return Check(
        "CPU quota", "warn", got, f"os.cpu_count() says {all_cores}, and programs that believe it"
        " start too many workers and threads: give num_workers and OMP_NUM_THREADS, each"
        f" {machine.share(ranks)} at most, for each rank",
    )  # fmt: skip


def shared_memory(free: int | None, feeding: Feeding) -> Check:
    """Check that the batches of DataLoader's processes fit in /dev/shm, of which Docker gives
    64 MB: a worker that finds it full is killed by SIGBUS. Some of it is left to NCCL."""
    name = "shared memory"
    if free is None:
        return Check(
            name, "fail", "no /dev/shm", "DataLoader's worker processes need it: mount a tmpfs"
            " there, or use shardkit.Loader, whose workers do without",
        )  # fmt: skip
    waiting_bytes = feeding.waiting * feeding.batch_bytes
    needed = math.ceil(waiting_bytes / SHM_SHARE)
    got = f"{format_bytes(free)} free in /dev/shm"
    if free >= needed:
        return Check(name, "ok", got)
    least = feeding.ranks * feeding.workers * feeding.batch_bytes
    return Check(
        name,
        "fail" if free < least else "warn",
        got,
        f"{feeding} take up to {format_bytes(waiting_bytes)} of it, and a worker that finds it full"
        f" dies of a bus error: docker run --shm-size={math.ceil(needed / 1e9)}g (Kubernetes: an"
        " emptyDir of medium Memory at /dev/shm), fewer workers, or shardkit.Loader, which needs"
        " none",
    )


def open_files(left: int | None, hard: int, feeding: Feeding, files: int) -> Check:
    """Check the limit of open files: ``left`` may still be opened, None is no limit; ``hard`` is
    the hard limit; ``files`` are the shards that a reader may hold open."""
    name = "open files"
    waiting = feeding.waiting // feeding.ranks * BATCH_TENSORS
    needed = waiting + feeding.workers * WORKER_FILES + files + SPARE_FILES
    if left is None or left >= needed:
        return Check(name, "ok", "no limit" if left is None else f"{left:,} more may be opened")
    raised = 1 << (2 * needed - 1).bit_length()
    may = hard == resource.RLIM_INFINITY or hard >= raised
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


def shards(found: Found, ranks: int, workers: int) -> Check | None:
    """Warn of fewer shards than workers of all ranks, where readers give whole shards away: of our
    formats those of tars do. None where there are no shards."""
    if found.container is None:
        return None
    name, needed = "shards", ranks * workers
    each = f"{ranks} ranks with {_workers(workers)} each" if ranks > 1 else _workers(workers)
    got = f"{found.num_shards:,} for {each}"
    if found.container.name != TARS or found.num_shards >= needed:
        return Check(name, "ok", got)
    return Check(
        name,
        "warn" if found.kind == "tars" else "ok",
        got,
        "shardkit.Loader and Stream deal rows to ranks and workers, and any number of shards will"
        f" do; the loaders of {found.container.library} deal whole shards, and with fewer than"
        f" {needed} some worker gets none: read it with shardkit.open, or `shardkit convert"
        f" {show_path(found.path)}` with a smaller --shard-size",
    )


def _workers(num: int) -> str:
    return f"{num} worker" if num == 1 else f"{num} workers"


# --- for a terminal -----------------------------------------------------------------------


def preflight_lines(checks: list[Check]) -> list[str]:
    """Return a line for each check, and below it what to do."""
    heads = table([(check.state, check.name, check.got) for check in checks], left=(0, 1, 2))
    lines = []
    for head, check in zip(heads, checks, strict=True):
        # Commands are left unbroken, so that they can be copied.
        whole = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), check.why)
        wrapped = textwrap.wrap(
            whole,
            WIDTH,
            initial_indent=INDENT,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += [head, *(line.replace(_NO_BREAK, " ") for line in wrapped)]
    return lines
