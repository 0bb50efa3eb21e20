"""How much was really read from a device, by the kernel's own counters.

What a process caused to be fetched from below the page cache stands in ``/proc/self/io``, with
what its threads and its children that have ended did; other processes' reads do not, as they do in
``/proc/diskstats``, which is taken only where the kernel keeps no account of processes. File
systems without a device below them (memory, network, FUSE) pass both by.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from shardkit.system.file_systems import mount_at

ON_DEVICES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay", "erofs", "squashfs", "jfs"}
    | {"bcachefs", "vfat", "exfat", "ntfs3", "iso9660", "udf", "nilfs2", "reiserfs"}
)
"""Those that read by way of the block layer, where the kernel counts. ZFS, network file systems
and FUSE do not."""

SECTOR_BYTES = 512
"""The unit of the kernel's block statistics, whatever the device's own sectors."""


Counter = Callable[[], int]
"""Bytes read from a device so far; only differences mean anything."""


def counter(path: Path) -> Counter | None:
    """What counts reads of the file system that holds a path; None where nothing does."""
    mount = mount_at(path)
    if mount is None or mount.kind not in ON_DEVICES:
        return None
    try:
        read_by_process()
    except (OSError, ValueError):  # a kernel without CONFIG_TASK_IO_ACCOUNTING
        return _of_block_device(mount.device)
    return read_by_process


def read_by_process() -> int:
    """Bytes that this process, and those it started that have ended, had fetched."""
    text = Path("/proc/self/io").read_text()
    found = re.search(r"^read_bytes: (\d+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError("no read_bytes in /proc/self/io")
    return int(found[1])


def _of_block_device(device: str) -> Counter | None:
    """Sectors read are the third number; Documentation/block/stat.rst."""
    stat = Path(f"/sys/dev/block/{device}/stat")

    def read() -> int:
        return int(stat.read_text().split()[2]) * SECTOR_BYTES

    return read if stat.exists() else None
