"""Folders of pickles, as CIFAR's, which are refused: to read one may run any code."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path

MAX_FILES = 64
"""Files looked into: a folder of more is hardly one of a few large pickles."""

_ENDINGS = frozenset({"", ".pkl", ".pickle"})

_BEGIN = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""Of a pickle by protocol 2 to 5."""

_LINES = """\
import os, pickle, numpy as np
os.makedirs("plain", exist_ok=True)
for name in {names!r}:
    with open(name, "rb") as file:
        old = pickle.load(file, encoding="latin1")  # a dict of arrays and lists
    np.savez("plain/" + name + ".npz", **{{str(key): np.array(old[key]) for key in old}})"""

_LINES_OF_CIFAR = """\
import glob, os, pathlib, pickle, numpy as np
os.makedirs("plain", exist_ok=True)
load = lambda name: pickle.loads(pathlib.Path(name).read_bytes(), encoding="latin1")
names = {{key.replace("fine_", ""): np.array(held) for key, held in load({meta!r}).items()}}
for split, pattern in {splits!r}.items():
    parts = [load(name) for name in sorted(glob.glob(pattern))]  # dicts of lists, an entry a row
    new = {{key.replace("fine_", ""): np.concatenate([part[key] for part in parts])
           for key in parts[0] if key != "batch_label"}}  # which says what the file is called
    images = new.pop("data").reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    np.savez(f"plain/{{split}}.npz", images=images, **new, **names)"""
"""They make ``train.npz`` and ``test.npz``, where the fine labels of CIFAR-100 are classes."""

_CIFAR = {
    "batches.meta": {"train": "data_batch_*", "test": "test_batch"},
    "meta": {"train": "train", "test": "test"},
}
"""The file of names of CIFAR-10 and CIFAR-100 -> split -> files."""


def refuse_pickles(source: Path, names: Sequence[str], num_known: int) -> None:
    """Refuse a folder with more pickles among ``names``, those at its top, than files that can be
    packed.

    Raises:
        CorpusError: so it is. Its note has lines of Python that make plain files of them.
    """
    there = [name for name in names if extension(name) in _ENDINGS]
    if not num_known < len(there) <= MAX_FILES:
        return
    pickles = [name for name in there if _is_pickle(source / name)]
    if len(pickles) <= num_known:
        return
    error = CorpusError(
        f"{show_path(source)} holds pickles ({show_path(pickles[0])}, ...), which shardkit never"
        " reads, since they may run any code; if you trust whoever made them, these lines, run"
        f" there, make plain files of them: then pack {show_path(source / 'plain')}"
    )
    error.add_note(_lines_for(pickles, names))
    raise error


def _lines_for(pickles: Sequence[str], names: Sequence[str]) -> str:
    for meta, splits in _CIFAR.items():
        parts = [fnmatch.filter(pickles, pattern) for pattern in splits.values()]
        if meta in names and all(parts) and {*pickles} - {meta} == {*chain(*parts)}:
            return _LINES_OF_CIFAR.format(meta=meta, splits=splits)
    return _LINES.format(names=[*pickles])


def _is_pickle(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) in _BEGIN
    except OSError:
        return False
