"""Several sources put end to end: a row of them is a row of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import numpy as np

from shardkit.arguments import refuse_unknown
from shardkit.arrays import Integers
from shardkit.batches.source import FullSource, Source
from shardkit.errors import UsageError
from shardkit.shards.values import Column
from shardkit.storage.interface import Turn


class EndToEnd:
    """What a mix and a concatenation have in common.

    Attributes:
        parts: the sources. starts: (P + 1,) int64, the first row of each, and their number.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.parts = [FullSource(source) for source in sources]
        self.starts = np.concatenate([[0], np.cumsum([part.num_rows for part in self.parts])])

    def __len__(self) -> int:
        """Samples of all sources together."""
        return sum(len(part) for part in self.parts)

    @property
    def num_rows(self) -> int:
        return int(self.starts[-1])

    def split(self, rows: Integers) -> tuple[Integers, Integers]:
        """(source, row in it) of each row."""
        which = np.searchsorted(self.starts, rows, side="right") - 1
        return which, rows - self.starts[which]

    def read(self, rows: Integers) -> dict[str, Column]:
        which, inside = self.split(np.asarray(rows, np.int64))
        present = np.unique(which).tolist()
        read = {number: self.read_part(number, inside[which == number]) for number in present}
        if len(self.parts) == 1:
            return read[0]
        return {name: _merged(name, which, read) for name in self.fields}

    def read_part(self, number: int, rows: Integers) -> dict[str, Column]:
        """Columns of rows of one source."""
        return self.parts[number].read(rows)

    @cached_property
    def fields(self) -> list[str]:
        """Of all datasets; where one does not say, those of its first row."""
        first = np.zeros(1, np.int64)
        names = [part.fields or part.read(first) for part in self.parts]
        return list(dict.fromkeys(name for some in names for name in some))

    def with_fields(self, names: list[str]) -> Self:
        """The same, of which only these fields are read."""
        refuse_unknown(names, self.fields)
        chosen = copy(self)
        chosen.parts = [
            part.with_fields([name for name in names if name in (part.fields or names)])
            for part in self.parts
        ]
        chosen.__dict__["fields"] = names
        return chosen

    def keys(self, rows: Integers) -> list[str]:
        """The key of each row, as its source has it."""
        which, inside = self.split(rows)
        found = np.empty(len(rows), object)
        for number in np.unique(which).tolist():
            here = which == number
            found[here] = self.parts[number].keys(inside[here])
        return list(found.tolist())

    @property
    def foresees(self) -> bool:
        return any(part.foresees for part in self.parts)

    def is_cold(self) -> bool:
        return any(part.foresees and part.is_cold() for part in self.parts)

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        kept = [part.reached(turn, is_resting=is_resting) for part in self.parts]
        return all(kept)

    def advise(self, rows: Integers, turn: Turn | None = None) -> None:
        which, inside = self.split(rows)
        for number in np.unique(which).tolist():
            part = self.parts[number]
            if turn is None and part.advise is not None:
                part.advise(inside[which == number])
            elif turn is not None and part.foresees:
                part.foresee(inside[which == number], turn)

    def finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        for part in self.parts:
            batch = part.finish(batch)
        return batch


def num_positions(part: FullSource) -> int:
    """Positions in an epoch: a dataset's rows, or what a mix within the mix says."""
    return len(part.order(None, 0, 0))


def refuse_layouts(what: str, parts: Mapping[str, FullSource]) -> None:
    """Raise UsageError where batches of several layouts would be put together."""
    layouts = {name: part.layout for name, part in parts.items() if part.layout}
    first = next(iter(layouts), "")
    for name, layout in layouts.items():
        if layout != layouts[first]:
            raise UsageError(
                f"{what}: {first!r} has {layouts[first]}, and {name!r} has {layout}: open both"
                " alike"
            )


def _merged(name: str, which: Integers, read: dict[int, dict[str, Column]]) -> Column:
    """One column from those of several datasets; None where a dataset lacks the field."""
    if len(read) == 1:
        columns = next(iter(read.values()))
        return columns[name] if name in columns else [None] * len(which)
    found = {number: columns[name] for number, columns in read.items() if name in columns}
    if len(found) == len(read) and _are_alike(list(found.values())):
        first: Any = found[min(found)]
        merged = np.empty((len(which), *first.shape[1:]), first.dtype)
        for number, column in found.items():
            merged[which == number] = column
        return merged
    values: list[Any] = [None] * len(which)
    for number, column in found.items():
        here = np.flatnonzero(which == number).tolist()
        for slot, value in zip(here, column, strict=True):
            values[slot] = value
    return values


def _are_alike(columns: list[Column]) -> bool:
    """Whether all are arrays of one dtype, whose samples have one shape."""
    kinds = {(c.dtype, c.shape[1:]) if isinstance(c, np.ndarray) else None for c in columns}
    return len(kinds) == 1 and None not in kinds
