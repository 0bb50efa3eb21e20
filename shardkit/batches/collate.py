"""From columns of values to named tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import UsageError
from shardkit.memory import buffers
from shardkit.shards.joined import Joined, lay_out, offsets_of

Batch = dict[str, Any]

OFFSETS = ".offsets"


class Shifted(dict[str, Any]):
    """Columns ``inputs`` and ``labels`` of (B, n + 1) windows: all but the last of each, and all
    but the first. As tensors, too, they are two views of one buffer.

    It is said, not found out: to see that of any two arrays took 3 us more, of 31 that a batch of
    tokens took.

    Args:
        windows: owns its memory, which torch can use.
    """

    def __init__(self, windows: Array) -> None:
        inputs, labels = windows[:, :-1], windows[:, 1:]
        super().__init__(inputs=inputs, labels=labels)
        self._made = windows, inputs, labels

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # elsewhere they are arrays of their own

    def tensors(self) -> Batch:
        """Nothing if a column was replaced since."""
        import torch

        windows, inputs, labels = self._made
        if self.get("inputs") is not inputs or self.get("labels") is not labels:
            return {}
        whole = torch.from_numpy(windows)
        shape, stride = inputs.shape, whole.stride()
        return {
            "inputs": whole.as_strided(shape, stride, 0),
            "labels": whole.as_strided(shape, stride, 1),
        }


def collate(columns: dict[str, Any], as_buffer: Sequence[str] = ()) -> Batch:
    """Columns of B values each, as tensors where they can be.

    Arrays and tensors of one shape and dtype become one tensor (B, ...), others a list of tensors.
    Numbers become one tensor (B,): Python's of int64, float64 or bool, NumPy's of their own dtype.
    Bytes become a list of ``bytes``, or, for the fields in ``as_buffer``, one (N,) uint8 tensor
    with their (B + 1,) int64 ``{field}.offsets``. Everything else, and fields that some sample
    lacks, stay lists. :class:`Shifted` are two views of one tensor.

    Raises:
        UsageError: a field in ``as_buffer`` is not there, or holds no bytes. A field has numbers of
            several dtypes, or an int that int64 cannot hold: what its tensor's dtype would be
            depends on which samples are in the batch.
    """
    missing = [name for name in as_buffer if name not in columns]
    if missing:
        raise UsageError(f"as_buffer: no field {min(missing)!r} here, only {', '.join(columns)}")
    batch: Batch = {}
    views = columns.tensors() if isinstance(columns, Shifted) else {}
    for name, values in columns.items():
        if name in as_buffer:
            batch[name], batch[name + OFFSETS] = _one_buffer(name, values)
        else:
            batch[name] = views[name] if name in views else _column(name, values)
    return batch


def _column(name: str, values: Any) -> Any:
    import torch

    if isinstance(values, np.ndarray):
        return torch.from_numpy(_own(values)) if _is_numeric(values.dtype) else list(values)
    if isinstance(values, torch.Tensor):
        return values.detach()  # one that needs a gradient cannot leave a worker process
    kinds = {type(value) for value in values}
    if kinds <= {memoryview, bytes, bytearray, type(None)}:
        return [None if value is None else bytes(value) for value in values]
    if kinds and all(issubclass(kind, torch.Tensor) for kind in kinds):
        plain = [value.detach().as_subclass(torch.Tensor) for value in values]
        return torch.stack(plain) if _same_shape(plain) else plain
    if kinds == {np.ndarray} and _same_shape(values) and _is_numeric(values[0].dtype):
        return torch.from_numpy(_own(np.stack(values)))
    if kinds == {np.ndarray}:
        _refuse_dtypes(name, values)
    if kinds <= {np.ndarray, type(None)}:
        return [_tensor(value) for value in values]
    if all(kind in _PYTHONS or issubclass(kind, np.generic) for kind in kinds):
        return _numbers(name, values, kinds)
    return values


_PYTHONS: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}
"""Python's numbers, and NumPy's that hold them."""


def _numbers(name: str, values: Sequence[Any], kinds: set[type]) -> Any:
    """A tensor, or the list if torch has no such numbers."""
    import torch

    dtypes = {np.dtype(_PYTHONS.get(kind, kind)) for kind in kinds}
    if not all(_is_numeric(dtype) for dtype in dtypes):
        return values
    if len(dtypes) > 1:
        raise _several(name, dtypes)
    try:
        return torch.from_numpy(np.array(values, dtypes.pop()))
    except OverflowError as error:
        raise UsageError(
            f"field {name!r} has an integer that int64 cannot hold: {error}; make it a str or a"
            " float, in a transform or where it is packed"
        ) from error


def _refuse_dtypes(name: str, arrays: Sequence[Array]) -> None:
    """Raise UsageError for arrays of one shape that only their dtypes keep from being a tensor."""
    dtypes = {value.dtype for value in arrays}
    if len({value.shape for value in arrays}) == 1 and all(map(_is_numeric, dtypes)):
        raise _several(name, dtypes)


def _several(name: str, dtypes: set[np.dtype[Any]]) -> UsageError:
    found = " and ".join(sorted(str(dtype) for dtype in dtypes))
    return UsageError(
        f"field {name!r} has {found} values in one batch: its dtype would depend on which samples"
        " meet; make them of one type, in a transform or where they are packed"
    )


def _one_buffer(name: str, values: Sequence[Any] | Joined) -> tuple[Any, Any]:
    import torch

    if isinstance(values, Joined):
        return torch.from_numpy(values.data), torch.from_numpy(values.offsets)
    if not all(isinstance(value, (memoryview, bytes, bytearray, type(None))) for value in values):
        raise UsageError(f"as_buffer: field {name!r} holds no bytes")
    offsets = offsets_of([0 if value is None else len(value) for value in values])
    out = buffers.empty(int(offsets[-1]), np.uint8)
    lay_out(values, offsets, out.data)
    return torch.from_numpy(out), torch.from_numpy(offsets)


def _tensor(value: Any) -> Any:
    import torch

    if value is None or not _is_numeric(value.dtype):
        return value
    return torch.from_numpy(_own(value))


def _own(values: Array) -> Array:
    """Writable, contiguous memory in this machine's byte order, as torch wants it."""
    if values.dtype.isnative and values.flags.writeable and values.flags.c_contiguous:
        return values
    return np.array(values, values.dtype.newbyteorder("="))


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Whether torch has such numbers; it has no long double."""
    return dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def _same_shape(values: Sequence[Any]) -> bool:
    return len({(value.shape, value.dtype) for value in values}) == 1
