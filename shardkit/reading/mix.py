"""Several datasets in one stream, in given proportions, from any point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from shardkit.arguments import integer
from shardkit.arrays import Integers
from shardkit.batches.source import FullSource, Source
from shardkit.errors import UsageError
from shardkit.order.epochs import Shuffle
from shardkit.order.permutation import derive
from shardkit.order.turns import Length, Pattern, Turns, quantise
from shardkit.shards.values import Column
from shardkit.storage.base import Turn

_PART = -5

VERSION = 2
"""Version of the turns, and of the fingerprint; version 1 repeated the same 4,096 turns."""


def mix(
    datasets: Mapping[str, Source],
    weights: Mapping[str, float] | None = None,
    *,
    length: Length = "first",
    seed: int = 0,
) -> Mix:
    """Interleave datasets, each sample drawn from one of them.

    Each dataset is gone through in its own shuffled epochs, one after another, whatever the
    epochs of the mix are. Keys get the dataset's name in front: ``a/dog/1``. Fields are those of
    all datasets; where one lacks a field, it is None.

    Args:
        datasets: name -> dataset. weights: name -> share, by default the datasets' lengths; they
            are scaled to sum to 1 and rounded to 1/4096.
        length: of an epoch of the mix: a number of samples; ``"first"``: until the first dataset
            has been seen once; ``"all"``: until all have.
        seed: of the turns that datasets take, beside the loader's seed and the epoch.

    Raises:
        UsageError: no datasets, an empty one, weights that do not fit, sequences of tokens that
            are not alike.
    """
    if not isinstance(datasets, Mapping):
        raise UsageError(f"mix: give a dict, name -> dataset, got {type(datasets).__name__}")
    if not datasets:
        raise UsageError("mix: no datasets")
    parts: dict[str, FullSource] = {}
    for name, source in datasets.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise UsageError(f"mix: {name!r} is no name: a str, not empty, without '/'")
        parts[name] = FullSource(source)
        if not len(parts[name]):
            raise UsageError(f"mix: dataset {name!r} is empty")
    _refuse_layouts(parts)
    shares = _shares(datasets, weights)
    if isinstance(length, str) and length not in ("first", "all"):
        raise UsageError(f"mix: length must be a number, 'first' or 'all', got {length!r}")
    if not isinstance(length, str):
        length = integer("mix: length", length, 1)
    sizes = [num_positions(part) for part in parts.values()]
    seed = integer("seed", seed, None)
    return Mix(dict(datasets), Pattern.of(quantise(shares), seed, sizes, length))


def _refuse_layouts(parts: Mapping[str, FullSource]) -> None:
    """Raise UsageError where batches of several layouts would be mixed."""
    layouts = {name: part.layout for name, part in parts.items() if part.layout}
    first = next(iter(layouts), "")
    for name, layout in layouts.items():
        if layout != layouts[first]:
            raise UsageError(
                f"mix: {first!r} has {layouts[first]}, and {name!r} has {layout}: open both alike"
            )


def _shares(datasets: Mapping[str, Source], weights: Mapping[str, float] | None) -> list[float]:
    if weights is None:
        return [float(len(source)) for source in datasets.values()]
    if set(weights) != set(datasets):
        raise UsageError(
            f"mix: weights are for {', '.join(map(repr, weights))}, datasets are"
            f" {', '.join(map(repr, datasets))}"
        )
    shares = [weights[name] for name in datasets]
    for name, share in zip(datasets, shares, strict=True):
        if not (isinstance(share, (int, float)) and 0 < share < float("inf")):
            raise UsageError(f"mix: the weight of {name!r} must be a positive number, got {share}")
    return [float(share) for share in shares]


class Mix:
    """What :func:`mix` returns: a source of samples with an order of its own.

    Row numbers are those of the datasets put end to end, in the order given.
    """

    def __init__(self, datasets: dict[str, Source], pattern: Pattern) -> None:
        self.datasets = datasets
        self.pattern = pattern
        self._parts = [FullSource(source) for source in datasets.values()]
        self._starts = np.concatenate([[0], np.cumsum([part.num_rows for part in self._parts])])
        self.length = pattern.length

    def __len__(self) -> int:
        """Samples of all datasets together; an epoch has ``length`` positions."""
        return sum(len(part) for part in self._parts)

    @property
    def num_rows(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        shares = (
            f"{name}: {count / self.pattern.period:.4g}"
            for name, count in zip(self.datasets, self.pattern.counts, strict=True)
        )
        return f"<Mix of {', '.join(shares)}; {self.length} samples an epoch>"

    @property
    def fingerprint(self) -> str:
        each = zip(self.datasets, self._parts, strict=True)
        parts = [f"{name}:{part.fingerprint}" for name, part in each]
        text = repr((VERSION, parts, astuple(self.pattern)))
        return xxhash.xxh3_64_hexdigest(text.encode())

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> MixOrder:
        return MixOrder(self, shuffle, seed, epoch, options)

    def read(self, rows: Integers) -> dict[str, Column]:
        which, inside = self._split(np.asarray(rows, np.int64))
        present = np.unique(which).tolist()
        read: dict[int, dict[str, Column]] = {
            number: self._parts[number].read(inside[which == number]) for number in present
        }
        if len(self._parts) == 1:
            return read[0]
        return {name: _merged(name, which, read) for name in self.fields}

    @cached_property
    def fields(self) -> list[str]:
        """Of all datasets; where one does not say, those of its first row."""
        first = np.zeros(1, np.int64)
        names = [part.fields or part.read(first) for part in self._parts]
        return list(dict.fromkeys(name for some in names for name in some))

    @property
    def foresees(self) -> bool:
        return any(part.foresees for part in self._parts)

    def is_cold(self) -> bool:
        return any(part.foresees and part.is_cold() for part in self._parts)

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        kept = [part.reached(turn, is_resting=is_resting) for part in self._parts]
        return all(kept)

    def advise(self, rows: Integers, turn: Turn | None = None) -> None:
        which, inside = self._split(rows)
        for number in np.unique(which).tolist():
            part = self._parts[number]
            if turn is None and part.advise is not None:
                part.advise(inside[which == number])
            elif turn is not None and part.foresees:
                part.foresee(inside[which == number], turn)

    def finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        for part in self._parts:
            batch = part.finish(batch)
        return batch

    def keys(self, rows: Integers) -> list[str]:
        names = list(self.datasets)
        which, inside = self._split(np.asarray(rows, np.int64))
        return [
            f"{names[number]}/{self._parts[number].keys([row])[0]}"
            for number, row in zip(which.tolist(), inside.tolist(), strict=True)
        ]

    def where(self, row: int) -> str:
        which, inside = self._split(np.array([row]))
        name = list(self.datasets)[int(which[0])]
        return f"{name}: {self._parts[int(which[0])].where(int(inside[0]))}"

    def _split(self, rows: Integers) -> tuple[Integers, Integers]:
        """(dataset, row in it) of each row."""
        which = np.searchsorted(self._starts, rows, side="right") - 1
        return which, rows - self._starts[which]


@dataclass(frozen=True)
class MixOrder:
    """One epoch of a mix. Where a dataset was left at the end of an epoch it goes on in the next:
    its sample c of all epochs together is one of its own shuffled epoch ``c // len(dataset)``."""

    mix: Mix
    shuffle: Shuffle
    seed: int
    epoch: int
    options: dict[str, int]

    def __len__(self) -> int:
        return self.mix.length

    def rows(self, positions: Integers) -> Integers:
        which, numbers = self._turns.at(positions)
        rows = np.empty_like(positions)
        for number in np.unique(which).tolist():
            here = which == number
            rows[here] = self._rows_of(number, numbers[here])
        return rows

    @cached_property
    def _turns(self) -> Turns:
        return Turns(self.mix.pattern, self.seed, self.epoch)

    def _rows_of(self, number: int, samples: Integers) -> Integers:
        part = self.mix._parts[number]
        size = num_positions(part)
        epoch, begun = divmod(self._turns.before(number), size)
        rounds, positions = np.divmod(samples + begun, size)
        rows = np.empty_like(samples)
        seed = derive(self.seed, _PART, number)
        for turn in np.unique(rounds).tolist():
            here = rounds == turn
            order = part.order(self.shuffle, seed, epoch + turn, **self.options)
            rows[here] = order.rows(positions[here])
        rows += self.mix._starts[number]
        return rows


def num_positions(part: FullSource) -> int:
    """Positions in an epoch: a dataset's rows, or what a mix within the mix says."""
    return len(part.order(None, 0, 0))


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
