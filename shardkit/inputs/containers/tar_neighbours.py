"""What lies beside the tars of a folder, and is no part of them: ``00000.parquet`` and
``00000_stats.json`` of img2dataset, tars in folders below."""

from __future__ import annotations

import os
from pathlib import Path

from shardkit.index.manifest import INDEX_NAME
from shardkit.inputs.files import HIDDEN
from shardkit.inputs.folders import pass_over
from shardkit.tars.cached_index import CACHE_NAME
from shardkit.tars.find import find_tar_names, is_tar_source


def count_beside(source: Path, ignored: dict[str, int]) -> None:
    """Count, by ending, the files that converting a folder of tars passes over, those in folders
    below among them; none where the source is a dataset, or a tar or a pattern, which names what
    is meant."""
    if not source.is_dir() or (source / INDEX_NAME).exists() or not is_tar_source(source):
        return
    taken = {*find_tar_names(source)[1]}
    for folder, below, names in os.walk(source):
        for name in below + names:
            if name.startswith("."):
                ignored[HIDDEN] = ignored.get(HIDDEN, 0) + (name != CACHE_NAME)
        below[:] = [name for name in below if not name.startswith(".")]
        for name in names:
            path = os.path.relpath(os.path.join(folder, name), source)
            if not name.startswith(".") and path not in taken:
                pass_over(name, ignored)
    if not ignored.get(HIDDEN, 1):
        del ignored[HIDDEN]
