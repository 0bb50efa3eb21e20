"""What files lie on: a disk of this machine, memory, or a network or another process; and how much
was read from a device, by the kernel's own counters.

What a process caused to be fetched from below the page cache stands in ``/proc/self/io``, with
what its threads and its children that have ended did; other processes' reads do not, as they do in
``/proc/diskstats``, which is taken only where the kernel keeps no account of processes. File
systems without a device below them (memory, network, FUSE) pass both by.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple


@cache
def libc() -> Any:
    """Return the C library, for calls that Python does not have. They release the GIL."""
    lib: Any = ctypes.CDLL(None, use_errno=True)
    # Where an address has 32 bits, mmap's offsets have as many.
    lib.map_file = getattr(lib, "mmap64", lib.mmap)
    lib.map_file.restype = ctypes.c_void_p
    lib.map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    lib.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    lib.statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    lib.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if hasattr(lib, "mincore"):
        lib.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    return lib


IN_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})
"""File systems whose files are nowhere but in memory."""

REMOTE = {
    0x00006969: "nfs",
    0x0000517B: "smb",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x0000564C: "ncp",
    0x5346414F: "afs",
    0x6B414653: "kafs",
    0x73757245: "coda",
    0x65735546: "fuse",
    0x01021997: "9p",
    0x786F4256: "vboxsf",
    0x7C7C6673: "prl_fs",
    0xBACBACBC: "vmhgfs",
    0x0BD00BD0: "lustre",
    0x00C36400: "ceph",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x20030528: "orangefs",
    0xAAD7AAEA: "panfs",
    0x18031977: "weka",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
}
"""Types of file systems whose files others may change or take away at any time, as statfs(2) and
the C library's ``stat -f`` number them. virtiofs, sshfs, s3fs, gcsfuse and the like are fuse; so is
ntfs-3g, a disk of this machine, which is taken for one of them."""

_OCTAL = re.compile(r"\\([0-7]{3})")

_STATFS_BYTES = 512
"""More than any ``struct statfs``, of which the first word is the type."""


def is_remote(path: Path) -> bool:
    """Return True if a file or folder, links followed, lies on one of :data:`REMOTE`.

    False if nobody knows, as on systems other than Linux, or where nothing is under the path.
    """
    return type_of(path) in REMOTE


def type_of(path: Path) -> int:
    """Return the number of the file system's type; 0 if nobody knows."""
    if sys.platform != "linux":
        return 0
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if libc().statfs(os.fsencode(path), status):
        return 0
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF


# --- mounts -------------------------------------------------------------------------------


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``: where, of what type, major:minor, and of what: the path
    of a device, a server's export, or any word; what part of the file system, with which options of
    its own."""

    point: str
    kind: str
    device: str
    source: str = ""
    top: str = "/"
    options: str = ""


def parse_mounts(text: str) -> list[Mount]:
    """Parse ``/proc/self/mountinfo``, as in Documentation/filesystems/proc.rst, section 3.5."""
    mounts = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, (kind, source, options) = fields.split(), [*rest.split(), "", "", ""][:3]
        if len(parts) > 4 and kind:
            top, point = (
                _OCTAL.sub(lambda found: chr(int(found[1], 8)), part) for part in parts[3:5]
            )
            mounts.append(Mount(point, kind, parts[2], source, top, options))
    return mounts


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Return the mount that an absolute path without links lies in: the deepest, and of two at one
    point the later, which hides the other."""
    around = [mount for mount in mounts if f"{path}/".startswith(mount.point.rstrip("/") + "/")]
    return max(reversed(around), key=lambda mount: len(mount.point.rstrip("/")), default=None)


def is_in_memory(path: Path) -> bool:
    """Return True if files there are nowhere but in memory, so that none is ever cold."""
    mount = mount_at(path)
    return mount is not None and mount.kind in IN_MEMORY


def mount_at(path: Path) -> Mount | None:
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    return mount_of(os.path.realpath(path), parse_mounts(text))


# --- reads from a device ------------------------------------------------------------------

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
    """Return what counts reads of the file system that holds a path; None if nothing does."""
    mount = mount_at(path)
    if mount is None or mount.kind not in ON_DEVICES:
        return None
    try:
        read_by_process()
    except (OSError, ValueError):  # a kernel without CONFIG_TASK_IO_ACCOUNTING
        return _of_block_device(mount.device)
    return read_by_process


def read_by_process() -> int:
    """Return the bytes that this process, and those it started that have ended, had fetched."""
    text = Path("/proc/self/io").read_text()
    found = re.search(r"^read_bytes: (\d+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError("no read_bytes in /proc/self/io")
    return int(found[1])


def _of_block_device(device: str) -> Counter | None:
    """Return a counter of sectors read, the third number; Documentation/block/stat.rst."""
    stat = Path(f"/sys/dev/block/{device}/stat")

    def read() -> int:
        return int(stat.read_text().split()[2]) * SECTOR_BYTES

    return read if stat.exists() else None
