"""What files lie on: a disk of this machine, memory, or a network or another process."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from shardkit.system.libc import libc

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
    """Whether a file or folder, links followed, lies on one of :data:`REMOTE`. False where nobody
    knows, as on systems other than Linux, or where nothing is under the path."""
    return type_of(path) in REMOTE


def type_of(path: Path) -> int:
    """The number of the file system's type; 0 where nobody knows."""
    if sys.platform != "linux":
        return 0
    status = ctypes.create_string_buffer(_STATFS_BYTES)
    if libc().statfs(os.fsencode(path), status):
        return 0
    return ctypes.c_ulong.from_buffer(status).value & 0xFFFFFFFF


# --- mounts -------------------------------------------------------------------------------


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo``: where, of what type, major:minor, and of what: the path
    of a device, a server's export, or any word."""

    point: str
    kind: str
    device: str
    source: str = ""


def parse_mounts(text: str) -> list[Mount]:
    """``/proc/self/mountinfo``, as in Documentation/filesystems/proc.rst, section 3.5."""
    mounts = []
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, kinds = fields.split(), rest.split()
        if len(parts) > 4 and kinds:
            point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), parts[4])
            mounts.append(Mount(point, kinds[0], parts[2], kinds[1] if len(kinds) > 1 else ""))
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
    mount = mount_at(path)
    return mount is not None and mount.kind in IN_MEMORY


def mount_at(path: Path) -> Mount | None:
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    return mount_of(os.path.realpath(path), parse_mounts(text))
