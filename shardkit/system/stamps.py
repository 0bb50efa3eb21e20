"""Whether a file is the one that was there before, as one number.

Its upper half is of the time of change that people see, and its lower half of what nobody sets back
as ``touch``, ``rsync`` and ``tar`` do that time: the ctime, and the inode, which tells that another
file has taken its place. So where upper halves are equal and lower ones are not, a file was moved,
copied, or changed in secret. Only one that is written twice within a tick of the system's clock
(4 ms) is not told from the first.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.system.file_systems import is_remote

UPPER = 32
"""Bits below the upper half. It has 31 of its own; the lower half has 24, so that some hundred
stamps can be added up with no carry between the halves."""

_PRIME = 2**31 - 1
_ODD = 0x9E3779B97F4A7C15


def stamp(status: os.stat_result, has_inodes: bool) -> int:
    """Return a number in [0, 2**63). ``has_inodes``: see :func:`inodes_stay`."""
    hidden = (status.st_ctime_ns ^ status.st_ino << 20 if has_inodes else status.st_ctime_ns) * _ODD
    return (status.st_mtime_ns % _PRIME) << UPPER | (hidden >> 40) & 0xFFFFFF


def stamps(mtimes: Integers, ctimes: Integers, inodes: Integers, has_inodes: bool) -> Integers:
    """Return :func:`stamp` of many files, from int64 arrays of one shape."""
    hidden = ctimes.view(np.uint64)
    if has_inodes:
        hidden = hidden ^ (inodes.view(np.uint64) << np.uint64(20))
    low = (hidden * np.uint64(_ODD)) >> np.uint64(40)
    return ((mtimes % _PRIME) << UPPER) | low.astype(np.int64)


def inodes_stay(path: str | os.PathLike[str]) -> bool:
    """Return True if a file has one inode whenever it is looked at. Behind a network, or in a file
    system that is a process, it may get another one each time."""
    return not is_remote(Path(path))


def size_and_stamp(path: Path) -> tuple[int, int]:
    """Return the bytes and number of what lies at a path, links followed. Raises OSError."""
    status = path.stat()
    return status.st_size, stamp(status, inodes_stay(path))


def stamp_of_open(fd: int, path: Path) -> int:
    """Return the number of the open file ``fd``, which was found at ``path``."""
    return stamp(os.fstat(fd), inodes_stay(path))
