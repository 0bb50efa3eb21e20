"""Every tensor in a nested batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any


def map_tensors(batch: Any, change: Callable[[Any], Any]) -> Any:
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


def pinned(tensor: Any) -> Any:
    """In pinned memory, if it is the CPU's."""
    if tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def _rebuilt(value: Any, walk: Callable[[Any], Any]) -> Any:
    """A dataclass with the same type; its ``__init__`` might refuse or compute: it is not run."""
    out = object.__new__(type(value))
    for each in fields(value):
        object.__setattr__(out, each.name, walk(getattr(value, each.name)))
    return out
