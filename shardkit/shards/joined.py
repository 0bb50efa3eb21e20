"""Values laid end to end, and where each begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardkit.arrays import Bytes, Integers, Offsets
from shardkit.errors import UsageError
from shardkit.samples.sample import Value


def offsets_of(sizes: Sequence[int] | Integers) -> Offsets:
    """(B + 1,) int64: where values of these sizes begin and end, laid end to end."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


@dataclass(frozen=True, slots=True)
class Joined:
    """The values of B rows end to end: value i is ``data[offsets[i]:offsets[i + 1]]``.

    Attributes:
        data: (N,) uint8, the caller's own. offsets: (B + 1,) int64; absent values are empty.
    """

    data: Bytes
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1


def lay_out(values: Sequence[Value | None], offsets: Integers, out: memoryview) -> None:
    """Copy values end to end into ``out``; ``offsets`` are :func:`offsets_of` their sizes."""
    ends = offsets.tolist()
    for value, start, end in zip(values, ends, ends[1:], strict=False):
        if value is not None:
            out[start:end] = value


def room_for(offsets: Offsets, out: Bytes) -> Bytes:
    """The part of ``out`` that values at these offsets fill. Raises UsageError: it is smaller."""
    if offsets[-1] > len(out):
        raise UsageError(
            f"out has {len(out)} bytes, these {len(offsets) - 1} values need {offsets[-1]}"
        )
    return out[: offsets[-1]]
