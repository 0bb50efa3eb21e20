"""Another name for a file of a dataset, or a copy of it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from shardkit.errors import StorageError
from shardkit.system.durable_files import fsync_path
from shardkit.system.full_reads import pread
from shardkit.system.opening import open_file
from shardkit.system.own_files import create
from shardkit.system.paths import show_path

COPY_BYTES = 4 << 20


def link_or_copy(source: Path, dest: Path, num_bytes: int | None = None) -> None:
    """Give a file that nobody changes any more another name; or copy it, where it can have none.

    Raises:
        DataError: it is missing, no regular file, or not of ``num_bytes``, if that is known.
    """
    temp = dest.with_name(f".{dest.name}.link")  # which no other call writes to
    with closing(open_file(source, num_bytes)) as file:
        for old in (temp, dest):  # of a call that was killed: to write there could change a part
            old.unlink(missing_ok=True)
        try:
            os.link(os.path.realpath(source), temp)
            is_same = os.path.samestat(os.fstat(file.fd), os.lstat(temp))
        except OSError:  # another file system, or one without links
            is_same = False
        if not is_same:
            with create(temp) as copy:
                for start in range(0, file.num_bytes, COPY_BYTES):
                    copy.write(pread(file.fd, min(COPY_BYTES, file.num_bytes - start), start))
                if copy.tell() != file.num_bytes:
                    raise StorageError(f"{show_path(source)} was cut short while it was copied")
            fsync_path(temp)
    temp.replace(dest)
