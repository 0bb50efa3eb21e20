"""Files of tables: what can be asked of one, reading it, and what pyarrow says of damaged ones."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from shardkit.errors import CorpusError, FormatError
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path


class ClosedFile(io.RawIOBase):
    """A file that is open only while it is read: a table may be kept from call to call, and leaves
    no descriptor behind however its user ends. For pyarrow, which reads a megabyte at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

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
    try:
        yield
    except (FormatError, CorpusError):
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        RuntimeError,
        EOFError,
        KeyError,
        IndexError,
        OverflowError,
        MemoryError,
    ) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        what = str(error).partition("\n")[0] or type(error).__name__
        raise FormatError(f"is damaged: {what}; fetch or write it again"[:400]) from error


class Table(Protocol):
    """A file of rows. Methods raise what pyarrow raises: see
    :func:`arrow_errors`.

    Attributes:
        schema: as pyarrow has it. starts: rows at which reading can begin; the first is 0.
    """

    schema: Any
    starts: list[int]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        """(rows, bytes of those columns) of consecutive pieces of the file."""

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        """Rows from ``starts[part]`` on: record batches that have those columns, end to end."""

    def paths(self, column: str, part: int) -> Iterator[Any]:
        """Of a column of ``{bytes, path}``: arrays of structs that have ``path``, whatever else,
        end to end; none if no row of that part lacks its bytes."""
