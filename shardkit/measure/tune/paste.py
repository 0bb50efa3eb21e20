"""A loader as a line of Python, to paste."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from shardkit import images

_MAKERS = {images.Train: "train", images.Eval: "eval"}


def python_line(batch_size: int, options: dict[str, Any]) -> str:
    """``loader = shardkit.Loader(ds, 64, ...)`` with options that were given."""
    given = [f"{name}={in_python(value)}" for name, value in options.items()]
    return f"loader = shardkit.Loader({', '.join(['ds', str(batch_size), *given])})"


def in_python(value: Any) -> str:
    """What a person would write; the name alone of what has one."""
    if type(value) in _MAKERS:
        return f"shardkit.images.{_MAKERS[type(value)]}({_arguments(value)})"
    if isinstance(value, str):
        return json.dumps(value)
    if callable(value):
        return _name(value)
    return repr(value)


def _name(value: Callable[..., Any]) -> str:
    name = getattr(value, "__name__", "")
    return name if name.isidentifier() else "transform"


def _arguments(transform: Any) -> str:
    """The size, and whatever is not as it is by default."""
    changed = [
        f"{each.name}={in_python(value)}"
        for each in fields(transform)
        if each.name != "size"
        and (value := getattr(transform, each.name)) != each.default
        and each.default is not MISSING
    ]
    return ", ".join([str(transform.size), *changed])
