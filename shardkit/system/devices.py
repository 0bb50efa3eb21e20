"""How much was really read from a device, by the kernel's own counters.

What a process caused to be fetched from below the page cache stands in ``/proc/self/io``, with
what its threads and its children that have ended did; other processes' reads do not, as they do in
``/proc/diskstats``, which is taken only where the kernel keeps no account of processes. File
systems without a device below them (memory, network, FUSE) pass both by.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
"""File systems whose files are nowhere but in memory."""

ON_DEVICES = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "overlay", "erofs", "squashfs", "jfs"}
    | {"bcachefs", "vfat", "exfat", "ntfs3", "iso9660", "udf", "nilfs2", "reiserfs"}
)
"""Those that read by way of the block layer, where the kernel counts. ZFS, network file systems
and FUSE do not."""

SECTOR_BYTES = 512
"""In which the kernel's block statistics count, whatever the device's own sectors."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``: where, of what type, and major:minor."""

    point: str
    kind: str
    device: str


def parse_mounts(text: str) -> list[Mount]:
    """``/proc/self/mountinfo``, as in Documentation/filesystems/proc.rst, section 3.5."""
    mounts = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, kinds = fields.split(), rest.split()
        if len(parts) > 4 and kinds:
            point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), parts[4])
            mounts.append(Mount(point, kinds[0], parts[2]))
    return mounts


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that an absolute path without links lies in: the deepest, and of two at one point
    the later, which hides the other."""
    found = None
    for mount in mounts:
        point = mount.point.rstrip("/") + "/"
        if (path + "/").startswith(point) and (
            found is None or len(point) >= len(found.point.rstrip("/") + "/")
        ):
            found = mount
    return found


def is_in_memory(path: Path) -> bool:
    """Whether files there are nowhere but in memory, so that none is ever cold."""
    mount = _mount(path)
    return mount is not None and mount.kind in IN_MEMORY


def _mount(path: Path) -> Mount | None:
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    return mount_of(os.path.realpath(path), parse_mounts(text))


Counter = Callable[[], int]
"""Bytes read from a device so far; only differences mean anything."""


def counter(path: Path) -> Counter | None:
    """What counts reads of the file system that holds a path; None where nothing does."""
    mount = _mount(path)
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
