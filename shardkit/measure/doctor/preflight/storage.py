"""What a dataset lies on: its file system and device, and whether it fits in memory beside them."""

from __future__ import annotations

import os
import shutil

from shardkit.measure.doctor.preflight.check import Check
from shardkit.measure.doctor.preflight.dataset import Found
from shardkit.system.block_devices import BlockDevice, Readahead
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.file_systems import IN_MEMORY, Mount
from shardkit.system.page_cache import resident_fraction
from shardkit.system.paths import show_path

CACHE_SHARE = 0.8
"""Of the memory that is free now, which a dataset may fill to be called one that fits: the training
takes memory, too."""

LEAST_READAHEAD = 128 << 10
"""The kernel's default, below which large files come in many small requests."""

REMOTE_READAHEAD = 1 << 20
"""Of a network file system: a request takes a millisecond or so to come back, and with the 128 kB
that Linux gives since 5.4 a stream then has some 128 MB/s at most."""

MOST_READAHEAD = 1 << 20
"""Random reads of a dataset that memory does not hold throw away what was read around them."""

MANY_FILES = 10_000
SMALL_BYTES = 1 << 20
"""So many files that are smaller than this: to open them takes longer than to read them."""

SPARE_BYTES = 1 << 30
"""Of a disk: checkpoints and logs want some room."""

_MOST_MAPPED = 4 << 30
"""Bytes of which is asked whether they are in memory: a million pages, in 0.1 s."""


def layout(found: Found) -> Check:
    """What it is, and whether it is many small files."""
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
    """Whether it is behind a network, or behind another process (FUSE)."""
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


def rotation(found: Found, device: BlockDevice | None) -> Check:
    """Whether the disk has to turn to where a sample lies."""
    if device is None:
        return Check("disk", "ok", "none that this file system tells of")
    if device.is_rotating is None:
        return Check("disk", "ok", f"{device.name}, which does not say whether it rotates")
    name = device.name if device.disks == (device.name,) else (
        f"{device.name} on {', '.join(device.disks)}"
    )  # fmt: skip
    if not device.is_rotating:
        return Check("disk", "ok", f"{name}, does not rotate")
    if device.is_virtual:
        return Check(
            "disk", "ok", f"{name}, virtual", "it calls itself a rotating one, as disks of virtual"
            " machines do whatever is behind them: `shardkit bench --cold` says how fast it is",
        )  # fmt: skip
    fix = "read it in block order (shuffle='block'), or `shardkit stage` it to an SSD or memory"
    if found.kind == "files":
        fix = "pack it with --shuffle, and read that in order or in blocks; or move it to an SSD"
    return Check(
        "disk", "warn", f"{name}, a rotating one",
        f"each random read takes some 10 ms, 100 of them a second: {fix}",
    )  # fmt: skip


def readahead(found: Found, window: Readahead | None, is_remote: bool, fits: bool) -> Check:
    """``fits`` says whether memory holds the dataset."""
    name = "readahead"
    if window is None:
        return Check(name, "ok", "none that this file system tells of")
    got, size = format_bytes(window.num_bytes), window.num_bytes
    is_streamed = found.value_bytes >= SMALL_BYTES or found.kind == "tars"
    if size < LEAST_READAHEAD:
        why = "large reads are cut into small ones, each of which waits"
        return Check(name, "warn", got, f"{why}: {_set(window, LEAST_READAHEAD)}")
    if is_remote and is_streamed and size < REMOTE_READAHEAD:
        why = "a stream of a large file waits for the network again and again"
        return Check(name, "warn", got, f"{why}: {_set(window, 8 * REMOTE_READAHEAD)}")
    is_small = found.kind == "dataset" and found.value_bytes * 4 < size
    if not fits and is_small and size > MOST_READAHEAD:
        why = (
            f"a random read of a sample ({format_bytes(found.value_bytes)}) may bring in as much"
            " around it, which is dropped before it is used"
        )
        how = f"read in block order (shuffle='block'), or {_set(window, LEAST_READAHEAD)}"
        return Check(name, "warn", got, f"{why}: {how}")
    return Check(name, "ok", got)


def _set(window: Readahead, num_bytes: int) -> str:
    return f"`echo {num_bytes >> 10} | sudo tee {window.file}`"


def fits_in_memory(num_bytes: int, free: int) -> bool:
    return num_bytes <= CACHE_SHARE * free


def page_cache(found: Found, free: int, mount: Mount | None) -> Check:
    """Whether epochs after the first come from memory."""
    name = "page cache"
    if mount is not None and mount.kind in IN_MEMORY:
        return Check(name, "ok", "it lies in memory")
    got = f"{format_bytes(found.num_bytes)}, and {format_bytes(free)} of memory are free"
    share = _resident(found)
    if share is not None:
        got += f"; {share:.0%} is there now"
    if not found.is_at_least and fits_in_memory(found.num_bytes, free):
        return Check(name, "ok", got)
    return Check(
        name, "warn", got, "it does not fit, so that every epoch reads the disk: smaller samples"
        " (`shardkit pack --estimate` says what smaller pictures save), block order"
        " (shuffle='block'), a faster disk, or more memory",
    )  # fmt: skip


def _resident(found: Found) -> float | None:
    """Of some files; None where the kernel does not tell, as of files that are another user's."""
    own, left = [], _MOST_MAPPED
    for path in found.some_files:
        left -= path.stat().st_size
        if left >= 0 and os.access(path, os.W_OK):
            own.append(path)
    try:
        return resident_fraction(own) if own else None
    except OSError:
        return None


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
