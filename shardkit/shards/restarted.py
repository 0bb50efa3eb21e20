"""Rows of datasets whose JPEGs may have been given restart markers."""

from __future__ import annotations

import numpy as np

from shardkit.images.restarting import FIELD
from shardkit.images.restarts import annotate, has_restarts
from shardkit.samples.sample import SampleBatch
from shardkit.shards.stored import ShardReader


def samples_to_undo(reader: ShardReader, start: int, stop: int) -> SampleBatch:
    """Return rows as if all shards had been given restart markers: a note in a JPEG of one that was
    not is the input's own. It gets one more, so that removing one of each gives the originals."""
    batch = reader.samples(start, stop)
    shards = [reader.index.split.shards[n] for n in reader.index.shard_of(np.arange(start, stop))]
    values = batch.columns.get(FIELD, [])
    for i, (shard, value) in enumerate(zip(shards, values, strict=False)):
        if not shard.has_restarts and value is not None and has_restarts(value):
            values[i] = annotate(value)
    return batch
