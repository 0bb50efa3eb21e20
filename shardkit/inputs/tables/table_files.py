"""Files of tables: Parquet and streams of Arrow, and what pyarrow says of damaged ones.

pyarrow is imported when a file is opened: a dataset can be read without it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, FormatError, ShardkitError
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path

BATCH_BYTES = 8 << 20
"""About how much of the columns is decoded at a time, by the mean of their row group."""

MAX_BATCH_ROWS = 4096


class ClosedFile:
    """A file that is open only while it is read: a table may be kept from call to call, and leaves
    no descriptor behind however its user ends. For pyarrow, which reads a megabyte at a time."""

    closed = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            left = max(os.fstat(file.fileno()).st_size - self._at, 0)
            data = pread(file.fileno(), left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Import pyarrow, and turn what it raises of a damaged file into a FormatError, which does not
    name it. What the system refused stays an OSError."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise CorpusError(
            f"{show_path(path)} needs the pyarrow library: pip install 'shardkit[parquet]'"
        ) from error
    bad = (pa.ArrowException, OSError, ValueError, RuntimeError, EOFError, LookupError, MemoryError)
    odd = (TypeError, AttributeError, OverflowError)  # features in the schema may be any JSON
    try:
        yield
    except ShardkitError:
        raise
    except (*bad, *odd) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        what = str(error).partition("\n")[0] or type(error).__name__
        raise FormatError(f"is damaged: {what}; fetch or write it again"[:400]) from error


class ParquetTable:
    """A Parquet file. Methods raise what pyarrow raises: see :func:`arrow_errors`.

    Attributes:
        schema: as pyarrow has it. starts: rows at which reading can begin, those of row groups.
    """

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        # A buffer: else a row group's whole column is read before its first page is decoded.
        self._file = parquet.ParquetFile(ClosedFile(path), buffer_size=1 << 20, pre_buffer=False)
        self.schema: Any = self._file.schema_arrow
        meta = self._file.metadata
        self._groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        self.starts = [*accumulate((group.num_rows for group in self._groups), initial=0)][:-1]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Return (rows, bytes of those columns) of consecutive pieces of the file."""
        return [(group.num_rows, _num_bytes(group, columns)) for group in self._groups]

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        """Return record batches that have those columns, from row ``starts[part]`` to the end of
        that part."""
        group = self._groups[part]
        rows = BATCH_BYTES * group.num_rows // max(_num_bytes(group, columns), 1)
        batches: Iterator[Any] = self._file.iter_batches(
            batch_size=min(max(rows, 1), MAX_BATCH_ROWS),
            row_groups=[part],
            columns=[*columns],
            use_threads=False,
        )
        return batches


def _num_bytes(group: Any, columns: Sequence[str]) -> int:
    # A column's name may have dots, which stand between the parts of a path, too.
    starts = tuple(f"{column}." for column in columns)
    leaves = map(group.column, range(group.num_columns))
    sizes = [
        leaf.total_uncompressed_size
        for leaf in leaves
        if f"{leaf.path_in_schema}.".startswith(starts)
    ]
    return max(int(sum(sizes)), 0)


class ArrowTable:
    """A stream of Arrow, as ``save_to_disk`` writes it: a table of one part, that can be read from
    its start alone."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._arrow = pa
        self._path = path
        self.schema: Any = pa.ipc.open_stream(ClosedFile(path)).schema
        self.starts = [0]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        with self._arrow.memory_map(os.fsencode(self._path)) as mapped:  # nothing is read
            return [(batch.num_rows, batch.nbytes) for batch in self._batches(mapped, columns)]

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        return self._batches(ClosedFile(self._path), columns)

    def _batches(self, source: Any, columns: Sequence[str]) -> Iterator[Any]:
        wanted = sorted(self.schema.names.index(column) for column in columns)
        ipc = self._arrow.ipc
        options = ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
        yield from ipc.open_stream(source, options=options)


Table = ParquetTable | ArrowTable
