"""The block device under a path: which it is, whether it turns, and how far the kernel reads ahead.

The functions take the root of the tree that ``/sys`` lies in. Documentation/ABI/stable/sysfs-block.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardkit.system.file_systems import mount_at
from shardkit.system.kernel_files import count, text


@dataclass(frozen=True)
class BlockDevice:
    """What was found.

    Attributes:
        name: of the device that is mounted, ``nvme0n1p2`` or ``dm-0``. disks: that it lies on in
            the end. is_rotating: whether one of these says so; disks of virtual machines often do,
            and are none. None where nobody says. is_virtual: whether a hypervisor stands behind it.
    """

    name: str
    disks: tuple[str, ...]
    is_rotating: bool | None
    is_virtual: bool


class Readahead(NamedTuple):
    """How far the kernel reads ahead of a file, in bytes; and the file that sets it, in KiB."""

    num_bytes: int
    file: Path


def device_at(path: Path, root: Path = Path("/")) -> BlockDevice | None:
    """The one under a path; None for file systems that lie on none, or that do not say on which."""
    number = _number(os.stat(path).st_dev)
    found = describe(number, root)
    if found is None and (mount := mount_at(path)) is not None and mount.source.startswith("/dev/"):
        # btrfs gives each subvolume a number of its own; the mount names the device.
        try:
            found = describe(_number(os.stat(mount.source).st_rdev), root)
        except OSError:
            return None
    return found


def readahead_at(path: Path, root: Path = Path("/")) -> Readahead | None:
    """Of the file system under a path, of one behind a network, too; None where nobody says."""
    return readahead(_number(os.stat(path).st_dev), root)


def readahead(number: str, root: Path = Path("/")) -> Readahead | None:
    """Of a file system whose files have this device number. A partition has its disk's."""
    files = [root / "sys/class/bdi" / number / "read_ahead_kb"]
    folder = root / "sys/dev/block" / number
    if folder.exists():
        files.append(_whole(folder.resolve()) / "queue/read_ahead_kb")
    for file in files:
        kib = count(text(file))
        if kib is not None:
            return Readahead(kib << 10, file)
    return None


def describe(number: str, root: Path = Path("/")) -> BlockDevice | None:
    """The device of a number, as in ``"259:2"``."""
    folder = root / "sys/dev/block" / number
    if not folder.exists():
        return None
    folder = folder.resolve()
    disks = _disks(folder)
    rotating = [count(text(disk / "queue/rotational")) for disk in disks]
    return BlockDevice(
        name=folder.name,
        disks=tuple(sorted(disk.name for disk in disks)),
        is_rotating=None if all(one is None for one in rotating) else any(rotating),
        is_virtual=any(_is_virtual(disk) for disk in disks),
    )


def _whole(folder: Path) -> Path:
    """The disk that a partition is a part of."""
    return folder.parent if (folder / "partition").exists() else folder


def _disks(folder: Path) -> list[Path]:
    """Down through device mapper and RAID, which list what they are made of."""
    whole = _whole(folder)
    slaves = whole / "slaves"
    below = sorted(slaves.iterdir()) if slaves.is_dir() else []
    if not below:
        return [whole]
    found = {disk for each in below for disk in _disks(each.resolve())}
    return sorted(found)


def _is_virtual(disk: Path) -> bool:
    """By the kernel's names for disks that hypervisors make up (virtio, Xen), or the vendor that
    the disk names."""
    vendor = text(disk / "device/vendor").lower()
    is_made_up = vendor.startswith(("qemu", "vmware", "msft", "vbox", "google", "amazon"))
    return disk.name.startswith(("vd", "xvd")) or is_made_up


def _number(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"
