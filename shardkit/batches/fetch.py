"""Columns of some rows: read, and transformed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shardkit.arrays import Integers
from shardkit.batches.columns_to_samples import columns_of, samples_of
from shardkit.batches.generators import put_back
from shardkit.batches.source import FullSource
from shardkit.batches.transform import Draws, Randomised
from shardkit.errors import SampleError, ShardkitError, UsageError


@dataclass(frozen=True)
class Fetcher:
    """Reads rows, and transforms what it has read. A user's code raises anything: what is raised
    here names the sample.

    Args:
        joined: fields that may be read as one buffer each, where nothing transforms them.
    """

    source: FullSource
    transform: Randomised | None
    joined: Sequence[str] = ()

    @property
    def takes_samples(self) -> bool:
        """Whether there is a transform, and it takes one sample at a time."""
        return self.transform is not None and not self.transform.takes_batches

    def columns(
        self, rows: Integers, positions: Integers, draws: Draws | None
    ) -> tuple[dict[str, Any], float]:
        """field -> (B, ...) values of (B,) rows; and the seconds that the transform took.

        Args:
            positions: (B,) int64, of the rows in the epoch. draws: what the transform draws from;
                None, of which ``positions`` may be empty, if there is none.

        Raises:
            DataError: a sample cannot be read or transformed.
        """
        columns = self._read(rows)
        if self.transform is None or draws is None:
            return columns, 0.0
        began = time.perf_counter()
        transform = self.transform
        make = self._transformed_batch if transform.takes_batches else self._transformed_each
        made = transform.watched(make, transform, columns, rows, positions, draws)
        if transform.process != os.getpid():
            if transform.find_generators():  # it makes them on first use: they were not seeded yet
                made = make(transform, self._read(rows), rows, positions, draws)
            transform.process = os.getpid()
        return made, time.perf_counter() - began

    def _read(self, rows: Integers) -> dict[str, Any]:
        try:
            if self.transform is None:
                return self.source.read_joined(rows, self.joined)
            return self.source.read(rows)
        except ShardkitError:
            raise
        except Exception as error:
            where = self._one_of(rows.tolist())
            raise SampleError(
                f"{where}: reading failed: {type(error).__name__}: {error}"
            ) from error

    def _transformed_each(
        self,
        transform: Randomised,
        columns: dict[str, Any],
        rows: Integers,
        positions: Integers,
        draws: Draws,
    ) -> dict[str, Any]:
        samples = samples_of(columns, len(rows))
        handles = transform.seeded
        seeds = transform.seeds(draws, positions) if handles else ()
        out = []
        with put_back(handles):
            each = zip(samples, positions.tolist(), rows.tolist(), strict=True)
            for number, (sample, position, row) in enumerate(each):
                for handle, own in zip(handles, seeds, strict=True):
                    handle.seed(own[number])
                with self._named(row):
                    out.append(_fields(transform(sample, draws, position)))
        return columns_of(out)

    def _transformed_batch(
        self,
        transform: Randomised,
        columns: dict[str, Any],
        rows: Integers,
        positions: Integers,
        draws: Draws,
    ) -> dict[str, Any]:
        with self._named(*rows.tolist()):
            out = _fields(transform.batch(columns, draws, positions))
        for name, values in out.items():
            if len(values) != len(rows):
                raise UsageError(
                    f"the transform's batch() made {len(values)} values of field {name!r} for"
                    f" {len(rows)} samples"
                )
        return out

    @contextmanager
    def _named(self, *rows: int) -> Iterator[None]:
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            slot = getattr(error, "slot", None)
            is_known = isinstance(slot, int) and 0 <= slot < len(rows)
            where = self._one_of([rows[slot]] if is_known else rows)  # type: ignore[index]
            raise SampleError(
                f"{where}: the transform failed: {type(error).__name__}: {error}"
            ) from error

    def _one_of(self, rows: Sequence[int]) -> str:
        others = f" or one of the {len(rows) - 1} with it" if len(rows) > 1 else ""
        return self.source.where(rows[0]) + others


def _fields(out: Any) -> dict[str, Any]:
    if not isinstance(out, dict):
        raise UsageError(f"the transform must return a dict of fields, got {type(out).__name__}")
    return out
