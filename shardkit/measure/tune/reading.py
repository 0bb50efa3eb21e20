"""What ``shardkit tune --read`` does with a dataset; and its loader as Python, to paste."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from shardkit import images
from shardkit.batches.source import Source, check_source
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.bench.work import refuse_without_pictures
from shardkit.readers import open as open_dataset
from shardkit.samples.encoding import TOKENS
from shardkit.system.paths import show_path

Read = Literal["raw", "train", "tokens"]

_MAKERS = {images.Train: "train", images.Eval: "eval"}


@dataclass(frozen=True)
class Reading:
    """What to tune for.

    Attributes:
        options: of a Loader. line: of Python, that opens the source as ``ds``.
    """

    source: Source
    options: dict[str, Any]
    line: str


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
    options = {"transform": images.train(size)} if read == "train" else {}
    return Reading(dataset, options, f"ds = shardkit.open({quoted}{of_split})")


def usual(fields: list[str]) -> Read:
    """What such a dataset is most often read for."""
    if TOKENS in fields:
        return "tokens"
    return "raw" if IMAGE_FIELDS.isdisjoint(fields) else "train"


def python_line(batch_size: int, options: dict[str, Any]) -> str:
    """``loader = shardkit.Loader(ds, 64, ...)`` with options that were given."""
    given = [f"{name}={in_python(value)}" for name, value in options.items()]
    return f"loader = shardkit.Loader({', '.join(['ds', str(batch_size), *given])})"


def in_python(value: Any) -> str:
    """What a person would write; the name alone of what has one."""
    if type(value) in _MAKERS:
        return f"shardkit.images.{_MAKERS[type(value)]}({_arguments(value)})"
    if isinstance(value, str):
        return json.dumps(value)
    if callable(value):
        return _name(value)
    return repr(value)


def _name(value: Callable[..., Any]) -> str:
    name = getattr(value, "__name__", "")
    return name if name.isidentifier() else "transform"


def _arguments(transform: Any) -> str:
    """The size, and whatever is not as it is by default."""
    changed = [
        f"{each.name}={in_python(value)}"
        for each in fields(transform)
        if each.name != "size"
        and (value := getattr(transform, each.name)) != each.default
        and each.default is not MISSING
    ]
    return ", ".join([str(transform.size), *changed])
