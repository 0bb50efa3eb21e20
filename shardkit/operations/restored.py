"""JPEGs that were given restart markers while packing, as they were before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from shardkit.errors import DataError, SampleError
from shardkit.images import restarts
from shardkit.images.restarting import FIELD, without_restarts
from shardkit.index.manifest import DatasetInfo
from shardkit.samples.sample import Value
from shardkit.system.paths import show_path
from shardkit.system.resources import allowance

File = tuple[str, bytes, int | None, Value]
"""(field, path, offset in it if it is a part, contents)."""

Undo = Callable[[Iterable[File]], Iterable[File]]


def has_restarts(info: DatasetInfo) -> bool:
    """Whether a dataset may hold such JPEGs."""
    return info.provenance.has_restarts and FIELD in info.fields


def require_undo(info: DatasetInfo) -> None:
    """Raise UsageError if the dataset holds such JPEGs, and what undoes it was not built."""
    if has_restarts(info):
        restarts.require()


@contextmanager
def undoing(info: DatasetInfo) -> Iterator[Undo]:
    """Gives what makes files of stored values, as long as the block lasts. Some hundred JPEGs are
    done at once, on all cores: each takes 2 ms, most of it without the GIL.

    What it gives raises DataError for a JPEG that cannot be undone.
    """
    if not has_restarts(info):
        yield iter
        return
    with ThreadPoolExecutor(allowance().cpus) as pool:
        yield partial(_undone, pool)


def _undone(pool: Executor, files: Iterable[File]) -> Iterator[File]:
    held = [*files]
    for (field, path, offset, _), value in zip(held, pool.map(_original, held), strict=True):
        yield field, path, offset, value


def _original(file: File) -> Value:
    field, path, _, value = file
    try:
        return without_restarts(value) if field == FIELD else value
    except SampleError as error:
        raise DataError(
            f"{show_path(path)}: its restart markers cannot be removed: {error}"
        ) from error
