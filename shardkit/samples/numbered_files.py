"""Files of which one name tells how many there are: ``train-00000-of-00003.parquet``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ONE_OF = re.compile(r"(?P<stem>.+?)(?P<dash>[-_.])(?P<number>[0-9]{2,6})-of-(?P<total>[0-9]{2,6})")


def missing_files(paths: Iterable[str]) -> list[str]:
    """Paths of files that others say are there, and are not, in order; they count from 0, or all of
    them from 1. What stands behind the total, which may be a hash, is that of a file that is
    there."""
    sets: dict[tuple[str, str], dict[int, re.Match[str]]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        if found := _ONE_OF.match(name):
            number, total = int(found["number"]), found["total"]
            sets.setdefault((folder + slash + found["stem"], total), {})[number] = found
    return [name for (stem, _), held in sorted(sets.items()) for name in _missing(stem, held)]


def twice_counted(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two files of one name that say that there are different numbers of them, as where a dataset
    was written anew over an old one; None if there are none."""
    first: dict[str, tuple[str, str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        if found := _ONE_OF.match(name):
            total, other = first.setdefault(folder + slash + found["stem"], (found["total"], path))
            if total != found["total"]:
                return other, path
    return None


def _missing(stem: str, held: dict[int, re.Match[str]]) -> list[str]:
    one = next(iter(held.values()))
    total, width = int(one["total"]), len(one["number"])
    endings = {found.string[found.end() :] for found in held.values()}
    ending = endings.pop() if len(endings) == 1 else "*"
    first = 1 if total in held and 0 not in held else 0
    wanted = [number for number in range(first, first + total) if number not in held]
    return [f"{stem}{one['dash']}{number:0{width}}-of-{one['total']}{ending}" for number in wanted]
