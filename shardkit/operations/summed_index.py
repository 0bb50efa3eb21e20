"""The index of a split that has checksums, for what compares samples by them."""

from __future__ import annotations

from shardkit.errors import UsageError
from shardkit.index.rows import RowIndex
from shardkit.shards.locate import Located


def summed_index(place: Located, name: str) -> RowIndex:
    """Raises UsageError if its samples have no checksums, as those in tars of others have not."""
    split = place.info.splits[name]
    if not split.has_checksums:
        raise UsageError(
            f"{place.shown} was not packed by shardkit, and has no checksums to compare;"
            " `shardkit convert` makes a dataset that has"
        )
    return RowIndex(place.storage, place.info, split)
