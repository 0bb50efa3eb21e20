"""Python objects that ``pack`` takes in place of a path: identified, and read row by row."""

from __future__ import annotations

import os
import pickle  # noqa: TID251  # to our own workers, by a pipe; never from a file
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # noqa: TID251

from shardkit.errors import SampleError, UsageError
from shardkit.index.manifest import is_field_name

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
