"""Another name for a file of a dataset, or a copy of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shardkit.system.durable_files import fsync_path


def link_or_copy(source: Path, dest: Path) -> None:
    """Another name of a file that nobody changes any more; a copy, where there can be none."""
    temp = dest.with_name(f".{dest.name}.link")  # which no other call writes to
    source = source.resolve()
    for old in (temp, dest):  # of a call that was killed: to write there could change a part
        old.unlink(missing_ok=True)
    try:
        os.link(source, temp)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, temp)
        fsync_path(temp)
    temp.replace(dest)
