"""Configurations of a dataset of the Hugging Face hub: several datasets in one folder, told by its
card (``configs`` in the head of ``README.md``) or by sub-folders (``en/train-*``, ``de/train-*``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.tables.card_patterns import is_one_file, matches
from shardkit.inputs.tables.table_splits import named_split
from shardkit.inputs.whole_sets import count_files
from shardkit.system.paths import first_few, show_path

_NO_CONFIGS = frozenset({"", "data"})
"""Folders that are no configuration: the top, and where the hub's own tools put what has one."""

_DEFAULT_SPLIT = "train"
"""What ``datasets`` takes patterns for that a card gives no split."""


@dataclass(frozen=True)
class Config:
    """One of a card.

    Attributes:
        patterns: (split, which files); the split is ``""`` where the card gives no patterns, so
            that names of files tell the splits.
        is_default: whether ``datasets`` takes it where none is asked for.
    """

    name: str
    patterns: tuple[tuple[str, str], ...]
    is_default: bool = False

    def splits_of(self, path: str) -> list[str]:
        """The splits that it gives a file to; none if the file is not among its."""
        return list(dict.fromkeys(split for split, own in self.patterns if matches(path, own)))


# --- what a card says ---------------------------------------------------------------------


def configs_of_card(head: Mapping[str, Any]) -> list[Config]:
    """Those that the head of a card, as YAML gives it, tells of; what is not built as the hub has
    it counts as nothing."""
    held = head.get("configs")
    entries = [entry for entry in held if isinstance(entry, dict)] if isinstance(held, list) else []
    return [_config(entry) for entry in entries]


def _config(entry: Mapping[str, Any]) -> Config:
    name = str(entry.get("config_name", "default"))
    base = _plain(str(entry.get("data_dir") or "")).strip("/")
    files = entry.get("data_files")
    found = _patterns(files) if files else [("", "**")]
    patterns = [(split, f"{base}/{_plain(own)}" if base else _plain(own)) for split, own in found]
    return Config(name, tuple(patterns), name == "default" or entry.get("default") is True)


def _patterns(files: Any) -> list[tuple[str, str]]:
    if isinstance(files, dict):
        files = [{"split": split, "path": path} for split, path in files.items()]
    found: list[tuple[str, str]] = []
    for one in files if isinstance(files, list) else [files]:
        split, paths = _DEFAULT_SPLIT, one
        if isinstance(one, dict):
            split, paths = str(one.get("split", _DEFAULT_SPLIT)), one.get("path", [])
        listed = paths if isinstance(paths, list) else [paths]
        found += [(split, str(path)) for path in listed if isinstance(path, str | int | float)]
    return found


def _plain(path: str) -> str:
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    return path


# --- which of them a folder is ------------------------------------------------------------


def config_of(paths: Sequence[str], configs: Sequence[Config], source: Path) -> Config | None:
    """The configuration that has each file which any of them has; None if no file is of one.

    Raises:
        CorpusError: there are several, and none has the files of all; or several have them, say
            different splits, and none is the default.
    """
    told = {each: _told(each, paths) for each in configs}
    told = {each: own for each, own in told.items() if own}
    every = {path for own in told.values() for path in own}
    whole = [each for each, own in told.items() if len(own) == len(every)]
    if not told:
        return None
    whole.sort(key=lambda each: not each.is_default)
    if not whole or not (
        whole[0].is_default or all(told[each] == told[whole[0]] for each in whole)
    ):
        first = {each.name: next(iter(told[each])) for each in whole or told}
        raise _several(source, "README.md", first)
    return whole[0]


def _told(config: Config, paths: Sequence[str]) -> dict[str, list[str]]:
    found = {path: config.splits_of(path) for path in paths}
    return {path: splits for path, splits in found.items() if splits}


def refuse_configs_in_folders(paths: Sequence[str], source: Path) -> None:
    """Raise CorpusError if files are of several configurations by their folders."""
    found = _by_folder(paths)
    if len(found) > 1:
        raise _several(source, "folders", found)


def _several(source: Path, teller: str, found: Mapping[str, str]) -> CorpusError:
    listed = first_few([f"{name or 'the top'} ({path})" for name, path in found.items()])
    advice = "pack the folder of each apart"
    if teller != "folders":
        advice += ", or leave one of them alone in README.md"
    return CorpusError(
        f"{show_path(source)} holds {len(found):,} configurations, which are datasets of their own,"
        f" by its {teller}: {listed}; {advice}"
    )


def splits_of_config(config: Config, paths: Sequence[str], source: Path) -> dict[str, str]:
    """File -> the split that a configuration gives it to, of those that it names; ``""`` if it does
    not say.

    Raises:
        CorpusError: it gives one file to two splits, or a split has a name that none can have.
    """
    found: dict[str, str] = {}
    for path, splits in _told(config, paths).items():
        if len(splits) > 1:
            raise CorpusError(
                f"README.md of {show_path(source)} gives {show_path(path)} to {len(splits)} splits,"
                f" {' and '.join(map(repr, splits))}; change its patterns, so that each file is of"
                " one split"
            )
        if splits[0] and not is_field_name(splits[0]):
            raise CorpusError(
                f"README.md of {show_path(source)} has a split {splits[0]!r}, which cannot be the"
                " name of a folder; rename it there"
            )
        found[path] = splits[0]
    return found


def absent_files(config: Config, paths: Sequence[str], endings: frozenset[str]) -> list[str]:
    """Files of these endings that a configuration names one by one, and that are not there."""
    there = {*paths}
    named = dict.fromkeys(own for _, own in config.patterns if is_one_file(own))
    return [own for own in named if own.lower().endswith(tuple(endings)) and own not in there]


def notes_on_config(config: Config, told: Mapping[str, str], left_out: Sequence[str]) -> list[str]:
    """What there is to say of files and splits of a configuration, a line each."""
    notes = []
    if left_out:
        notes.append(f"left out: {count_files(left_out)} not in README.md: {first_few(left_out)}")
    empty = {split for split, _ in config.patterns} - {*told.values()}
    notes += [f"split {split!r} of README.md has no file here" for split in sorted(empty)]
    if {*told.values()} == {_DEFAULT_SPLIT}:
        others = [path for path in told if named_split(path) not in (None, _DEFAULT_SPLIT)]
        if others:
            are = "is" if len(others) == 1 else "are"
            notes.append(f"{first_few(others)} {are} of split train by README.md")
    return notes


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
