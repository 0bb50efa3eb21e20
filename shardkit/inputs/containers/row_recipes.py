"""What to do about rows that lie apart: the columns of a sample in files of their own, or a class a
file. Messages, and lines of Python that join them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.containers.column_names import title
from shardkit.inputs.containers.row_columns import ArrayColumn, is_label_column
from shardkit.inputs.containers.row_files import ATTRIBUTES
from shardkit.inputs.containers.row_layout import RowLayout, RowSet
from shardkit.inputs.endings import HDF5_EXTENSIONS, NPZ
from shardkit.inputs.names import extension
from shardkit.samples.split_names import split_word
from shardkit.system.paths import first_few, show_path

_MADE = "joined"
"""The folder that the lines make."""

_Parts = dict[str, tuple[str, str]]
"""What columns are to be called -> the file of each, and its name in there."""


# --- columns in files of their own --------------------------------------------------------


def refuse_columns_apart(source: Path, layout: RowLayout) -> None:
    """Raise CorpusError, with lines of Python as its note, if the files of each split hold other
    columns of as many rows: ``train_x.h5`` beside ``train_y.h5``. Nobody knows whether they belong
    together, and packed apart, labels would have no pictures."""
    splits: dict[str, list[RowSet]] = {}
    for each in layout.sets:
        splits.setdefault(each.split if each.is_told else "all", []).append(each)
    joined = {split: _joined(own) for split, own in splits.items()}
    endings = {extension(each.base) for each in layout.sets}
    are_apart = all(joined.values()) and any(len(own) > 1 for own in splits.values())
    if not are_apart or not (endings <= HDF5_EXTENSIONS or endings == {NPZ}):
        return
    ending = ".npz" if endings == {NPZ} else ".h5"
    one, other, *_ = next(own for own in splits.values() if len(own) > 1)
    lost = _left_behind(layout)
    error = CorpusError(
        f"{show_path(source / other.base)} is built otherwise than {show_path(source / one.base)},"
        " and has as many rows: if row by row they belong together, the lines below, run in"
        f" {show_path(source)}, make {first_few([f'{split}{ending}' for split in joined])} of them"
        f" in {_MADE}: then pack {show_path(source / _MADE)}; else pack them apart"
        f"{f'; the lines leave out {lost}' if lost else ''}"
    )
    files = [f"    {split!r}: {parts!r}," for split, parts in joined.items()]
    lines = _LINES_OF_NPZ if ending == ".npz" else _LINES_OF_HDF5
    error.add_note("\n".join(["files = {", *files, "}", lines]))
    raise error


_LINES_OF_HDF5 = f"""\
import h5py, os
os.makedirs("{_MADE}", exist_ok=True)
for split, columns in files.items():
    with h5py.File(f"{_MADE}/{{split}}.h5", "w") as new:
        for column, (file, name) in columns.items():
            with h5py.File(file) as old:
                old.copy(name, new, column)"""

_LINES_OF_NPZ = f"""\
import numpy as np, os
os.makedirs("{_MADE}", exist_ok=True)
for split, columns in files.items():
    new = {{column: np.load(file)[name] for column, (file, name) in columns.items()}}
    np.savez(f"{_MADE}/{{split}}.npz", **new)"""


def _left_behind(layout: RowLayout) -> str:
    """What the lines do not take, in words; arrays take their attributes along."""
    columns = [column for each in layout.sets for column in each.columns.values()]
    names = {name for name, _ in layout.left_out} | {each.name for each in layout.lists}
    return first_few(sorted(names - {ATTRIBUTES + column.name for column in columns}))


def _joined(sets: Sequence[RowSet]) -> _Parts:
    """The columns of files of one split, as those of one file; none if they cannot be."""
    columns = [(each.base, column) for each in sets for column in each.columns.values()]
    names = [title(column.name) for _, column in columns]
    if len({*names}) == 1 and len({column.row for _, column in columns}) > 1:
        names = _words_of([base for base, _ in columns])
    is_good = len({*names}) == len(columns) and len({each.num_rows for each in sets}) == 1
    found = zip(names, columns, strict=True)
    return {n: (base, c.name) for n, (base, c) in found} if is_good else {}


def _words_of(bases: Sequence[str]) -> list[str]:
    """The words of each file's name that not all have: ``images`` and ``labels``. None at all if
    one is a number, as of shards."""
    words = [re.findall("[a-z0-9]+", base.rpartition(".")[0].lower()) for base in bases]
    shared = set.intersection(*map(set, words))
    names = ["_".join(word for word in own if word not in shared) for own in words]
    return names if all(names) and not re.search("[0-9]", "".join(names)) else []


# --- a class a file -----------------------------------------------------------------------


def refuse_classes_apart(columns: Sequence[ArrayColumn], where: str) -> list[str]:
    """Raise CorpusError, with lines of Python as its note, if ``.npy`` files of a folder have rows
    of one kind and not as many: they are no columns, and may be classes. Where they have as many,
    what there is to say."""
    kinds = {column.row for column in columns}
    told = [column for column in columns if split_word(title(column.name)) is not None]
    is_plain = all(c.how == "npy" and not is_label_column(c) for c in columns)
    num_long = sum(column.num_rows > 1 for column in columns)  # the others may be means
    if num_long < 2 or len(kinds) > 1 or len(told) == len(columns) or not is_plain:
        return []
    listed = first_few([f"{c.name} {c.shape}" for c in columns])
    if len({column.num_rows for column in columns}) == 1:
        return [
            f"{listed} are columns: each sample has a row of each; if each file is a class, join"
            " them, as docs/your-data.md says"
        ]
    error = CorpusError(
        f"{where} holds arrays of several lengths and one kind of row ({listed}), which are no"
        " columns of one sample; if each file is a class, the lines below, run there, join them"
        f" with labels and names of classes: then pack {where}/{_MADE}; else choose with --fields"
    )
    error.add_note(LINES_OF_CLASSES)
    raise error


LINES_OF_CLASSES = f"""\
import os, numpy as np
names = sorted(name for name in os.listdir() if name.endswith(".npy") and name[0] != ".")
parts = [np.load(name, mmap_mode="r") for name in names]  # a class each
shape = sum(map(len, parts)), *parts[0].shape[1:]
os.makedirs("{_MADE}", exist_ok=True)
new = np.lib.format.open_memmap("{_MADE}/data.npy", "w+", parts[0].dtype, shape)
np.concatenate(parts, out=new)
new.flush()
np.save("{_MADE}/labels.npy", np.repeat(np.arange(len(parts)), [len(part) for part in parts]))
np.save("{_MADE}/class_names.npy", [name[:-4] for name in names])"""
"""They hold no array in memory: those of Quick, Draw! are 38 GB."""
