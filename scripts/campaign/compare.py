"""Whether two values are the same, to the bit: samples, batches, trees of files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def same(a: Any, b: Any) -> bool:
    """Tensors compare as arrays, and everything that has a buffer as bytes; NaN equals itself."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    a, b = _plain(a), _plain(b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
            return False
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def _plain(value: Any) -> Any:
    if hasattr(value, "numpy") and hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    return value


def tree(folder: Path) -> dict[str, bytes | str]:
    """Relative path -> contents of every file below a folder; of a link, where it leads."""
    found: dict[str, bytes | str] = {}
    for at, folders, files in os.walk(folder):
        for name in (*files, *folders):
            path = Path(at, name)
            key = os.fsdecode(os.fsencode(path.relative_to(folder)))
            if path.is_symlink():
                found[key] = f"-> {os.readlink(path)}"
            elif path.is_file():
                found[key] = path.read_bytes()
            elif not any(path.iterdir()):
                found[key + "/"] = "an empty folder"
    return found


def difference(got: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """How two trees differ, in words; empty if they do not."""
    missing = sorted(expected.keys() - got.keys())
    extra = sorted(got.keys() - expected.keys())
    other = sorted(name for name in got.keys() & expected.keys() if got[name] != expected[name])
    words = [
        f"{what} {', '.join(names[:4])}{' ...' * (len(names) > 4)}"
        for what, names in (("missing:", missing), ("left over:", extra), ("differs:", other))
        if names
    ]
    return "; ".join(words)
