"""A transform in words: its name and what it was given, the same in every process."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Array

MOST = 300
"""Characters; of more a hash is kept."""

_MOST_VALUES, _MOST_LEVELS = 64, 8
"""Of a list, and of lists in lists; of what is beyond there is a hash, or a name."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)


def in_words(transform: Callable[..., Any]) -> str:
    """What a loop that is resumed should have the same of, or other samples come.

    Its own word, if it has an attribute ``words``; a function's name, without its module, which may
    be run as a script; what a partial or a dataclass was given; else its ``repr``, if it has one of
    its own, without addresses; else its type's name. What a closure holds is not seen.
    """
    text = in_words_of(transform)
    if len(text) <= MOST:
        return text
    return f"{text[:MOST]}... {xxhash.xxh3_64_hexdigest(text.encode())}"


def in_words_of(value: Any, level: int = 0) -> str:
    """Return any value in words, and arrays as a hash: equal values have equal words."""
    own = getattr(value, "words", None)
    if isinstance(own, str):
        return own
    if isinstance(value, functools.partial):
        return _call(in_words_of(value.func, level + 1), value.args, value.keywords, level)
    if hasattr(value, "__self__") and hasattr(value, "__func__"):
        return f"{in_words_of(value.__self__, level + 1)}.{value.__name__}"
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    if level > _MOST_LEVELS:
        return type(value).__qualname__
    if is_dataclass(value):
        given = {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
        return _call(type(value).__qualname__, (), given, level)
    return _of_data(value, level)


def _of_data(value: Any, level: int) -> str:
    if type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach"):
        return f"{value.dtype} {_of_data(_bytes_of(value), level)} {list(value.shape)}"
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return f"{list(value.shape)} {_of_data(value.ravel().tolist(), level)}"
        digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(value).tobytes())
        return f"{value.dtype}{list(value.shape)} {digest}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_some([in_words_of(each, level + 1) for each in value]))})"
    if isinstance(value, set | frozenset):
        return f"({', '.join(_some(sorted(in_words_of(each, level + 1) for each in value)))})"
    if isinstance(value, dict):
        return _call("", (), value, level)
    if type(value).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        return type(value).__qualname__
    return _ADDRESS.sub("", repr(value))


def _some(words: list[str]) -> list[str]:
    """The first of many, and a hash of all."""
    beyond = len(words) - _MOST_VALUES
    if beyond <= 0:
        return words
    digest = xxhash.xxh3_64_hexdigest(repr(words).encode())
    return [*words[:_MOST_VALUES], f"and {beyond} more {digest}"]


def _bytes_of(tensor: Any) -> Array:
    """Those of a torch tensor of any dtype, as (N,) uint8."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return np.asarray(flat.view(sys.modules["torch"].uint8).numpy())


def _call(name: str, args: tuple[Any, ...], given: dict[Any, Any], level: int) -> str:
    named = [f"{key}={in_words_of(value, level + 1)}" for key, value in given.items()]
    return f"{name}({', '.join([*(in_words_of(each, level + 1) for each in args), *named])})"
