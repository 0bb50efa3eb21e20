"""What lies at a path: a dataset of ours, or tars made by others, indexed on first sight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shardkit.index import INDEX_NAME, DatasetInfo, read_info
from shardkit.indexing.foreign import index_tars, is_tar_source
from shardkit.storage import os_errors, show_path


@dataclass(frozen=True)
class Located:
    """A dataset and the folder that holds its index and shards (or links to them).

    The folder is absolute: shards are opened later, when the process may have changed its own.
    """

    folder: Path
    info: DatasetInfo


def locate(path: Path) -> Located:
    """Find the index of a dataset, making one for plain WebDataset tars.

    Raises:
        DatasetMissingError: neither is there.
    """
    with os_errors(f"opening {show_path(path)}"):
        if not (path / INDEX_NAME).exists() and is_tar_source(path):
            folder = index_tars(path)
            return Located(folder, read_info(folder))
        return Located(path.absolute(), read_info(path))
