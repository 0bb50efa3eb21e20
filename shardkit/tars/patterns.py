"""Tars named by a pattern or by a list: ``a-{000000..000002}.tar``, ``train-*.tar``."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from shardkit.errors import UsageError
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MAX_NAMES = 100_000
"""Names that one pattern may stand for."""

_RANGE = re.compile(r"\{(-?\d{1,30})\.\.(-?\d{1,30})(?:\.\.-?(\d{1,30}))?\}")


def is_pattern(path: Path) -> bool:
    """Whether a path stands for other names: it has braces or wildcards, and is none itself."""
    return any(sign in path.name for sign in "{*?[") and not os.path.lexists(path)


def expand(path: Path) -> tuple[Path, list[str]]:
    """The folder of a pattern and the names in it that the pattern stands for, sorted.

    Raises:
        UsageError: no file has such a name, or not every one; or the folder is a pattern, too.
    """
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(
            f"{show_path(path)}: there is no folder {show_path(folder)}; patterns may stand in the"
            " names of tars, not of folders"
        )
    names: list[str] = []
    for name in _braces(path):
        if os.path.lexists(folder / name):
            names.append(name)
            continue
        fitting = _fitting(folder, name)
        if not fitting:
            raise UsageError(f"{show_path(folder / name)} is not there; {show_path(path)} names it")
        names += fitting
    return folder, _once(names, show_path(path))


def in_one_folder(paths: Sequence[Path]) -> tuple[Path, list[str]]:
    """The folder that all of these files or patterns are in, and the names in it, sorted.

    Raises:
        UsageError: there are none, or they lie in several folders; a file that is not there.
    """
    names: list[str] = []
    for path in paths:
        if is_pattern(path):
            names += expand(path)[1]
        elif path.is_file():
            names.append(path.name)
        else:
            raise UsageError(f"{show_path(path)} is no file; a list may hold tars alone")
    folders = {path.parent.absolute() for path in paths}
    if len(folders) != 1:
        listed = ", ".join(sorted(map(show_path, folders))[:3]) or "nothing"
        raise UsageError(f"a list of tars of one folder is expected, got {listed}; link them there")
    return folders.pop(), _once(names, "the list")


def _braces(path: Path) -> list[str]:
    """The names that braces stand for."""
    from braceexpand import braceexpand

    # A range is made whole before its first name is
    is_long = any(_count(*found) > MAX_NAMES for found in _RANGE.findall(path.name))
    try:
        names = [] if is_long else list(islice(braceexpand(path.name), MAX_NAMES + 1))
    except ValueError as error:
        raise UsageError(f"{show_path(path)}: its braces do not match") from error
    if is_long or len(names) > MAX_NAMES:
        raise UsageError(f"{show_path(path)} stands for over {MAX_NAMES:,} names")
    return names


def _count(first: str, last: str, step: str) -> int:
    return abs(int(last) - int(first)) // (int(step or 1) or 1) + 1


def _fitting(folder: Path, pattern: str) -> list[str]:
    """Names with wildcards in their place; hidden ones only if the pattern begins so."""
    if not any(sign in pattern for sign in "*?["):
        return []
    with os_errors(f"listing {show_path(folder)}"):
        names = os.listdir(folder)
    return [n for n in fnmatch.filter(names, pattern) if pattern[0] == "." or n[0] != "."]


def _once(names: list[str], what: str) -> list[str]:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{what} names {show_path(twice)} twice")
    return sorted(names)
