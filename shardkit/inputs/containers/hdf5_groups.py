"""Groups of an HDF5 file that are samples, or parts, and no columns: ``000/image``, ``001/image``;
or arrays that are, ``images/000``, ``images/001``.

As columns they would lie side by side, all in one sample, so such a file is refused
(:mod:`shardkit.inputs.containers.hdf5_recipes` says what to do). Pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardkit.inputs.folders import split_of

MANY_GROUPS = 8
"""Groups of one inner structure that are samples whatever they are called: fewer may be sensors or
cameras, ``left/image`` beside ``right/image``."""

Shapes = Mapping[str, tuple[int, ...]]
"""Path of a dataset -> its shape; ``()`` for a single value."""

How = Literal["stack", "join", "either", "files"]
"""How groups become rows: each is one, each holds some, it may be either, or their shapes differ so
that neither goes."""


@dataclass(frozen=True)
class SampleGroups:
    """Sibling groups that are no columns.

    Attributes:
        base: the group that they lie in; ``""`` for the file. names: their names, in order. fields:
            paths within each that all of them have. others: those that only some have.
        is_turned: whether the file has them the other way about, ``image/000``; the field ``""``
            is then ``base`` itself.
    """

    base: str
    names: list[str]
    fields: list[str]
    others: list[str]
    how: How
    is_turned: bool = False

    def path(self, name: str, field: str) -> str:
        """Where in the file an array of a group lies."""
        inner = [field, name] if self.is_turned else [name, field]
        return "/".join(part for part in [self.base, *inner] if part)


def all_sample_groups(shapes: Shapes) -> list[SampleGroups]:
    """Those in each group, as ``train`` and ``test``, that holds some."""
    found: list[SampleGroups] = []
    left = dict(shapes)
    while (groups := find_sample_groups(left)) is not None:
        found.append(groups)
        fields = [*groups.fields, *groups.others]
        for path in [groups.path(name, field) for name in groups.names for field in fields]:
            left.pop(path, None)
    return found


def find_sample_groups(shapes: Shapes) -> SampleGroups | None:
    """The groups of which each is a sample, or a part; None where groups are but names of columns.

    They are samples if they are called in a series (by numbers, or one word and a number), or if
    there are many of one structure. They are columns all the same where an array outside of them
    has as many rows as each array in them: ``cam0/image``, ``cam1/image`` and ``label``.

    Arrays called by numbers alone are samples, too.
    """
    found = _find(shapes)
    if found is not None:
        return found
    turned = {path: shape for path, shape in shapes.items() if _is_number(path)}
    found = _find({_turned(path): shape for path, shape in turned.items()})
    outside = [shape for path, shape in shapes.items() if path not in turned]
    if found is None or _are_columns([*turned.values()], outside):
        return None
    return _unturned(found)


def _is_number(path: str) -> bool:
    return path.rpartition("/")[2].isdecimal()


_ITSELF = "."
"""Stands for the field of arrays that lie in the file itself; no name within HDF5 is so."""


def _turned(path: str) -> str:
    """``a/images/000`` -> ``a/000/images``."""
    *above, name = path.split("/")
    return "/".join([*above[:-1], name, above[-1] if above else _ITSELF])


def _unturned(found: SampleGroups) -> SampleGroups:
    fields = ["" if field == _ITSELF else field for field in found.fields]
    return replace(found, fields=fields, is_turned=True)


def _find(shapes: Shapes) -> SampleGroups | None:
    for base in _parents(shapes):
        children = _children(shapes, base)
        for names in (*_series(children), *_many(children)):
            within = [child for name in names for child in children[name].values()]
            if not _are_columns(within, _outside(shapes, base, names)):
                return _described(base, names, children)
    return None


def _parents(shapes: Shapes) -> list[str]:
    """All groups, the file first, and outer ones before those in them."""
    found = {""}
    for path in shapes:
        parts = path.split("/")[:-1]
        found |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
    return sorted(found)


def _children(shapes: Shapes, base: str) -> dict[str, dict[str, tuple[int, ...]]]:
    """Groups within ``base``: name -> path within it -> shape."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    prefix = f"{base}/" if base else ""
    for path, shape in shapes.items():
        if path.startswith(prefix):
            name, _, inner = path[len(prefix) :].partition("/")
            if inner:
                found.setdefault(name, {})[inner] = shape
    return found


def _series(children: Mapping[str, Mapping[str, object]]) -> list[list[str]]:
    """Names that differ in their number alone, of groups of which most have a dataset in common."""
    by_pattern: dict[str, list[str]] = {}
    for name in children:
        if re.search("[0-9]", name) and split_of(name) is None:
            by_pattern.setdefault(re.sub("[0-9]+", "0", name), []).append(name)
    return [names for names in by_pattern.values() if _are_alike(children, names)]


def _are_alike(children: Mapping[str, Mapping[str, object]], names: Sequence[str]) -> bool:
    counts = Counter(inner for name in names for inner in children[name])
    return len(names) > 1 and 2 * max(counts.values()) > len(names)


def _many(children: Mapping[str, Mapping[str, object]]) -> list[list[str]]:
    """Groups that have the same datasets, where there are many."""
    by_inner: dict[frozenset[str], list[str]] = {}
    for name, held in children.items():
        by_inner.setdefault(frozenset(held), []).append(name)
    return [names for names in by_inner.values() if len(names) >= MANY_GROUPS]


def _outside(shapes: Shapes, base: str, names: Sequence[str]) -> list[tuple[int, ...]]:
    prefix = f"{base}/" if base else ""
    own = tuple(f"{prefix}{name}/" for name in names)
    return [shape for path, shape in shapes.items() if not path.startswith(own)]


def _are_columns(within: Sequence[tuple[int, ...]], outside: Sequence[tuple[int, ...]]) -> bool:
    lengths = {shape[:1] for shape in within}
    return len(lengths) == 1 and lengths <= {shape[:1] for shape in outside} - {()}


def _described(
    base: str, names: Sequence[str], children: Mapping[str, Mapping[str, tuple[int, ...]]]
) -> SampleGroups:
    ordered = sorted(names, key=_in_order)
    inner = list(dict.fromkeys(path for name in ordered for path in children[name]))
    fields = [path for path in inner if all(path in children[name] for name in ordered)]
    others = [path for path in inner if path not in fields]
    held = [{path: children[name][path] for path in fields} for name in ordered]
    return SampleGroups(base, ordered, fields, others, _how(held) if fields else "files")


def _in_order(name: str) -> list[tuple[int, str]]:
    """By numbers as numbers: ``demo_2`` comes before ``demo_10``."""
    parts = re.split("([0-9]+)", name)
    return [(int(part), "") if i % 2 else (0, part) for i, part in enumerate(parts)]


def _how(groups: Sequence[Mapping[str, tuple[int, ...]]]) -> How:
    """By the shapes of the fields in each group."""
    first = groups[0]
    are_rows = all(() not in own.values() and _num_lengths(own) == 1 for own in groups)
    if all(own == first for own in groups):
        return "either" if are_rows and next(iter(first.values()))[0] > 1 else "stack"
    tails = [{path: shape[1:] for path, shape in own.items()} for own in groups]
    agree = are_rows and len(first) > 1  # one array alone may be a picture of another height
    return "join" if agree and all(tail == tails[0] for tail in tails) else "files"


def _num_lengths(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return len({shape[0] for shape in shapes.values()})
