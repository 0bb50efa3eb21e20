"""Files of which one name tells how many there are: ``train-00000-of-00003.parquet``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardkit.samples.sample import SPLIT_NAMES
from shardkit.samples.split_names import LONG_NAMES

_ONE_OF = re.compile(r"(?P<stem>.+?)(?P<dash>[-_.])(?P<number>[0-9]{2,6})-of-(?P<total>[0-9]{2,6})")

_SPLITS = SPLIT_NAMES | LONG_NAMES.keys()

_Held = dict[int, re.Match[str]]
"""Number -> the file that has it."""


def missing_files(paths: Iterable[str]) -> list[str]:
    """Paths of files that others say are there, and are not, in order; they count from 0, or all of
    them from 1. What stands behind the total, which may be a hash, is that of a file that is
    there.

    A set lies in one folder, or is spread over folders side by side that share no number; in a
    path of such a one that is missing, ``*`` stands for its folder.
    """
    sets: dict[tuple[str, str], dict[str, _Held]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        if found := _ONE_OF.match(name):
            folders = sets.setdefault((found["stem"], found["total"]), {})
            folders.setdefault(folder + slash, {})[int(found["number"])] = found
    return sorted(
        name
        for (stem, _), folders in sets.items()
        for folder, held in _spread(folders).items()
        for name in _missing(folder + stem, held)
    )


def _spread(folders: dict[str, _Held]) -> dict[str, _Held]:
    """The same, with folders side by side as one where they hold other numbers each, and none of
    them is called as a split: the first files of two sets are no one set."""
    beside: dict[str, list[str]] = {}
    for folder in folders:
        parent, _, name = folder.rstrip("/").rpartition("/")
        if folder and _SPLITS.isdisjoint(re.findall("[a-z]+", name.lower())):
            beside.setdefault(parent + "/" * bool(parent), []).append(folder)
    made = dict(folders)
    for parent, own in beside.items():
        joined = {number: found for folder in own for number, found in folders[folder].items()}
        if len(own) > 1 and len(joined) == sum(len(folders[folder]) for folder in own):
            for folder in own:
                del made[folder]
            made[f"{parent}*/"] = joined
    return made


def twice_counted(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return two files of one name that tell of different numbers of them, or that are the same one
    of them, as where a dataset was written again over an old one; None if there are none. One
    without numbers, ``train.parquet``, is a set of its own."""
    first: dict[str, tuple[str, str]] = {}
    numbered: dict[tuple[str, int], str] = {}
    there = dict.fromkeys(paths)
    for path in there:
        folder, slash, name = path.rpartition("/")
        if found := _ONE_OF.match(name):
            stem = folder + slash + found["stem"]
            if (plain := stem + name[found.end() :]) in there:
                return plain, path
            total, other = first.setdefault(stem, (found["total"], path))
            if total != found["total"]:
                return other, path
            if (other := numbered.setdefault((stem, int(found["number"])), path)) != path:
                return other, path
    return None


def _missing(stem: str, held: _Held) -> list[str]:
    one = next(iter(held.values()))
    total, width = int(one["total"]), len(one["number"])
    endings = {found.string[found.end() :] for found in held.values()}
    ending = endings.pop() if len(endings) == 1 else "*"
    first = 1 if total in held and 0 not in held else 0
    wanted = [number for number in range(first, first + total) if number not in held]
    return [f"{stem}{one['dash']}{number:0{width}}-of-{one['total']}{ending}" for number in wanted]
