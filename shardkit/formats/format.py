"""The seam every container format stands behind.

A format only *writes*: it lays one shard's values into files and says where each value lies.
Reading needs no format at all: a shard is a file, and the row index holds byte ranges in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from shardkit.arrays import Integers
from shardkit.samples.encoding import Encoding
from shardkit.samples.sample import Value


@dataclass(frozen=True)
class Extents:
    """Where one field's stored values lie in the shard's file.

    ``start`` and ``size`` are (num_samples,) int64, in bytes; size is -1 where the field is absent.
    """

    start: Integers
    size: Integers
    encoding: Encoding


@dataclass(frozen=True)
class Listed:
    """Every value of a shard in order of row and field, keys included, as the file itself lists
    them: all three (num_values,) int64, in bytes."""

    start: Integers
    size: Integers
    key_size: Integers


class Format(Protocol):
    """One container format, which derives from this. Stateless; safe to use from any thread or
    process.

    Attributes:
        name: what ``--to`` and ``shardkit.json`` call it. aliases: what ``--to`` also takes.
        suffix: ending of its files, without a dot.
        library: the package that reads its files where shardkit is not there.
        has_typed_arrays: whether arrays of one shape become one typed array, so that a shape that
            differs is noticed while packing.
        compresses_from: bytes of the smallest array of fixed shape that ``compression`` is for;
            None if it is for none.
        has_dali_reader: whether DALI reads the shards by itself, given an index of its own.
        signpost_names: what :meth:`signposts` may call its files.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    suffix: ClassVar[str]
    library: ClassVar[str]
    has_typed_arrays: ClassVar[bool] = False
    compresses_from: ClassVar[int | None] = None
    has_dali_reader: ClassVar[bool] = False
    signpost_names: ClassVar[frozenset[str]] = frozenset()

    def open_with(self, path: str) -> str:
        """The line of Python that opens one file of a shard with :attr:`library`."""

    def example(self, folder: str, stems: Sequence[str], field: str, encoding: Encoding) -> str:
        """Lines of Python that read a field of the first sample with :attr:`library` alone.

        Args:
            folder: of the dataset. stems: of all shards of a split (``train-00000``), in order.
            field: one that the first row of the first of them has. encoding: how it lies there.
        """

    def signposts(self, fields: Sequence[str], classes: Sequence[str] | None) -> dict[str, bytes]:
        """Files to lie beside the shards, which tell other tools what these are: name -> contents.
        Equal arguments give equal bytes."""
        return {}

    def file_of(self, stem: str, field: str) -> str:
        """Name of the file that holds ``field`` of the shard ``stem`` (``train-00000``)."""
        return f"{stem}.{self.suffix}"

    def write(
        self,
        folder: Path,
        stem: str,
        keys: list[bytes],
        columns: dict[str, list[Value | None]],
        compression: int | None,
    ) -> dict[str, Extents]:
        """Write the shard's files into ``folder`` (not synced) and say where each value lies.

        ``columns`` are in sorted order of field name. Equal input gives equal bytes.
        ``compression`` is a zlib level for arrays of fixed shape, in formats that can.
        """
