"""Whether a file is the one that was there before, as one number.

The number changes with the content, whatever is done to the time of change that people see: that a
file changed is also told by its ctime, which nobody sets back as ``touch``, ``rsync`` and ``tar``
do the mtime, and that another one has taken its place by its inode. Only a file that is written
twice within a tick of the system's clock (4 ms) is not told from the first.
"""

from __future__ import annotations

import os
from pathlib import Path

from shardkit.system.file_systems import is_remote


def stamp(status: os.stat_result, has_inodes: bool) -> int:
    """A number of 63 bits and a sign. ``has_inodes``: see :func:`inodes_stay`."""
    # Of integers, Python's hash has no secret: it is the same in every process.
    return hash((status.st_mtime_ns, status.st_ctime_ns, status.st_ino if has_inodes else 0))


def inodes_stay(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the same inode whenever it is looked at. Behind a network, or in a file
    system that is a process, it may get another one each time."""
    return not is_remote(Path(path))


def stamp_of(path: Path) -> int:
    """The number of what lies at a path, links followed. Raises OSError."""
    return stamp(path.stat(), inodes_stay(path))


def stamp_of_open(fd: int, path: Path) -> int:
    """The number of the open file ``fd``, which was found at ``path``."""
    return stamp(os.fstat(fd), inodes_stay(path))
