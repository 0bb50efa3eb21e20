"""Samples of Python values put together, column by column."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from shardkit.errors import SampleError
from shardkit.inputs.objects.fields import Fields, SampleForm
from shardkit.samples.sample import SampleBatch, Value, pack_paths

Plan = tuple[list[tuple[int, Callable[[Any], Any]]], list[Callable[[Value], None]], bytes]
"""Conversions by the place of a value, the column of each value, and the encoded paths."""


class BatchBuilder:
    """Samples that come from no file, added one by one. Attributes: batch, of all of them.

    Samples mostly have the names and types of the one before, so that their values are converted
    and appended without a look at each: 1.2 us for two fields in place of 9 us.
    """

    def __init__(self, form: SampleForm) -> None:
        self._form = form
        self.batch = SampleBatch()
        self._keys, self._paths = self.batch.keys, self.batch.paths
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def add(self, key: bytes, sample: Any) -> tuple[bytes, int]:
        """Append a sample, and return its key, which is its own or this one, and its bytes.

        Raises:
            SampleError: a value cannot be stored; nothing is added.
        """
        signature: tuple[Any, ...] = ()
        if type(sample) is dict:
            values = [*sample.values()]
            signature = (*sample, *map(type, values))
            plan = self._plans.get(signature)
            if plan is not None:
                converts, appends, paths = plan
                try:
                    for i, convert in converts:
                        values[i] = convert(values[i])
                except SampleError:
                    self._form.fields_of(sample)  # raises, and names the field
                    raise
                for append, value in zip(appends, values, strict=True):
                    append(value)
                self._keys.append(key)
                self._paths.append(paths)
                return key, sum(map(len, values))
        own, fields = self._form.fields_of(sample)
        self.append(own or key, fields)
        if signature and (stores := self._form.plan(sample)):
            columns = self.batch.columns
            if {store.field for store in stores} == columns.keys():
                converts = [(i, s.convert) for i, s in enumerate(stores) if s.convert is not None]
                appends = [columns[store.field].append for store in stores]
                self._plans[signature] = converts, appends, self.batch.paths[-1]
        return own or key, sum(map(len, fields.values()))

    def append(self, key: bytes, fields: Fields) -> None:
        """Append a sample of stored values."""
        batch, num = self.batch, len(self.batch)
        if not fields.keys() <= batch.columns.keys():
            self._plans.clear()  # they have not all columns
        batch.keys.append(key)
        batch.paths.append(paths_of(fields))
        for name in dict.fromkeys([*batch.columns, *fields]):
            batch.columns.setdefault(name, [None] * num).append(fields.get(name))


def paths_of(fields: Iterable[str]) -> bytes:
    """Return the encoded paths of a sample that comes from no file: as its key and its fields."""
    return pack_paths(b"", [b"." + name.encode() for name in sorted(fields)])
