"""Files of arrays, whose columns hold a row for each sample: ``.npy``, ``.npz`` and HDF5.

What is stored plainly is mapped; what is zipped is unpacked into the work folder, once per pack.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xxhash

from shardkit.arrays import Array
from shardkit.commit.durable_files import appearing
from shardkit.errors import CorpusError, FormatError, ShardkitError
from shardkit.inputs.files import extension, input_stamp
from shardkit.inputs.lines import refuse_bomb
from shardkit.inputs.sample_files import has_label_name
from shardkit.memory.maps import mapped
from shardkit.samples.encoding import (
    MAX_NPY_HEADER,
    holds_pickles,
    npy_header,
    npy_layout,
    parse_npy,
)
from shardkit.samples.sample import Value
from shardkit.samples.split_names import split_word
from shardkit.system.paths import show_path

RECIPES = "docs/recipes/arrays.md"

NPY, NPZ = ".npy", ".npz"
HDF5_EXTENSIONS = frozenset({".h5", ".hdf5", ".he5"})
CONTAINER_EXTENSIONS = frozenset({NPZ}) | HDF5_EXTENSIONS
"""Endings of files that hold several arrays."""

PICKLED = f"it holds pickled Python objects, which are never read: {RECIPES}"

OF_BYTES = f"it holds a text or a file in each row: {RECIPES}"

BLOCK_BYTES = 8 << 20
"""About how much of an array is held at a time."""


def is_container(name: str) -> bool:
    """Return True for files of several arrays, by their names."""
    return extension(name) in CONTAINER_EXTENSIONS


def is_array_name(name: str) -> bool:
    """Return True for files that hold arrays of rows, by their names."""
    return is_container(name) or extension(name) == NPY


@dataclass(frozen=True)
class ArrayColumn:
    """An array as its file has it.

    Attributes:
        name: its name in the file, or its file's name. shape: the first axis is the rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def title(self) -> str:
        """Its name without ``.npy``."""
        return self.name[:-4] if self.name.lower().endswith(".npy") else self.name

    @property
    def short(self) -> str:
        """Its title without a split's word."""
        word = split_word(self.title)
        return word[1] if word else self.title

    @property
    def num_rows(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * prod(self.shape[1:])

    @property
    def is_label(self) -> bool:
        """True if it may hold class numbers: (N,), or (N, 1) as Keras has them."""
        is_number = self.dtype.kind in "iu" and prod(self.shape[1:]) == 1
        return is_number and has_label_name(self.short)

    @property
    def row(self) -> tuple[Any, ...]:
        """A description that must be the same in all files of a split."""
        return self.shape[1:], self.dtype


# --- files of columns ---------------------------------------------------------------------


class ArrayFile:
    """An open file of arrays, or the ``.npy`` files of one folder.

    Attributes:
        columns: arrays that have rows, by name. left_out: name of anything else -> why.
    """

    def __init__(self) -> None:
        self.columns: dict[str, ArrayColumn] = {}
        self.left_out: dict[str, str] = {}
        self._arrays: dict[str, Any] = {}

    def array(self, name: str) -> Any:
        """Return an array, or anything sliced like one. Raises FormatError."""
        if callable(self._arrays[name]):
            self._arrays[name] = self._arrays[name]()
        return self._arrays[name]

    def add(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], array: Any) -> None:
        """Add an array, or a function that opens it, to the columns or to what is left out."""
        self._arrays[name] = array
        vlen = dict(dtype.metadata or {}).get("vlen")  # as h5py marks values of any length
        why = "" if shape else "it has no axis, so no rows"
        if vlen in (str, bytes, np.uint8) or (len(shape) == 1 and dtype.kind in "SUV"):
            why = why or OF_BYTES
        elif dtype.hasobject or dtype.names:
            why = why or f"its values are {dtype}, which no field can hold: {RECIPES}"
        if why:
            self.left_out[name] = why
        else:
            self.columns[name] = ArrayColumn(name, shape, dtype)

    def values(self, name: str, how: str, start: int, stop: int) -> list[Value]:
        """Return what rows [start, stop) of a column become: class numbers in digits, others as
        ``.npy``.

        Raises:
            FormatError: they are damaged.
        """
        with damage():
            rows = self.array(name)[start:stop]
            if how == "cls":
                return [b"%d" % number for number in rows.reshape(-1).tolist()]
            dtype, shape = self.columns[name].dtype, rows.shape[1:]
            head, size = npy_header(dtype.str, shape), dtype.itemsize * prod(shape)
            data = np.ascontiguousarray(rows, dtype).tobytes()
            return [head + data[i * size : (i + 1) * size] for i in range(len(rows))]


@contextmanager
def damage(where: str = "") -> Iterator[None]:
    """Turn what libraries raise about damaged files into FormatError, and put the name of a file
    before what is wrong with it."""
    name = f"{where}: " if where else ""
    try:
        yield
    except (FormatError, CorpusError) as error:
        if str(error).startswith(where):
            raise
        raise type(error)(f"{name}{error}") from error
    except ShardkitError:
        raise
    # A damaged file raises nearly anything: BadZipFile, struct.error, SafetensorError, KeyError ...
    except Exception as error:
        if isinstance(error, OSError) and error.errno:  # the system's, not the library's
            raise
        what = str(error).partition("\n")[0]
        raise FormatError(f"{name}is damaged, or cannot be read here: {what}") from error


# --- opening files ------------------------------------------------------------------------


@contextmanager
def open_arrays(
    path: Path, names: Sequence[str] | None, scratch: Path, stamp: int = 0
) -> Iterator[ArrayFile]:
    """Open a file of arrays, or of a folder the ``.npy`` files of these names.

    Args:
        names: columns that will be read; None for all of a file. scratch: a folder for unpacked
            copies. stamp: the file's, by which its copies are named.

    Raises:
        FormatError: the file is damaged; says which. CorpusError: it cannot be packed as it is.
        OSError.
    """
    file, ending = ArrayFile(), extension(path.name)
    with ExitStack() as stack:
        with damage(show_path(path)):
            if path.is_dir():
                for name in names or ():
                    _add_npy(file, path / name)
            elif ending == NPZ:
                _add_npz(file, path, stack, names, scratch / f"{stamp}")
            elif ending in HDF5_EXTENSIONS:
                _add_hdf5(file, path, stack)
            else:
                _add_npy(file, path)
        yield file


def _open(path: Path) -> BinaryIO:
    input_stamp(path)  # opening a FIFO would block
    return path.open("rb")


def _map_file(path: Path) -> memoryview:
    with _open(path) as file:
        return mapped(file.fileno(), os.fstat(file.fileno()).st_size)


def _add_npy(file: ArrayFile, path: Path) -> None:
    """Add a ``.npy`` file, a column called by the file's name."""
    with damage(show_path(path)):
        view = _map_file(path)
        if holds_pickles(view[:MAX_NPY_HEADER]):
            file.left_out[path.name] = PICKLED
        else:
            array = parse_npy(view)
            file.add(path.name, array.dtype, array.shape, array)


def _add_npz(
    file: ArrayFile, path: Path, stack: ExitStack, names: Sequence[str] | None, scratch: Path
) -> None:
    """Add the members of a zip of ``.npy`` files."""
    held = stack.enter_context(zipfile.ZipFile(stack.enter_context(_open(path))))
    refuse_bomb(sum(info.file_size for info in held.infolist()), path.stat().st_size)
    for info in held.infolist():
        name = info.filename
        if names is not None and name not in names:
            continue
        with held.open(info) as member:
            head = member.read(MAX_NPY_HEADER)
        if holds_pickles(memoryview(head)):
            file.left_out[name] = PICKLED
        elif not name.endswith(".npy"):
            file.left_out[name] = "it is no .npy file"
        else:
            dtype, shape, _ = npy_layout(head)
            file.add(name, dtype, shape, partial(_unpacked, path, held, info, scratch))


def _unpacked(path: Path, held: zipfile.ZipFile, info: zipfile.ZipInfo, scratch: Path) -> Array:
    """Return a member of a zip, from an unpacked copy: zipfile compares its checksum."""
    named = os.fsencode(f"{os.path.abspath(path)}\0{info.filename}")
    done = scratch / f"{xxhash.xxh3_64_hexdigest(named)}.npy"
    if not done.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        with appearing(done) as out, held.open(info) as member:
            shutil.copyfileobj(member, out, BLOCK_BYTES)
    return parse_npy(_map_file(done))


def _add_hdf5(file: ArrayFile, path: Path, stack: ExitStack) -> None:
    """Add every dataset with a first axis, a column called by its path.

    Only what the file itself holds is read: a link, or a dataset whose values lie in other files,
    might lead anywhere.
    """
    import h5py

    _open(path).close()  # what the system refuses is reported in its own words
    held = stack.enter_context(h5py.File(path, "r", locking="best-effort"))
    links: list[bytes] = []
    found: dict[str, Any] = {}
    held.id.links.visit(links.append)  # into each group once: hard links may nest, and lead back
    held.visititems(lambda name, item: found.update({name: item}))  # each once, and no soft link
    for name in sorted({*map(os.fsdecode, links)} - found.keys()):
        file.left_out[name] = "it is a link, or another name of what is there"
    for name, item in found.items():
        if not isinstance(item, h5py.Dataset):
            continue
        if item.is_virtual or item.external:
            file.left_out[name] = "its values lie in other files"
        elif item.shape and item.size and not item.id.get_storage_size():
            file.left_out[name] = "nothing was ever written to it"
        else:
            file.add(name, item.dtype, item.shape, item)
    num_bytes = sum(c.num_rows * c.row_bytes for c in file.columns.values())
    refuse_bomb(num_bytes, held.id.get_filesize())
