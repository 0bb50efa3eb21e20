"""DALI's index of the tars of a dataset that lies there already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from shardkit.arrays import Integers
from shardkit.commit.durable_files import atomic_write
from shardkit.commit.own_files import read_own
from shardkit.errors import DestinationError, UsageError
from shardkit.formats import TARS
from shardkit.formats.dali_index import VERSION, dali_index, dali_index_name
from shardkit.formats.format import Extents
from shardkit.formats.member_names import member_keys
from shardkit.index.manifest import SplitInfo
from shardkit.index.rows import RowIndex
from shardkit.samples.encoding import BYTES
from shardkit.samples.sample import KEY
from shardkit.shards.locate import Located, locate
from shardkit.shards.stored import container_of
from shardkit.system.paths import as_path, show_path
from shardkit.system.refusals import os_errors


def write_index(dataset: str | Path, folder: str | Path | None = None) -> list[Path]:
    """Write DALI's index of each tar of a webdataset, ours or others'.

    ``pack --dali-index`` has done so already, and ``verify`` looks after those; this is for
    datasets packed without, for tars made by others, and to mend what was lost.

    Args:
        dataset: its folder, or one tar. folder: where to write; default: beside each tar.

    Returns:
        Their paths, shard by shard, as ``index_paths`` of ``fn.readers.webdataset`` wants them.

    Raises:
        UsageError: it is no webdataset. DestinationError: another file is in the way.
    """
    path = as_path(dataset, "the dataset")
    located = locate(path)
    if not container_of(located.info).has_dali_reader:
        raise UsageError(
            f"{show_path(path)} holds {located.info.container}, and DALI reads tars: use"
            f" shardkit.dali.source, or `shardkit convert --to {TARS} --dali-index`"
        )
    _refuse_views(located)
    made = []
    with os_errors(f"writing DALI's index of {show_path(path)}"):
        for split in located.info.splits.values():
            for tar, lines in _indexes(located, split):
                index = Path(folder or tar.parent) / dali_index_name(tar.stem)
                _refuse_others(index)
                atomic_write(index, [lines])
                made.append(index)
    return made


def _refuse_views(located: Located) -> None:
    """Raise UsageError where tars hold other samples, or labels, than the dataset has."""
    for split in located.info.splits.values():
        if split.is_view:
            raise UsageError(
                f"{located.shown}: tars of {split.name} hold samples or labels that this version"
                f" has not: use shardkit.dali.source, or `shardkit convert --to {TARS}"
                " --dali-index`"
            )


def _indexes(located: Located, split: SplitInfo) -> Iterator[tuple[Path, bytes]]:
    """Each tar of a split, and its index."""
    rows = RowIndex(located.storage, located.info, split)
    stop = 0
    for number, shard in enumerate(split.shards):
        start, stop = stop, stop + shard.num_rows
        name = container_of(located.info).file_of(split.stem(number), KEY)
        keys = [rows.name(row)[0] for row in range(start, stop)]
        extents = {
            field: Extents(*_places(rows, field, slice(start, stop)), BYTES)
            for field in located.info.fields
        }
        tar = located.tars.get(name, located.folder / name)
        yield tar, dali_index(keys if located.tars else member_keys(keys), extents)


def _places(rows: RowIndex, name: str, which: slice) -> tuple[Integers, Integers]:
    column = rows.column[f"{name}.start"]
    return rows.table[which, column], rows.table[which, column + 1]


def _refuse_others(index: Path) -> None:
    if os.path.lexists(index) and not (read_own(index) or b"").startswith(VERSION[:2]):
        raise DestinationError(
            f"{show_path(index)} is no index of DALI's; move it away, or name another folder"
        )
