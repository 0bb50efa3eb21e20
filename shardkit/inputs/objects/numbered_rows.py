"""Python objects that ``pack`` takes in place of a path: identified, read row by row, and packed by
row number: map-style datasets, and functions over inputs."""

from __future__ import annotations

import os
import pickle  # noqa: TID251  # to our own workers, by a pipe; never from a file
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import cloudpickle  # type: ignore[import-untyped]  # noqa: TID251
import xxhash

from shardkit.errors import CorpusError, SampleError, UsageError
from shardkit.index.file_names import is_field_name
from shardkit.inputs.corpus import NO_SAMPLE, Corpus, Run
from shardkit.inputs.objects.sample_forms import (
    BatchBuilder,
    SampleForm,
    labels_not_taken,
    paths_of,
)
from shardkit.samples.sample import SampleBatch
from shardkit.system.stamps import UPPER

Fn = Callable[[Any], Any]


def splits_of(source: Any) -> dict[str, Any]:
    """Return the splits of a source: those of a mapping, or ``train``.

    Raises:
        UsageError: a split has a name that cannot name files, or there is none.
    """
    if not isinstance(source, Mapping):
        return {"train": source}
    for name in source:
        if not is_field_name(name):
            raise UsageError(f"split {name!r} cannot name files (A-Z a-z 0-9 _ . -); rename it")
    if not source:
        raise UsageError("the source is an empty dict: there is nothing to pack")
    return dict(source)


def is_map_style(source: Any) -> bool:
    """Return True for what has rows by number. Torch's IterableDataset inherits a ``__getitem__``
    that only raises."""
    is_stream = any(made.__name__ == "IterableDataset" for made in type(source).__mro__)
    has_rows = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return has_rows and not is_stream and not isinstance(source, type)


def iterator_of(source: Any) -> Iterator[Any]:
    """Return a new iterator over the samples of a source that has no rows by number.

    Raises:
        UsageError: it can be iterated over only once, or not at all.
    """
    if isinstance(source, Iterator):
        raise UsageError(
            f"the source is a {type(source).__name__}, which can be read only once, so that an"
            " interrupted pack could not resume: pass the function that makes it"
        )
    try:
        made = source() if callable(source) and not hasattr(source, "__iter__") else source
    except Exception as error:  # a user's code may raise anything
        raise UsageError(f"the source {described(source)} raised {told(error)}") from error
    if not isinstance(made, Iterable):
        raise UsageError(
            f"the source is a {type(source).__name__}; pass a path, a dataset with __len__ and"
            " __getitem__, a table, or a function that returns an iterator"
        )
    return iter(made)


def described(source: Any) -> str:
    """Return what a source is called in messages."""
    name = getattr(source, "__name__", type(source).__name__)
    return f"<{name}>"


# --- rows by number -----------------------------------------------------------------------


@dataclass(frozen=True)
class NumberedRows:
    """The rows of a map-style dataset, or inputs and the function that makes samples of them."""

    source: Any
    fn: Fn | None = None

    def __len__(self) -> int:
        try:
            return len(self.source)
        except Exception as error:  # a user's code may raise anything
            raise UsageError(f"the source's __len__ raised {told(error)}") from error

    def sample(self, row: int) -> Any:
        """Return a row of the source.

        Raises:
            SampleError: the source raised; has the line of its code.
        """
        try:
            return self.source[row]
        # Whatever a user's code raises, the row is what they need to know.
        except Exception as error:
            raise SampleError(f"raised {told(error)}") from error

    def samples(self, row: int) -> Iterator[Any]:
        """Yield what a row becomes: one sample, or of a function any number of them, one by one,
        as it may give the same object again with other values.

        Raises:
            SampleError: the dataset, or the function, raised; names the input and the line.
        """
        value = self.sample(row)
        if self.fn is None:
            yield value
            return
        try:
            made = self.fn(value)
            yield from made if isinstance(made, Iterator) else [made]
        except Exception as error:
            shown = os.fspath(value) if isinstance(value, os.PathLike) else value
            what = f"from {shown!r:.200}: {self.name_of_fn} raised {told(error)}"
            raise SampleError(what) from error

    @property
    def name_of_fn(self) -> str:
        """The function's name; empty if there is none."""
        return "" if self.fn is None else getattr(self.fn, "__qualname__", type(self.fn).__name__)


def told(error: Exception) -> str:
    """Return an exception in one line, with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return _one_line(error) + where


# --- to other processes -------------------------------------------------------------------


def to_bytes(held: Any) -> bytes:
    """Pickle objects for worker processes, with the search path of the modules they come from.

    Classes and functions of a script or a notebook are pickled by value.

    Raises:
        UsageError: they cannot be pickled.
    """
    try:
        data = cloudpickle.dumps(held, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # objects may raise anything
        raise UsageError(
            f"the source cannot be sent to worker processes ({_one_line(error)}); pass workers=0"
        ) from error
    return pickle.dumps((sys.path, data), protocol=pickle.HIGHEST_PROTOCOL)


def from_bytes(data: bytes) -> Any:
    """Return in a worker process what :func:`to_bytes` pickled.

    Raises:
        UsageError: it cannot be loaded there.
    """
    paths, held = pickle.loads(data)
    sys.path += [path for path in paths if path not in sys.path]
    try:
        return pickle.loads(held)
    except Exception as error:
        raise UsageError(
            f"a worker process cannot load the source ({_one_line(error)}); pass workers=0"
        ) from error


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


# --- the corpus -----------------------------------------------------------------------------

RUN_ROWS = 8_192
"""Rows of a run at most."""

PROBE_BYTES = 4_000_000
"""About how much input lies between two rows that are looked at before packing: the least size of a
shard, so that each has one."""

PROBES = 32, 1_000
"""The least and the most rows of a split that are probed."""


_PLAIN = {bytes, str, int, float, bool}
"""Types of values that stay as they are when the object gives its next row."""


class ObjectCorpus(Corpus):
    """Samples of Python objects, one object a split."""

    has_pictures = True
    has_text = True

    def __init__(
        self, splits: dict[str, Any], form: SampleForm, classes: list[str] | None = None
    ) -> None:
        self._splits = splits
        self._form = form
        self.classes = classes
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []

    def splits(self) -> list[str]:
        return [*self._splits]


class RowsCorpus(ObjectCorpus):
    """Samples that a Python object gives by row number.

    What it holds has no names, sizes or times to compare. So rows spread over each split are read
    while it is listed: their sizes stand for those of the rows that follow, and their contents are
    what a resumed pack compares.
    """

    kind = "objects"
    takes_order = True

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        splits, form = from_bytes(spec["objects"])
        return cls(splits, form)

    def objects(self) -> bytes:
        return to_bytes((self._splits, self._form))

    def spec(self) -> dict[str, Any]:
        functions = sorted({name for rows in self._splits.values() if (name := rows.name_of_fn)})
        return {
            "kind": self.kind,
            "rows": {name: len(rows) for name, rows in self._splits.items()},
            "fn": functions,
            **self._form.to_json(),
            "classes": self.classes,
        }

    # --- listing --------------------------------------------------------------------------

    def runs(self, scratch: Path) -> Iterator[Run]:
        if not any(map(len, self._splits.values())):
            raise CorpusError("the source has no rows: there is nothing to pack")
        for name, rows in self._splits.items():
            if not len(rows):
                self.notes.append(f"split {name!r} has no row, and is left out")
            for start, stop, size, stamp in self._pieces(rows):
                for first in range(start, stop, RUN_ROWS):
                    numbers = range(first, min(first + RUN_ROWS, stop))
                    yield Run(
                        split=name,
                        base=name,  # of the split that it may be cut from
                        locators=[b"%d" % row for row in numbers],
                        keys=[b"%012d" % row for row in numbers],
                        sizes=[size] * len(numbers),
                        stamps=[stamp] * len(numbers),
                    )

    def _pieces(self, rows: NumberedRows) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first row, end, bytes a row, stamp), of which the first row was read."""
        least, most = PROBES
        looked = {row: self._probe(rows, row) for row in _spread(len(rows), least)}
        total = sum(size for size, _ in looked.values()) // max(len(looked), 1) * len(rows)
        starts = _spread(len(rows), min(max(least, total // PROBE_BYTES), most))
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=False):
            size, stamp = looked.get(start) or self._probe(rows, start)
            yield start, stop, size, stamp

    def _probe(self, rows: NumberedRows, row: int) -> tuple[int, int]:
        """Return the bytes of what a row becomes, and a stamp of them."""
        digest, size = xxhash.xxh3_64(), 0
        try:
            for sample in rows.samples(row):
                fields = self._form.fields_of(sample)[1]
                self.notes += [n for n in labels_not_taken(fields) if n not in self.notes]
                for name, value in sorted(fields.items()):
                    size += len(value)
                    digest.update(b"%s %d " % (name.encode(), len(value)))
                    digest.update(value)
        except SampleError as error:  # rejected when its turn comes
            digest.update(str(error).encode())
        return max(size, 1), digest.intdigest() >> (UPPER + 1) << UPPER

    # --- reading --------------------------------------------------------------------------

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        rows = self._splits[run.base]
        if (plain := self._read_plain(rows, run)) is not None:
            return plain
        made = BatchBuilder(self._form)
        batch = made.batch
        for entry, (key, locator) in enumerate(zip(run.keys, run.locators, strict=True)):
            try:
                if rows.fn is None:
                    made.add(key, rows.sample(int(locator)))
                    continue
                found = [*map(self._form.fields_of, rows.samples(int(locator)))]  # all, or none
            except SampleError as error:
                batch.rejects.append((self.entry_name(run, entry), str(error)))
                continue
            batch.counts[NO_SAMPLE] += not found
            for i, (own, fields) in enumerate(found):
                made.append(own or (key if len(found) == 1 else b"%s-%06d" % (key, i)), fields)
        return batch

    def _read_plain(self, rows: NumberedRows, run: Run) -> SampleBatch | None:
        """Return rows of plain values, all of the same names and types, converted column by column:
        0.9 us a row in place of 2. None for any others, which are read once more, one by one."""
        held = []
        try:
            for locator in run.locators if rows.fn is None else ():
                sample = rows.source[int(locator)]
                if type(sample) is not dict:
                    return None
                held.append((*sample, *map(type, sample.values()), *sample.values()))
            num = len(held[0]) // 3  # names, types, and values
            first = dict(zip(held[0][:num], held[0][2 * num :], strict=True))
            columns = [*zip(*held, strict=True)]
            are_alike = all(len({*own}) == 1 for own in columns[: 2 * num])
            if not are_alike or not _PLAIN.issuperset(held[0][num : 2 * num]):
                return None
            self._form.fields_of(first)
            made = {
                field: [*column] if convert is None else [*map(convert, column)]
                for (field, convert), column in zip(
                    self._form.plan(first), columns[2 * num :], strict=True
                )
            }
        except Exception:  # noqa: BLE001  # of a user's code, or a bad value: read one by one
            return None
        return SampleBatch([*run.keys], [paths_of(made)] * len(run), made)

    def entry_name(self, run: Run, i: int) -> str:
        return f"row {int(run.locators[i])} of {run.base}"


def _spread(num_rows: int, count: int) -> list[int]:
    """Return so many rows at equal distances, the first among them; all if there are fewer."""
    count = min(num_rows, count)
    return [i * num_rows // count for i in range(count)]
