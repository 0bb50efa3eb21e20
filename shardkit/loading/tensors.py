"""Every tensor in a nested batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

Change = Callable[[Any], Any]


def map_tensors(batch: Any, change: Change) -> Any:
    """A copy of a batch with each tensor changed: in dicts, lists, tuples (named ones too) and
    dataclasses, at any depth. Whatever else is in it stays as it is.
    """
    import torch

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, dict):
            return {name: walk(inner) for name, inner in value.items()}
        if isinstance(value, tuple):
            inner = [walk(each) for each in value]
            return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
        if isinstance(value, list):
            return [walk(each) for each in value]
        if is_dataclass(value) and not isinstance(value, type):
            return _rebuilt(value, walk)
        return value

    return walk(batch)


def move_tensors(batch: Any, move: Change) -> Any:
    """:func:`map_tensors` for a ``move`` that copies values elsewhere as they are.

    Tensors that are views of one storage, which is no larger than they are together, are moved as
    that storage, once, and are views of one again.
    """
    tensors: list[Any] = []
    map_tensors(batch, tensors.append)
    shared = _shared(tensors)
    if not shared:
        return map_tensors(batch, move)
    moved = {key: move(_whole(views[0])) for key, views in shared.items()}

    def change(tensor: Any) -> Any:
        whole = moved.get(_storage(tensor))
        if whole is None:
            return move(tensor)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    return map_tensors(batch, change)


def _shared(tensors: list[Any]) -> dict[Any, list[Any]]:
    """Storage -> the tensors that are views of it, where it should be moved as one."""
    found: dict[Any, list[Any]] = {}
    for tensor in tensors:
        if (key := _storage(tensor)) is not None:
            found.setdefault(key, []).append(tensor)
    return {
        key: views
        for key, views in found.items()
        if len(views) > 1
        and views[0].untyped_storage().nbytes() <= sum(view.nbytes for view in views)
    }


def _storage(tensor: Any) -> Any:
    """What is equal for plain tensors of one storage, read as one dtype; None for others."""
    import torch

    is_plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided
    if not is_plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        return None
    return tensor.device, tensor.dtype, tensor.untyped_storage().data_ptr()


def _whole(view: Any) -> Any:
    """All of a tensor's storage, (N,)."""
    storage = view.untyped_storage()
    return view.as_strided((storage.nbytes() // view.itemsize,), (1,), 0)


def pinned(tensor: Any) -> Any:
    """In pinned memory, if it is the CPU's."""
    if tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def _rebuilt(value: Any, walk: Change) -> Any:
    """A dataclass with the same type; its ``__init__`` might refuse or compute: it is not run."""
    out = object.__new__(type(value))
    for each in fields(value):
        object.__setattr__(out, each.name, walk(getattr(value, each.name)))
    return out
