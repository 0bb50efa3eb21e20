"""Splits of files, by their names as the Hugging Face hub has them:
``data/train-00000-of-00002.parquet``, or ``plain_text/train/0000.parquet``.

What only the card (``README.md``) of a dataset tells is left to ``datasets.load_dataset``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.memory.whole_files import read_file
from shardkit.samples.split_names import splits_by_words
from shardkit.system.paths import first_few, show_path

MAX_BYTES = 64 << 20
"""The most bytes of a card, or of a file that describes others."""

_SHARD = re.compile(r"([^/]+?)-[0-9]{5}-of-[0-9]{5}[-.][^/]*")
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
    splits = [_split_of(path) for path in paths]
    folders: dict[str, dict[str, str]] = {}
    for path, split in zip(paths, splits, strict=True):
        if split is not None:
            others = [name for name in path.split("/")[:-1] if not splits_by_words([name])]
            held = folders.setdefault(split, {})
            held.setdefault("/".join(others).removeprefix("data"), path)
            if len(held) > 1:
                raise CorpusError(
                    f"{show_path(source)} holds {first_few([*held.values()])}, which are of one"
                    " split in configurations, datasets of their own: pack the folder of each"
                    " separately, or see docs/recipes/tables.md"
                )
    named = next((p for p, s in zip(paths, splits, strict=True) if s not in (None, "train")), None)
    for i, path in enumerate(paths if named else ()):
        splits[i] = splits[i] or _before_number(path)
        if splits[i] is None:
            raise CorpusError(
                f"{show_path(str(named))} in {show_path(source)} is of a split by its name, and"
                f" {show_path(path)} names none; call the files of each split train-*, test-* and"
                " so on, or put them into folders of those names, or pack them separately"
            )
    return [split or "train" for split in splits]


def _split_of(path: str) -> str | None:
    """Return the split among the words of a file's name, or else of the innermost folder that is
    called after one: ``partial-train`` is a part of one that the hub converted."""
    *folders, name = path.split("/")
    if words := splits_by_words([name]):
        numbered = _before_number(path) or ""
        return numbered if numbered.startswith(f"{words[0]}_") else words[0]
    return next((words[0] for own in folders[::-1] if (words := splits_by_words([own]))), None)


def _before_number(path: str) -> str | None:
    shard = _SHARD.fullmatch(path.rpartition("/")[2])
    return shard[1] if shard and is_field_name(shard[1]) else None


def check_card(source: Path, splits: Collection[str]) -> bool:
    """Return True if the card of ``source`` names classes.

    Raises:
        CorpusError: it has several configurations, or not the splits that files are of.
    """
    path = source / "README.md"
    text = read_file(path, MAX_BYTES).decode("utf-8", "replace") if path.is_file() else ""
    found = re.match(r"\ufeff?---[ \r]*\n(.*?\n)---\s", f"{text}\n", re.DOTALL)
    head = "" if found is None else found[1]
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
    return "class_label" in head
