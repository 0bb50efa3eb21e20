"""Splits of files as the Hugging Face hub names them: ``data/train-00000-of-00002.parquet``, or
``plain_text/train/0000.parquet``.

What only the card (``README.md``) of a dataset tells is left to ``datasets.load_dataset``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.memory.whole_files import read_file
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.system.paths import first_few, show_path

MAX_BYTES = 64 << 20
"""The most bytes of a card, or of a file that describes others."""

_WORDS = "|".join(sorted(SPLIT_NAMES, key=len, reverse=True))
_NAMED = re.compile(rf"(?:.*/)?({_WORDS})[-_.][^/]*|(?:.*/)?(?:partial-)?({_WORDS})/.*")
"""A file that is called after a split, or is in a folder that is, the innermost; ``partial-train``
is what the hub converts a part of a split to."""

_SHARD = re.compile(r"(?:.*/)?([^/]+?)-[0-9]{5}-of-[0-9]{5}[-.][^/]*")
"""The hub's names for files of a split, whatever the split's name."""


def splits_of_paths(paths: Sequence[str], source: Path) -> list[str]:
    """Return the split of each file of ``source``; ``train`` for all if no path names one.

    What comes before ``-00000-of-00002`` is a split of any name next to others that are called as
    splits usually are: ``unsupervised`` next to ``train`` and ``test``, ``train_sft`` next to
    ``train_gen``.

    Raises:
        CorpusError: some paths name a split other than ``train``, and some name none; or a split
            is there twice, in folders that are datasets of their own.
    """
    splits: list[str | None] = []
    folders: dict[str, dict[str, str]] = {}
    for path in paths:
        split, shard = _split_of(path), _SHARD.fullmatch(path)
        if split and shard and shard[1].startswith(f"{split}_") and is_field_name(shard[1]):
            split = shard[1]
        splits.append(split)
        if split is not None:
            names = [name for name in path.split("/")[:-1] if _split_of(f"{name}/x") is None]
            held = folders.setdefault(split, {})
            held.setdefault("/".join(names).removeprefix("data"), path)
            if len(held) > 1:
                raise CorpusError(
                    f"{show_path(source)} holds {first_few([*held.values()])}, which are of one"
                    " split in configurations, datasets of their own: pack the folder of each"
                    " separately, or see docs/recipes/tables.md"
                )
    named = next((p for p, s in zip(paths, splits, strict=True) if s not in (None, "train")), None)
    for i, path in enumerate(paths if named else ()):
        shard = _SHARD.fullmatch(path)
        splits[i] = splits[i] or (shard[1] if shard and is_field_name(shard[1]) else None)
        if splits[i] is None:
            raise CorpusError(
                f"{show_path(str(named))} in {show_path(source)} is of a split by its name, and"
                f" {show_path(path)} names none; call the files of each split train-*, test-* and"
                " so on, or put them into folders of those names, or pack them separately"
            )
    return [split or "train" for split in splits]


def _split_of(path: str) -> str | None:
    match = _NAMED.fullmatch(path)
    return None if match is None else match[1] or match[2]


def card_head(source: Path) -> str:
    """Return the head of a dataset's card, YAML between lines of ``---``."""
    path = source / "README.md"
    text = read_file(path, MAX_BYTES).decode("utf-8", "replace") if path.is_file() else ""
    head = re.match(r"\ufeff?---[ \r]*\n(.*?\n)---\s", f"{text}\n", re.DOTALL)
    return "" if head is None else head[1]


def notes_on_card(source: Path, splits: Collection[str]) -> list[str]:
    """Return what the card of ``source`` says of other splits than names of files tell.

    Raises:
        CorpusError: it has several configurations, or none of the splits that files are of.
    """
    head = card_head(source)
    configs = {*re.findall(r"config_name: *['\"]?([^'\"\n]+)", head)}
    told = {*re.findall(r"^ *(?:- +)?split: *['\"]?([\w.]+)", head, re.MULTILINE)}
    what = f"{len(configs)} configurations" if len(configs) > 1 else ""
    if told and not told.issuperset(splits):
        what = f"splits {', '.join(sorted(told))}, and files are of {', '.join(splits)} by name"
    if what:
        raise CorpusError(
            f"README.md of {show_path(source)} has {what}; load it with datasets, as"
            " docs/recipes/tables.md does, or pack the folder of one configuration alone"
        )
    lacking = ", ".join(sorted(told.difference(splits)))
    return [f"README.md has splits, and no file is called so: {lacking}"] if lacking else []
