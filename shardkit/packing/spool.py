"""Sources that are written beside the destination before they are packed, and then removed: rows of
Python objects (datasets of Hugging Face ``datasets``, tables), and files behind a URL.

What a dataset object holds may be a file, a selection of its rows, a stream from the network or
what a function makes. So its rows are taken as they are stored, without decoding, and written to
Parquet.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import xxhash

from shardkit.commit.durable_files import fsync_path
from shardkit.commit.locks import Lock
from shardkit.commit.work_folder import WORK_NAME
from shardkit.errors import CorpusError, DestinationError, UsageError
from shardkit.index.file_names import is_field_name
from shardkit.remote.urls import Url, require_obstore
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors

GROUP_BYTES = 32 << 20
"""About how much a row group holds: it is in memory when it is written."""

GROUP_ROWS = 65_536

SLICE_BYTES = 8 << 20
"""About how much is taken of a dataset at a time."""

STREAM_ROWS = 100
"""Rows of a stream of Arrow tables that are taken at a time."""

HELD_NAME = ".held"
"""The folder of the lock, which tells that the folder around it is a spool."""


def splits_of(source: Any) -> dict[str, Any]:
    """Return the datasets of splits, by name.

    Raises:
        UsageError: a split's name cannot name files.
    """
    if not isinstance(source, dict):
        name = str(getattr(source, "split", None))
        return {name if is_field_name(name) and name != "None" else "train": source}
    splits = {str(name): dataset for name, dataset in source.items()}
    for name in splits:
        if not is_field_name(name):
            raise UsageError(f"split {name!r} cannot name files (A-Z a-z 0-9 _ . -); rename it")
    return splits


class Spool:
    """The folder ``{dest}.spool``, held by a lock. A context manager.

    It goes when its block ends, unless it ends in an error and a pack is under way at ``dest``:
    then the same call can go on with it. Where rows are the same as those of an earlier call, its
    files are kept, inodes included, so that shards that are done need not be done again. Fetched
    files stay after any error: they are not fetched again by the same call.

    Raises:
        DestinationError: another process packs there, or what is there is none of ours.
    """

    def __init__(self, dest: Path) -> None:
        self._dest = dest
        self._has_fetched = False
        self.folder = dest.absolute().with_name(f"{dest.absolute().name}.spool")
        held = self.folder / HELD_NAME
        if os.path.lexists(self.folder) and (self.folder.is_symlink() or not held.is_dir()):
            raise DestinationError(
                f"{show_path(self.folder)}, where rows are to wait until they are packed, is there"
                " already, and not from an earlier call; choose another destination"
            )
        with os_errors(f"writing rows into {self.folder}"):
            self._lock = Lock(held / "lock", self.folder)

    def fill(self, splits: dict[str, Any], limit: int | None, progress: bool | None) -> list[str]:
        """Write the rows of each split, the first ``limit`` of them, and say what of them is not
        packed, a line each.

        Raises:
            CorpusError: rows that do not fit one another, or that Parquet cannot store; none at
                all.
            StorageError: the disk is full, or what a row names cannot be read.
        """
        from shardkit.inputs.tables.tabular import spool_name  # takes 40 ms

        notes, total = [], 0
        with Progress("reading", progress) as bar, os_errors(f"writing rows into {self.folder}"):
            for name, dataset in splits.items():
                new, kept = self.folder / "new", self.folder / spool_name(name)
                num_rows = _write(new, name, dataset, limit, bar)
                if kept.exists() and filecmp.cmp(new, kept, shallow=False):
                    new.unlink()
                else:
                    # A time of change that the contents decide: a resumed pack then takes equal
                    # rows for the same file, and others for a changed one, though it is a new one.
                    digest = xxhash.xxh3_64()
                    with new.open("rb", buffering=0) as file:
                        while block := file.read(SLICE_BYTES):
                            digest.update(block)
                    time_ns = digest.intdigest() % 10**18  # before the year 2002
                    os.utime(new, ns=(time_ns, time_ns))
                    fsync_path(new)
                    new.replace(kept)
                total += num_rows
                if not num_rows:
                    notes.append(f"split {name!r} has no row, and is left out")
                held = getattr(dataset, "format", None)
                if isinstance(held, dict) and held.get("type") == "custom":
                    notes.append(
                        f"split {name!r}: its transform (with_transform) is not applied, rows are"
                        " packed as they are stored; .map applies one"
                    )
        if not total:
            named = " or ".join(map(repr, splits))
            raise CorpusError(f"the dataset has no row in split {named}: there is nothing to pack")
        return notes

    def fetch(self, url: Url) -> Path:
        """Fetch all files of a source into a folder of its name, and return that."""
        from shardkit.remote.cached_storage import ask_place
        from shardkit.remote.urls import default_cache

        self._has_fetched = True
        folder = self.folder / "fetched" / name_of(url)
        ask_place(url, default_cache(), {"do": "fetch bucket", "folder": str(folder)})
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        is_resumable = self._has_fetched or (self._dest / WORK_NAME).is_dir()
        if error[0] is None or not is_resumable:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _write(path: Path, split: str, dataset: Any, limit: int | None, bar: Progress) -> int:
    """Write the first ``limit`` rows, and say how many they are."""
    from shardkit.inputs.tables.tabular import arrow_errors

    with arrow_errors(path):  # says so if pyarrow is not there
        import pyarrow as pa
        from pyarrow import parquet

    is_plain = are_tables(dataset)
    if not is_plain:
        dataset = undecoded(dataset, split)
    elif not isinstance(dataset, pa.Table):  # of pandas, without an index that only counts rows
        dataset = pa.table(dataset)
    schema = dataset.schema if is_plain else dataset.features.arrow_schema
    num_rows = 0
    if not is_plain:
        from datasets.table import embed_table_storage
    try:
        # Plain: so that sizes say what rows hold, and rows of one value are not of no size.
        with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
            for table in _groups(tables(dataset), limit):
                held = table
                if not is_plain:
                    # With the bytes of all files that it names, and in the schema's types.
                    held = table.select(schema.names).replace_schema_metadata(schema.metadata)
                    held = embed_table_storage(held).cast(schema)
                writer.write_table(held, row_group_size=len(table))
                num_rows += len(table)
                bar.add(len(table), table.nbytes)
    except (UsageError, OSError):
        raise
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        what = " ".join(str(error).split())[:300]
        raise CorpusError(
            f"split {split!r}, in rows from {num_rows:,} on: {what}; give the dataset the features"
            " that all its rows have, as with .cast(features)"
        ) from error
    return num_rows


def undecoded(dataset: Any, split: str) -> Any:
    """Return the same rows as they are stored: no picture becomes pixels.

    Raises:
        CorpusError: it is a stream that does not say which columns it has.
    """
    if dataset.features is None:
        # What datasets itself does before it writes a stream; by its first rows.
        resolve = getattr(dataset, "_resolve_features", None)
        try:
            dataset = dataset if resolve is None else resolve()
        except StopIteration as error:
            raise CorpusError(
                f"the dataset has no row in split {split!r}: there is nothing to pack"
            ) from error
        except (ValueError, TypeError, NotImplementedError) as error:
            raise _unknown(split, str(error)) from error
    if dataset.features is None:
        raise _unknown(split, "there are none")
    is_stream = not hasattr(dataset, "__len__")
    if is_stream and hasattr(dataset, "decode"):
        dataset = dataset.decode(False)
    return dataset.with_format("arrow")


def _unknown(split: str, why: str) -> CorpusError:
    if "PIL." in why:  # a value that Arrow has no type for, as its message prints it
        return CorpusError(
            f"split {split!r} is a stream that decodes its pictures for the function of .map, and"
            " does not say which columns it has then; write .decode(False) before .map, so that"
            " pictures stay the files that they are, or say the columns: .map(..., features=...)"
        )
    why = " ".join(why.split())[:200]
    return CorpusError(
        f"split {split!r} is a stream that does not say which columns it has, and its first rows do"
        f" not tell either: {why}; say it, as .map(..., features=...) and"
        " IterableDataset.from_generator(..., features=...) do"
    )


def tables(dataset: Any) -> Iterator[Any]:
    """Yield the rows of a table, or of a dataset of format ``arrow``, as tables of bounded size."""
    if not hasattr(dataset, "__len__"):
        # A stream of examples one by one: datasets looks for columns in the first of a table alone,
        # and would lose what only a later one has.
        is_arrow = getattr(getattr(dataset, "_ex_iterable", None), "iter_arrow", None)
        yield from dataset.iter(STREAM_ROWS if is_arrow else 1)
        return
    start, rows = 0, 10
    while start < len(dataset):
        table = dataset[start : start + rows]
        yield table
        start += len(table)
        mean = max(table.nbytes // max(len(table), 1), 1)
        rows = min(max(SLICE_BYTES // mean, 1), 10 * rows, GROUP_ROWS)


def _groups(parts: Iterator[Any], limit: int | None) -> Iterator[Any]:
    """Yield the first ``limit`` rows of tables, joined until they are enough for a row group."""
    import pyarrow as pa

    held: list[Any] = []
    num_bytes = num_rows = total = 0
    for part in parts:
        table = part if limit is None else part.slice(0, limit - total)
        held.append(table)
        total += len(table)
        num_bytes, num_rows = num_bytes + table.nbytes, num_rows + len(table)
        is_last = limit is not None and total >= limit
        if num_bytes >= GROUP_BYTES or num_rows >= GROUP_ROWS or is_last:
            yield pa.concat_tables(held)
            held, num_bytes, num_rows = [], 0, 0
        if is_last:
            return
    if held:
        yield pa.concat_tables(held)


_KINDS = frozenset({"Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"})


def is_hugging_face(source: object) -> bool:
    """Return True for a dataset of ``datasets`` or several splits of such, without importing that
    library."""
    if type(source) is dict:
        return bool(source) and all(map(is_hugging_face, source.values()))
    return any(
        made.__name__ in _KINDS and made.__module__.partition(".")[0] == "datasets"
        for made in type(source).__mro__
    )


def are_tables(source: object) -> bool:
    """Return True for a table of pyarrow, pandas, polars or another library that gives Arrow's
    stream of record batches, and for a dict of splits of such."""
    held = [*source.values()] if isinstance(source, dict) else [source]
    return bool(held) and all(hasattr(one, "__arrow_c_stream__") for one in held)


def local_source(url: Url) -> Path | None:
    """Return the folder that a ``file://`` URL means; None for what is in a bucket.

    Raises:
        UsageError: it cannot be listed, or obstore is not installed.
    """
    parts = urlsplit(url.text)
    if parts.scheme in ("http", "https", "hf"):
        raise UsageError(
            f"the source: {url} is read by HTTP, which does not list what there is; copy the files"
            " to this machine, or pack from s3://, gs:// or az://"
        )
    if parts.scheme == "file":
        return Path(unquote(parts.path) or "/")
    require_obstore(url)
    return None


def name_of(source: Path | Url) -> str:
    """Return the name of a source without its endings: of its last folder, its file or bucket."""
    if isinstance(source, Url):
        parts = urlsplit(source.text)
        return unquote(parts.path.rpartition("/")[2]) or parts.netloc
    resolved = source.resolve()
    name = resolved.name if resolved.is_dir() else resolved.name.partition(".")[0]
    return name or "dataset"
