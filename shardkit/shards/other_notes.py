"""Samples of a dataset, some of whose shards were given restart markers and others were not."""

from __future__ import annotations

import numpy as np

from shardkit.images.restarting import FIELD
from shardkit.images.restarts import annotate, has_restarts
from shardkit.samples.sample import SampleBatch
from shardkit.shards.stored import ShardReader


def samples_to_undo(reader: ShardReader, start: int, stop: int) -> SampleBatch:
    """Return rows as if all shards had been given restart markers.

    A note in a JPEG of a shard that was given none is the input's own, which stays. Such a JPEG
    gets one more, as ``formats.md`` asks for, so that removing one from each gives the originals.
    """
    batch = reader.samples(start, stop)
    split, values = reader.index.split, batch.columns.get(FIELD)
    if values is None or all(shard.has_restarts for shard in split.shards):
        return batch
    shards = reader.index.shard_of(np.arange(start, stop)).tolist()
    for i, (shard, value) in enumerate(zip(shards, values, strict=True)):
        if value is not None and not split.shards[shard].has_restarts and has_restarts(value):
            values[i] = annotate(value)
    return batch
