"""Refusing a part of a dataset that looks whole, and saying what looks like one split twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.samples.numbered_files import missing_files, twice_counted
from shardkit.system.paths import first_few, show_path

_ONE_SPLIT = ("val", "valid", "validation")
"""Names of one and the same split, by which others call it."""


def refuse_missing(paths: Iterable[str], source: Path) -> None:
    """Raise CorpusError if files below ``source`` are called as if there were more of them, or as
    parts of two sets of one name, of which one may repeat the other."""
    paths = [*paths]
    if twice := twice_counted(paths):
        one, other = map(show_path, twice)
        raise CorpusError(
            f"{show_path(source)} holds {one} beside {other}, which are not of one set: one of"
            " the two may be an old one; move it away"
        )
    if missing := missing_files(paths):
        raise CorpusError(
            f"{_lacking(source, missing)} that the names of the others tell of:"
            f" {first_few(missing)}; fetch {_them(missing)}, or, if the rest alone is meant, give"
            " it names without '-of-', or pack a folder of links to it that have such names"
        )


def refuse_absent(paths: Sequence[str], source: Path) -> None:
    """Raise CorpusError if there are files that the card of a dataset names, and that are not
    there."""
    if paths:
        raise CorpusError(
            f"{_lacking(source, paths)} that README.md names: {first_few(paths)}; fetch"
            f" {_them(paths)}, or, if the rest alone is meant, leave {_them(paths)} out there"
        )


def _lacking(source: Path, missing: Sequence[str]) -> str:
    return f"{show_path(source)} lacks {count_files(missing)}"


def count_files(names: Sequence[str]) -> str:
    """``1 file``, ``2 files``: how many there are."""
    return f"{len(names):,} file{'s' * (len(names) != 1)}"


def _them(missing: Sequence[str]) -> str:
    return "it" if len(missing) == 1 else "them"


def notes_on_splits(splits: Sequence[str]) -> list[str]:
    """A line if two splits are called as one and the same is by different people."""
    twins = [split for split in _ONE_SPLIT if split in splits]
    if len(twins) < 2:
        return []
    return [f"{' and '.join(map(repr, twins))} are two splits; rename one if they are one"]
