"""The seam every container format stands behind.

A format only *writes*: it lays one shard's values into files and says where each value lies.
Reading needs no format at all: a shard is a file, and the row index holds byte ranges in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from shardkit.samples.encoding import Encoding
from shardkit.samples.sample import Value

Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Extents:
    """Where one field's stored values lie in the shard's file.

    ``start`` and ``size`` are (num_samples,) int64, in bytes; size is -1 where the field is absent.
    """

    start: Places
    size: Places
    encoding: Encoding


class Format(Protocol):
    """One container format. Stateless; safe to use from any thread or process."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]]

    def file_of(self, stem: str, field: str) -> str:
        """Name of the file that holds ``field`` of the shard ``stem`` (``train-00000``)."""

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
