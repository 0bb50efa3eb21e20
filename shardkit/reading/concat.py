"""Several datasets as one, without copying: the second begins where the first ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import xxhash

from shardkit.arguments import known_options
from shardkit.arrays import Integers
from shardkit.batches.source import FullSource, Source
from shardkit.errors import UsageError
from shardkit.reading.dataset import keyed_samples
from shardkit.reading.end_to_end import EndToEnd, num_positions, refuse_layouts
from shardkit.reading.row_numbers import from_front, row_numbers
from shardkit.shards.values import Column

if TYPE_CHECKING:
    from shardkit.batches.batch_options import BatchKeywords
    from shardkit.batches.stream import Stream

LABEL = "cls"


@known_options("concat")
def concat(datasets: Sequence[Source]) -> Concat:
    """Read several datasets as one, as if they had been packed together, without copying.

    Rows, order, shuffles and states are those of one dataset with the samples of all, in the order
    given. Classes go by name: those of the first dataset keep their numbers, and new ones follow.

    Args:
        datasets: of ``shardkit.open``, of any formats, on disk or behind URLs; or other sources
            that a Loader takes.

    Raises:
        UsageError: there are none; fields differ, so that batches would have holes; or only some
            have names for their class numbers, so that nobody knows which are equal.
    """
    if isinstance(datasets, str) or not isinstance(datasets, Sequence):
        kind = type(datasets).__name__
        raise UsageError(f"concat: give a list of datasets that are open, got a {kind}")
    if not datasets:
        raise UsageError("concat: no datasets")
    for number, one in enumerate(datasets):
        part = FullSource(one)
        if not part.num_rows == num_positions(part) == len(part):
            raise UsageError(
                f"concat: {one!r} (number {number}) has an order of its own, which rows put end to"
                " end cannot keep; shardkit.mix takes it, with length='all'"
            )
    found = Concat(datasets)
    refuse_layouts("concat", {str(number): part for number, part in enumerate(found.parts)})
    for number in range(len(found.parts)):
        names = _fields_of(found, number)
        if names != found.fields:
            raise UsageError(
                f"concat: fields differ: number 0 has {', '.join(found.fields)}, and number"
                f" {number} has {', '.join(names)}; open all with fields=[...] that all have"
            )
    return found


def _fields_of(found: Concat, number: int) -> list[str]:
    part = found.parts[number]
    if part.fields is not None:
        return sorted(part.fields)
    return sorted(part.read(np.zeros(min(1, len(part)), np.int64)))


class Concat(EndToEnd):
    """What :func:`concat` returns: a source, and a map-style dataset for torch.

    Attributes:
        classes: names of all classes, in the order of their numbers; None where there are none.
    """

    def __init__(self, datasets: Sequence[Source]) -> None:
        super().__init__(datasets)
        self.classes, self._numbers = _reconciled([part.given for part in self.parts])

    def __repr__(self) -> str:
        return f"<Concat of {len(self.parts)} datasets: {len(self)} samples>"

    @cached_property
    def fields(self) -> list[str]:
        """Names of the columns, which all datasets have."""
        return _fields_of(self, 0)

    @property
    def layout(self) -> str:
        return next(filter(None, (part.layout for part in self.parts)), "")

    @property
    def fingerprint(self) -> str:
        """Equal for equal samples in equal order, whatever the formats."""
        parts = [(part.fingerprint, len(part)) for part in self.parts]
        numbers = [n if n is None else n.tolist() for n in self._numbers]
        return xxhash.xxh3_128_hexdigest(repr((parts, numbers)).encode())

    def read(self, rows: Integers) -> dict[str, Column]:
        """As :meth:`shardkit.Dataset.read`."""
        numbers = row_numbers(rows)
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"a row is outside 0..{len(self) - 1}")
        if not len(numbers):
            return self.read_part(0, numbers)
        return super().read(numbers)

    def read_part(self, number: int, rows: Integers) -> dict[str, Column]:
        columns = super().read_part(number, rows)
        table = self._numbers[number]
        if table is not None and LABEL in columns:
            columns = {**columns, LABEL: _renumbered(columns[LABEL], table)}
        return columns

    def __getitem__(self, row: int) -> dict[str, Any]:
        """One sample: its ``__key__`` and the fields it has."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Samples as torch's DataLoader asks for them."""
        numbers = np.array([from_front(row, len(self), "") for row in rows], np.int64)
        return keyed_samples(self.keys(numbers), self.read(numbers))

    def keys(self, rows: Sequence[int] | Integers | None = None) -> list[str]:
        """Keys of the given rows, or of all; two datasets may have the same."""
        return super().keys(np.arange(len(self)) if rows is None else row_numbers(rows))

    def column(self, name: str) -> Column:
        """One whole column, as :meth:`shardkit.Dataset.column`."""
        if name not in self.fields:
            raise UsageError(f"no field {name!r}; there are {', '.join(self.fields)}")
        columns = []
        for number, part in enumerate(self.parts):
            own: Any = getattr(part.given, "column", None)
            column = part.read(np.arange(len(part)))[name] if own is None else own(name)
            table = self._numbers[number]
            columns.append(column if table is None or name != LABEL else _renumbered(column, table))
        if all(isinstance(column, np.ndarray) for column in columns):
            arrays: Any = columns
            if len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
                joined: Column = np.concatenate(arrays)
                return joined
        return [value for column in columns for value in column]

    def where(self, row: int) -> str:
        """A row in words, for messages."""
        which, inside = self.split(np.array([row]))
        part = self.parts[int(which[0])]
        return f"{part.where(int(inside[0]))} of {part.given!r}"

    def warn_of_refetches(self, shuffle: object, **of_order: int) -> None:
        """As :meth:`shardkit.Dataset.warn_of_refetches`, of each."""
        for part in self.parts:
            if hasattr(part.given, "warn_of_refetches"):
                part.given.warn_of_refetches(shuffle, **of_order)

    def stream(self, batch_size: int, **options: Unpack[BatchKeywords]) -> Stream:
        """As :meth:`shardkit.Dataset.stream`."""
        from shardkit.batches.stream import Stream

        return Stream(self, batch_size, **options)


def _reconciled(given: Sequence[object]) -> tuple[list[str] | None, list[Integers | None]]:
    """Names of all classes, and for each dataset the number of each of its classes among these;
    None where that is its own.

    Raises:
        UsageError: only some have names; or numbers would change in what is not decoded.
    """
    names: list[list[str] | None] = [getattr(one, "classes", None) for one in given]
    if all(name is None for name in names):
        return None, [None] * len(given)
    for number, own in enumerate(names):
        if own is None and LABEL in (getattr(given[number], "fields", None) or [LABEL]):
            raise UsageError(
                f"concat: the classes of {given[number]!r} (number {number}) have no names, and"
                " those of others have; open all with fields=[...] without cls, or pack them alike"
            )
    union = {name: i for i, name in enumerate(dict.fromkeys(n for own in names for n in own or []))}
    tables: list[Integers | None] = []
    for number, own in enumerate(names):
        table = np.array([union[name] for name in own or []], np.int64)
        is_own = np.array_equal(table, np.arange(len(table)))
        if not is_own and getattr(given[number], "decode", True) is False:
            raise UsageError(
                f"concat: class numbers of {given[number]!r} (number {number}) become others, and"
                " decode=False gives them as they are stored; leave decode out"
            )
        tables.append(None if is_own else table)
    return list(union), tables


def _renumbered(column: Column, table: Integers) -> Column:
    """Class numbers, in those of all datasets; None stays.

    Raises:
        UsageError: one has no name.
    """
    if isinstance(column, np.ndarray):
        numbers = column
    else:
        numbers = np.array([value for value in column if value is not None], np.int64)
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(table)):
        raise UsageError(
            f"concat: a sample has class number {int(numbers.max())}, and its dataset names"
            f" {len(table)} classes; open all with fields=[...] without cls"
        )
    if isinstance(column, np.ndarray):
        renumbered: Column = table[column]
        return renumbered
    return [None if value is None else int(table[value]) for value in column]
