"""What ``shardkit tune --read`` does with a dataset, also as Python to paste."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkit import images
from shardkit.batches.source import Source, check_source
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.bench.options import Read, refuse_without_pictures
from shardkit.readers import open as open_dataset
from shardkit.samples.encoding import TOKENS
from shardkit.system.paths import show_path


@dataclass(frozen=True)
class Reading:
    """Work to tune for.

    Attributes:
        options: of a Loader. line: of Python, that opens the source as ``ds``. given: the options
            as Python.
    """

    source: Source
    options: dict[str, Any]
    line: str
    given: str = ""


def reading(
    path: str | Path,
    read: Read | None,
    split: str | None = None,
    size: int = 224,
    seq_len: int = 2048,
) -> Reading:
    """Open a dataset. None: tokens as sequences, pictures as crops for training, else as it is.

    Raises:
        UsageError: there is nothing to read in that way. Else as :func:`shardkit.open`.
    """
    of_split = "" if split is None else f", {json.dumps(split)}"
    if read != "tokens":
        dataset = open_dataset(path, split)
        read = read or usual(dataset.fields)
    quoted = json.dumps(str(path))
    if read == "tokens":
        from shardkit.sequences.dataset import TokenDataset

        line = f"ds = shardkit.TokenDataset({quoted}{of_split}, seq_len={seq_len})"
        return Reading(check_source(TokenDataset(path, split, seq_len=seq_len)), {}, line)
    refuse_without_pictures(read, show_path(path), dataset.fields)
    line = f"ds = shardkit.open({quoted}{of_split})"
    if read == "raw":
        return Reading(dataset, {}, line)
    given = f"transform=shardkit.images.train({size}), "
    return Reading(dataset, {"transform": images.train(size)}, line, given)


def usual(fields: list[str]) -> Read:
    """Return what such a dataset is most often read for."""
    if TOKENS in fields:
        return "tokens"
    return "raw" if IMAGE_FIELDS.isdisjoint(fields) else "train"
