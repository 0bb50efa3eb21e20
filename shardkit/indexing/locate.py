"""What lies at a path: a dataset of ours, or tars made by others, indexed on first sight."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from shardkit.index import INDEX_NAME, DatasetInfo, read_info
from shardkit.indexing.foreign import index_tars, is_tar_source
from shardkit.indexing.tarindex import read_names
from shardkit.storage import os_errors, show_path


@dataclass(frozen=True)
class Located:
    """A dataset and the folder that holds its index and shards (or links to them).

    The folder is absolute: shards are opened later, when the process may have changed its own.

    Attributes:
        tars: of an index of tars made by others, name of each shard's file -> that tar. A dataset
            of ours has none, whatever it was packed from.
    """

    folder: Path
    info: DatasetInfo
    tars: dict[str, Path] = field(default_factory=dict)


def locate(path: Path) -> Located:
    """Find the index of a dataset, making one for plain WebDataset tars.

    Raises:
        DatasetMissingError: neither is there.
    """
    with os_errors(f"opening {show_path(path)}"):
        if not (path / INDEX_NAME).exists() and is_tar_source(path):
            folder = index_tars(path)
            beside = path if path.is_dir() else path.parent
            tars = {shard: beside / name for shard, name in read_names(folder).items()}
            return Located(folder, read_info(folder), tars)
        return Located(path.absolute(), read_info(path))
