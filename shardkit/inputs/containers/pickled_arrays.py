"""Arrays of Python objects, which ``.npy`` files hold as pickles: never read, and left out where
they are not among the columns that are chosen. Lines of Python make plain arrays of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.endings import NPZ
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path

PICKLED = "it holds pickled Python objects, which are never read"
"""Why such an array is left out."""

_MOST_OTHERS = 8
"""Columns beside one of pickles that are listed as what ``--fields`` can choose."""


def refuse_pickles(path: Path, name: str, others: Sequence[str]) -> None:
    """Raise CorpusError, with lines of Python as its note. ``path``: the ``.npy``, or the ``.npz``
    in which ``name`` lies. ``others``: the columns beside it that are plain."""
    is_listed = 0 < len(others) <= _MOST_OTHERS
    apart = f"; or choose the others: --fields {','.join(others)}" if is_listed else ""
    error = CorpusError(
        f"{show_path(path)}: {name} holds pickled Python objects, which can run any code when"
        " they are opened, so shardkit never reads them; if you trust whoever made it, the"
        f" lines below, run there, make it safe: pack the plain- file in its place{apart}"
    )
    end = _OF_NPZ if extension(path.name) == NPZ else _OF_NPY
    error.add_note(_PLAIN + end.format(old=path.name, made=f"plain-{path.stem}"))
    raise error


_PLAIN = """\
import json, numpy as np
def text(value):
    try:
        return json.dumps(value, default=lambda x: getattr(x, "tolist", lambda: repr(x))())
    except (TypeError, ValueError):
        return repr(value)
def plain(name, held):
    held = held.item() if getattr(held, "shape", 0) == () else held
    is_list = isinstance(held, (list, tuple))
    held = np.fromiter(held, object, len(held)) if is_list else np.asarray(held)
    if not held.dtype.hasobject:
        return held
    fields, rows = held.dtype.names, held.reshape(-1).tolist()
    try:
        new = np.array(held.tolist())
        is_good = new.dtype.kind != "U" or all(isinstance(row, str) for row in rows)
        if is_good and not fields and not new.dtype.hasobject:
            return new
    except ValueError:
        pass  # rows of several lengths
    print(name, "becomes json text: its values are not of one kind and length")
    texts = [text(dict(zip(fields, row)) if fields else row) for row in rows]
    return np.array(texts).reshape(held.shape)
"""
"""What it returns holds no objects, whatever was in it: else the file that it makes would be
refused with the same lines again. A number among strings would become one."""

_OF_NPZ = """\
old = np.load({old!r}, allow_pickle=True, encoding="latin1")
np.savez({made!r}, **{{name: plain(name, old[name]) for name in old}})"""
"""Python 2 wrote some of such files, whose strings ``latin1`` reads."""

_OF_NPY = """\
old = np.load({old!r}, allow_pickle=True, encoding="latin1")
old = old.item() if old.shape == () else old
if isinstance(old, dict):
    np.savez({made!r}, **{{str(key): plain(key, old[key]) for key in old}})
else:
    np.save({made!r}, plain({old!r}, old))"""
