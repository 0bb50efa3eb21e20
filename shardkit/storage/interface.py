"""The seam between the read path and the bytes of a dataset, wherever they lie.

A dataset is a set of files with names. Files of the index are taken whole, those of shards by
ranges. :class:`shardkit.storage.local_files.Folder` is a folder that the system can open; whatever
can read ranges of bytes may stand behind the same seam.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardkit.arrays import Array, Bytes, Integers


@dataclass(frozen=True)
class Turn:
    """When something will be read.

    Attributes:
        loop: the name that a loop gave itself. step: its batches, counted over epochs.
    """

    loop: str
    step: int


class Storage(Protocol):
    """The files of one dataset, by name.

    It keeps nothing open, and names, not handles, are all that it holds: so it pickles, and is used
    by several threads, by a forked child, and by a process that unpickled it.

    Errors of all methods: ShardMissingError for a file that is not there; IndexFileError for one
    that is no regular file, or has another size than expected; StorageError where the system, or
    the network, refuses. Their messages name the file.
    """

    def contents(self, name: str, num_bytes: int, *, copied: bool = False) -> memoryview:
        """Return all bytes of a file that should have ``num_bytes``: read-only, and good as long as
        somebody refers to them. With ``copied`` they are the caller's own, unless they are many
        (a table of rows that each process copied would fill the memory)."""
        ...

    def size(self, name: str) -> int:
        """Return how many bytes a file has now."""
        ...

    def files(self, names: Sequence[str], sizes: Sequence[int], *, copied: bool = False) -> Files:
        """Return files to read ranges of, numbered as they are listed here. Opens none.

        Args:
            sizes: bytes that each should have. copied: what is read is the caller's own, so that
                whoever writes to a file later does not change it.
        """
        ...

    def show(self, name: str) -> str:
        """Return what a message calls a file."""
        ...


@runtime_checkable
class Foresees(Protocol):
    """A :class:`Storage` from which reading is cheaper for who tells far ahead what will be read,
    by :meth:`Files.announce` with a turn, in order."""

    def reached(self, turn: Turn, *, is_resting: bool) -> bool:
        """Say that a loop needs nothing more of the steps before this one; and whether it has
        ended, and may go on later. Returns whether all that it told is still known: otherwise it
        tells anew, under another name."""
        ...


class Files(Protocol):
    """Numbered files, of which ranges of bytes are read.

    - A file is opened when something of it is first asked for, and may be closed at any time, to be
      opened again later.
    - Threads share it: all methods may be called at once.
    - A forked child may use what its parent opened, while the parent does so, too. It is not
      pickled; another process asks its own :class:`Storage` for its own files.
    - Who asks has checked that ranges lie inside :attr:`sizes`. They may be empty, overlap, repeat,
      and come in any order.
    - Bytes that were given out are read-only, and good as long as somebody refers to them, whatever
      has been closed since.
    - Errors are those of :class:`Storage`; and FormatError for a file that was cut short after it
      was opened, and MemoryError for more bytes than there is memory. They come from the call, or
      from those of what it returns.

    Attributes:
        sizes: (F,) int64, the bytes that each file should have.
    """

    sizes: Integers

    def read(self, numbers: Integers, starts: Integers, sizes: Integers) -> Ranges:
        """Read ranges: (B,) int64 each, number of the file, first byte, and number of bytes.

        All of a batch are asked for at once, so that they can be fetched at once. This may return
        before they have been.
        """
        ...

    def piece(self, number: int, start: int, stop: int) -> Sliceable:
        """Return bytes [start, stop) of one file, to be read part by part, each when asked for.
        Callers that will want several :meth:`announce` them: they can be fetched at once."""
        ...

    def announce(
        self, numbers: Integers, starts: Integers, sizes: Integers, turn: Turn | None = None
    ) -> None:
        """Say that these ranges, (B,) each, will be read soon; or at that turn, to a storage that
        :class:`Foresees`. Returns at once."""
        ...

    def is_cold(self) -> bool:
        """Return True if announcing pays now, because bytes have lately come from further away than
        memory. It is asked once a batch, and takes less time than finding out what to announce."""
        ...


class Ranges(Protocol):
    """B ranges of bytes that were asked for. All methods wait until the bytes are there, and may
    be called again, for the same bytes."""

    def slices(self) -> list[memoryview]:
        """Return the bytes of each."""
        ...

    def copy_to(self, out: Bytes) -> None:
        """Write the bytes of all, end to end, into ``out``: (N,) uint8, just as many."""
        ...

    def widen_to(self, out: Array, dtype: np.dtype[Any]) -> None:
        """Write the numbers of all, end to end, into ``out``: (N,) signed integers of 4 or 8 bytes,
        just as many. In the files they have this dtype, unsigned, of no more bytes."""
        ...

    def joined(self, size: int) -> Bytes:
        """Return (B, size) uint8: the bytes of all in one array, which is the caller's to write to;
        each has this size."""
        ...


class Sliceable(Protocol):
    """Bytes of one file. Slices, which have no step, are cut off at its end, as those of bytes."""

    def __getitem__(self, wanted: slice, /) -> bytes | memoryview: ...
