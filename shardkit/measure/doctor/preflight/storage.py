"""Check what a dataset lies on: its file system, its free space, its shards."""

from __future__ import annotations

import shutil

from shardkit.formats import TARS
from shardkit.measure.doctor.preflight.check import Check
from shardkit.measure.doctor.preflight.dataset import Found
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.file_systems import Mount
from shardkit.system.paths import show_path

MANY_FILES = 10_000
SMALL_BYTES = 1 << 20
"""So many files that are smaller than this: to open them takes longer than to read them."""

SPARE_BYTES = 1 << 30
"""Of a disk: checkpoints and logs want some room."""


def layout(found: Found) -> Check:
    """Say what it is, and warn of many small files."""
    more = "more than " if found.is_at_least else ""
    size = format_bytes(found.num_bytes)
    if found.container is not None and found.kind == "dataset":
        got = f"{found.container.name}, {found.num_samples:,} samples, {size}"
        return Check("dataset", "ok", got)
    if found.kind == "tars":
        tars = "1 tar" if found.num_files == 1 else f"{found.num_files:,} tars"
        return Check("dataset", "ok", f"{tars} that others made, {size}")
    got = f"{more}{found.num_files:,} files, {format_bytes(found.value_bytes)} each, {size}"
    if found.num_files < MANY_FILES or found.value_bytes >= SMALL_BYTES:
        return Check("dataset", "ok", got)
    return Check(
        "dataset", "warn", got, "each sample costs a file that is looked up, opened and read apart:"
        f" `shardkit pack {show_path(found.path)}` makes some large ones of them",
    )  # fmt: skip


def file_system(found: Found, mount: Mount | None, is_remote: bool) -> Check:
    """Warn of one behind a network, or behind another process (FUSE)."""
    kind = "unknown" if mount is None else mount.kind
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


def free_space(found: Found) -> Check:
    """Files as they are want to be packed, and what comes of it is about as large."""
    free = shutil.disk_usage(found.path).free
    got = f"{format_bytes(free)} free"
    if found.kind == "files" and free < found.num_bytes:
        return Check(
            "free space", "warn", got, f"packed it has about {format_bytes(found.num_bytes)}: name"
            " another disk as the destination of `shardkit pack`",
        )  # fmt: skip
    if free < SPARE_BYTES:
        return Check("free space", "warn", got, "checkpoints and logs want room: free some")
    return Check("free space", "ok", got)


def shards(found: Found, ranks: int, workers: int) -> Check | None:
    """Readers that give whole shards away need one for each worker of each rank; of our formats
    those of tars do. None where there are no shards."""
    if found.container is None:
        return None
    name, num, needed = "shards", found.num_shards, ranks * workers
    got = f"{num:,} for {_workers(workers)}" if ranks == 1 else (
        f"{num:,} for {ranks} ranks with {_workers(workers)} each"
    )  # fmt: skip
    if found.container.name != TARS or num >= needed:
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
