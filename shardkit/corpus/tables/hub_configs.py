"""Configurations of a dataset of the Hugging Face hub: several datasets in one folder, told by its
card (``configs`` in the head of ``README.md``) or by sub-folders (``en/train-*``, ``de/train-*``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shardkit.corpus.tables.table_splits import named_split
from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.system.paths import first_few, show_path

_NO_CONFIGS = frozenset({"", "data"})
"""Folders that are no configuration: the top, and where the hub's own tools put what has one."""


@dataclass(frozen=True)
class Config:
    """One of a card. ``patterns``: (its split, or ``""``; which files, as a shell has it)."""

    name: str
    patterns: tuple[tuple[str, str], ...]

    def split_of(self, path: str) -> str | None:
        """The split that it says a file is of, ``""`` if it does not say; None: not among its."""
        return next((split for split, own in self.patterns if _matches(path, own)), None)


def _matches(path: str, pattern: str) -> bool:
    pattern = pattern.removeprefix("./")
    return fnmatchcase(path, pattern) or fnmatchcase(path, pattern.replace("**/", ""))


def configs_of_card(head: Mapping[str, Any]) -> list[Config]:
    """Those that the head of a card, as YAML gives it, tells of; what is not built as the hub has
    it counts as nothing."""
    held = head.get("configs")
    entries = [entry for entry in held if isinstance(entry, dict)] if isinstance(held, list) else []
    return [
        Config(str(entry.get("config_name", "default")), tuple(_patterns(entry)))
        for entry in entries
    ]


def _patterns(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    base = str(entry.get("data_dir") or "").strip("/")
    files = entry.get("data_files") or (f"{base}/**" if base else "**")
    if isinstance(files, dict):
        files = [{"split": split, "path": path} for split, path in files.items()]
    found: list[tuple[str, str]] = []
    for one in files if isinstance(files, list) else [files]:
        split, paths = ("", one)
        if isinstance(one, dict):
            split, paths = str(one.get("split", "")), one.get("path", "**")
        found += [(split, str(path)) for path in (paths if isinstance(paths, list) else [paths])]
    return found


def splits_of_card(paths: Sequence[str], configs: Sequence[Config]) -> list[str] | None:
    """The split of each file by the one configuration that has all of them; None if there is none,
    or it names no splits."""
    for config in configs:
        splits = [config.split_of(path) for path in paths]
        if all(split is not None and is_field_name(split) for split in splits):
            return [str(split) for split in splits]
    return None


def refuse_several_configs(paths: Sequence[str], configs: Sequence[Config], source: Path) -> None:
    """Raise CorpusError if files are of several configurations, unless one of the card has all of
    them: others are parts of it."""
    if any(all(each.split_of(path) is not None for path in paths) for each in configs):
        return
    by_card = {
        each.name: next(path for path in paths if each.split_of(path) is not None)
        for each in configs
        if any(each.split_of(path) is not None for path in paths)
    }
    found = by_card if len(by_card) > 1 else _by_folder(paths)
    if len(found) > 1:
        listed = first_few([f"{name or 'the top'} ({path})" for name, path in found.items()])
        raise CorpusError(
            f"{show_path(source)} holds {len(found):,} configurations, which are datasets of their"
            f" own, by {'its README.md' if found is by_card else 'its folders'}: {listed};"
            " pack the folder of each apart"
        )


def _by_folder(paths: Sequence[str]) -> dict[str, str]:
    """Folder -> the first file of each configuration that has a split that another one has, too;
    files of which no name tells a split may be parts of one dataset."""
    splits: dict[str, set[str]] = {}
    first: dict[str, str] = {}
    for path in paths:
        split, name = named_split(path), config_folder(path)
        if split is not None:
            splits.setdefault(name, set()).add(split)
            first.setdefault(name, path)
    return {
        name: path
        for name, path in first.items()
        if any(splits[name] & own for other, own in splits.items() if other != name)
    }


def config_folder(path: str) -> str:
    """The folders of a file but for those of splits: ``en`` of ``en/train/0.parquet``."""
    folders = path.split("/")[:-1]
    kept = [name for name in folders if named_split(f"{name}/x") is None]
    joined = "/".join(kept)
    return "" if joined in _NO_CONFIGS else joined
