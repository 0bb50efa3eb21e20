"""Which split each of many files of tables belongs to, by their paths alone.

As on the Hugging Face hub: ``data/train-00000-of-00002.parquet``, ``plain_text/train/0000.parquet``
or ``train.parquet``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.system.paths import show_path

_WORDS = "|".join(sorted(SPLIT_NAMES, key=len, reverse=True))
_FILE = re.compile(rf"({_WORDS})[-_.]")
_FOLDER = re.compile(rf"(?:partial-)?({_WORDS})")
"""``partial-train`` is what the hub converts a part of a split to."""

_SHARD = re.compile(r"(.+?)-[0-9]{5}-of-[0-9]{5}[-.]")
"""As the hub names files of a split, whatever the split is called."""


def splits_of_paths(paths: Sequence[str], source: Path) -> list[str]:
    """The split of each file of ``source``; ``train`` for all if no path names one.

    What comes before ``-00000-of-00002`` is a split of any name beside others that are called as
    splits usually are (``unsupervised`` beside ``train`` and ``test``).

    Raises:
        CorpusError: some paths name a split other than ``train``, and some name none.
    """
    known = [named_split(path) for path in paths]
    found = {split for split in known if split is not None}
    if not found - {"train"}:
        return ["train"] * len(paths)
    splits = [split or _shard_split(path) for split, path in zip(known, paths, strict=True)]
    if None in splits:
        raise _unclear(paths, splits, source)
    return [split for split in splits if split is not None]


def named_split(path: str) -> str | None:
    """The split that a file is called after, or the innermost of its folders that is."""
    *folders, name = path.split("/")
    if match := _FILE.match(name):
        return match[1]
    found = [match[1] for folder in reversed(folders) if (match := _FOLDER.fullmatch(folder))]
    return found[0] if found else None


def _shard_split(path: str) -> str | None:
    match = _SHARD.match(path.rpartition("/")[2])
    return match[1] if match and is_field_name(match[1]) else None


def _unclear(paths: Sequence[str], splits: Sequence[str | None], source: Path) -> CorpusError:
    pairs = [*zip(paths, splits, strict=True)]
    named, split = next(pair for pair in pairs if pair[1] not in (None, "train"))
    other = next(path for path, split in pairs if split is None)
    return CorpusError(
        f"{show_path(named)} in {show_path(source)} is of split {split!r} by its name, and"
        f" {show_path(other)} names no split; call the files of each split train-*, test-* and so"
        " on, or put them into folders of those names, or pack them apart"
    )
