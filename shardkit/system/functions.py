"""Functions that a command names: ``file.py:name`` or ``module:name``."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from shardkit.errors import UsageError


def load_function(given: str, option: str) -> Callable[[Any], Any]:
    """Return the function that an option names.

    A file's module is not registered, so that its functions are pickled by value.

    Raises:
        UsageError: it cannot be imported, or is no function.
    """
    where, _, name = given.rpartition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location("_shardkit_loaded", where)
            if spec is None or spec.loader is None:
                raise ImportError(f"{where} is no Python file")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        found = getattr(module, name)
    # Whatever a user's file raises while it is read, this is what they need to know.
    except Exception as error:
        raise UsageError(
            f"{option} {given!r}: expected file.py:function or module:function:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise UsageError(f"{option} {given!r} is no function")
    function: Callable[[Any], Any] = found
    return function
