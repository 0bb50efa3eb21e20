"""A part of a file that is far away, read slice by slice."""

from __future__ import annotations

import numpy as np

from shardkit.storage.base import Files


class FetchedPiece:
    """Bytes of one file; each slice is read when it is taken."""

    __slots__ = ("_files", "_number", "_start", "_stop")

    def __init__(self, files: Files, number: int, start: int, stop: int) -> None:
        self._files = files
        self._number = number
        self._start = start
        self._stop = stop

    def __getitem__(self, wanted: slice) -> memoryview:
        start, stop, _ = wanted.indices(self._stop - self._start)
        one = np.array([[self._number, self._start + start, max(stop - start, 0)]], np.int64)
        return self._files.read(one[:, 0], one[:, 1], one[:, 2]).slices()[0]
