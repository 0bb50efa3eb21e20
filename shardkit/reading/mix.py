"""Several datasets in one stream, in given proportions, from any point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from shardkit.arguments import integer, known_options
from shardkit.arrays import Integers
from shardkit.batches.source import FullSource, Source
from shardkit.errors import UsageError
from shardkit.order.epochs import Shuffle
from shardkit.order.permutation import derive
from shardkit.order.turns import Length, Pattern, Turns, quantise
from shardkit.reading.end_to_end import EndToEnd, num_positions, refuse_layouts

_PART = -5

VERSION = 2
"""Version of the turns, and of the fingerprint; version 1 repeated the same 4,096 turns."""


@known_options("mix")
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
    refuse_layouts("mix", parts)
    shares = _shares(datasets, weights)
    if isinstance(length, str) and length not in ("first", "all"):
        raise UsageError(f"mix: length must be a number, 'first' or 'all', got {length!r}")
    if not isinstance(length, str):
        length = integer("mix: length", length, 1)
    sizes = [num_positions(part) for part in parts.values()]
    seed = integer("seed", seed, None)
    return Mix(dict(datasets), Pattern.of(quantise(shares), seed, sizes, length))


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


class Mix(EndToEnd):
    """What :func:`mix` returns: a source of samples with an order of its own.

    Row numbers are those of the datasets put end to end, in the order given; an epoch has
    ``length`` positions.
    """

    def __init__(self, datasets: dict[str, Source], pattern: Pattern) -> None:
        super().__init__([*datasets.values()])
        self.datasets = datasets
        self.pattern = pattern
        self.length = pattern.length

    def __repr__(self) -> str:
        shares = (
            f"{name}: {count / self.pattern.period:.4g}"
            for name, count in zip(self.datasets, self.pattern.counts, strict=True)
        )
        return f"<Mix of {', '.join(shares)}; {self.length} samples an epoch>"

    @property
    def mixture(self) -> dict[str, Any]:
        """Return what a message can say of its fingerprint."""
        shares = [count / self.pattern.period for count in self.pattern.counts]
        return {
            "datasets": [*self.datasets],
            "weights": dict(zip(self.datasets, shares, strict=True)),
            "seed": self.pattern.seed,
            "length": self.length,
        }

    @property
    def fingerprint(self) -> str:
        each = zip(self.datasets, self.parts, strict=True)
        parts = [f"{name}:{part.fingerprint}" for name, part in each]
        text = repr((VERSION, parts, astuple(self.pattern)))
        return xxhash.xxh3_64_hexdigest(text.encode())

    def order(self, shuffle: Shuffle, seed: int, epoch: int, **options: int) -> MixOrder:
        return MixOrder(self, shuffle, seed, epoch, options)

    def keys(self, rows: Integers) -> list[str]:
        names, numbers = list(self.datasets), np.asarray(rows, np.int64)
        which, _ = self.split(numbers)
        each = zip(which.tolist(), super().keys(numbers), strict=True)
        return [f"{names[number]}/{key}" for number, key in each]

    def where(self, row: int) -> str:
        which, inside = self.split(np.array([row]))
        name = list(self.datasets)[int(which[0])]
        return f"{name}: {self.parts[int(which[0])].where(int(inside[0]))}"


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
        part = self.mix.parts[number]
        size = num_positions(part)
        epoch, begun = divmod(self._turns.before(number), size)
        rounds, positions = np.divmod(samples + begun, size)
        rows = np.empty_like(samples)
        seed = derive(self.seed, _PART, number)
        for turn in np.unique(rounds).tolist():
            here = rounds == turn
            order = part.order(self.shuffle, seed, epoch + turn, **self.options)
            rows[here] = order.rows(positions[here])
        rows += self.mix.starts[number]
        return rows
