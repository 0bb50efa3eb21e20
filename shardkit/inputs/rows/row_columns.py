"""Files of arrays, whose columns hold a row for each sample: ``.npy``, idx, ``.safetensors``,
``.npz`` and HDF5.

What is stored plainly is mapped; what is compressed is unpacked into the work folder, once per
pack.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from shardkit.arrays import Array
from shardkit.errors import CorpusError, FormatError, ShardkitError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.files import extension, input_stamp
from shardkit.inputs.lines import plain_copy, refuse_bomb
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
from shardkit.system.durable_files import appearing
from shardkit.system.paths import first_few, show_path
from shardkit.tars.members import GZIP

How = Literal["npy", "txt", "ragged", "picture"]
"""Contents of a row: an array of one shape, a text, an array of any length, or an image file."""

RECIPES = "docs/recipes/arrays.md"

NPY, NPZ, SAFETENSORS = ".npy", ".npz", ".safetensors"
HDF5_EXTENSIONS = frozenset({".h5", ".hdf5", ".he5"})
CONTAINER_EXTENSIONS = frozenset({SAFETENSORS, NPZ}) | HDF5_EXTENSIONS
"""Endings of files that hold several arrays."""

_MOST_ARRAYS = 10_000
"""Arrays of one file: to look at more takes long, and no sample has so many fields."""

_LABEL_WORDS = frozenset(
    {"label", "labels", "target", "targets", "cls", "class", "category", "categories"}
)
"""Words in names of columns that look like labels."""

PICKLED = "it holds pickled Python objects, which are never read"

_ANY_LENGTH_BYTES = 4_096
"""Size of a row of any length, which no header tells: a guess, by which shards are cut."""

LOOK_ROWS = 16
"""Rows of bytes looked at to see whether they are images."""

_IDX = re.compile(r"(.+)[-.]idx[0-9][-.](?:ubyte|byte|short|int|float|double)(?:\.gz)?", re.I)
_IDX_SPLIT = re.compile(r"(?:.+[-_])?(t10k|test|train|val)[-_](.+)", re.I)


def is_idx_name(name: str) -> bool:
    """Return True for ``train-images-idx3-ubyte``, ``t10k-labels.idx1-ubyte.gz`` and the like."""
    return "idx" in name.lower() and _IDX.fullmatch(name) is not None


@dataclass(frozen=True)
class ArrayColumn:
    """An array as its file has it.

    Attributes:
        name: its name in the file, or its file's name. shape: the first axis is the rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    how: How = "npy"

    @property
    def title(self) -> str:
        """Its name without ``.npy``; ``test-images`` for MNIST's ``t10k-images-idx3-ubyte``."""
        if not is_idx_name(self.name):
            return self.name[:-4] if self.name.lower().endswith(".npy") else self.name
        stem = _IDX.sub(r"\1", self.name)
        found = _IDX_SPLIT.fullmatch(stem)
        return f"{found[1].lower().replace('t10k', 'test')}-{found[2]}" if found else stem

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
        size = self.dtype.itemsize * prod(self.shape[1:])
        return size + _ANY_LENGTH_BYTES if self.dtype.hasobject else size

    @property
    def num_bytes(self) -> int:
        return self.num_rows * self.row_bytes

    @property
    def is_label(self) -> bool:
        """True if it may hold class numbers: (N,), or (N, 1) as Keras has them."""
        is_number = self.how == "npy" and self.dtype.kind in "iu" and prod(self.shape[1:]) == 1
        return is_number and has_label_name(self.short)

    @property
    def looks_like_label(self) -> bool:
        """True if people who see its name expect labels: ``fine_labels``, ``y``."""
        words = re.split("[^a-z]+", self.short.lower())
        return words == ["y"] or not _LABEL_WORDS.isdisjoint(words)

    @property
    def row(self) -> tuple[Any, ...]:
        """A description that must be the same in all files of a split."""
        return self.how, self.shape[1:], self.dtype if self.how == "npy" else None


# --- files of columns ---------------------------------------------------------------------


class ArrayFile:
    """An open file of arrays, or the ``.npy`` and idx files of one folder.

    Attributes:
        columns: arrays that have rows, by name. left_out: name of anything else -> why.
        texts: kinds of dtypes whose rows are texts.
        prepare: compares checksums, and unpacks what is compressed: once per pack. Raises
            FormatError.
    """

    def __init__(self) -> None:
        self.columns: dict[str, ArrayColumn] = {}
        self.left_out: dict[str, str] = {}
        self.texts = "U"
        self.prepare: Callable[[], None] = lambda: None
        self._arrays: dict[str, Any] = {}

    def array(self, name: str) -> Any:
        """Return an array, or anything sliced like one. Raises FormatError."""
        if callable(self._arrays[name]):
            self._arrays[name] = self._arrays[name]()
        return self._arrays[name]

    def add(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], array: Any, first: Any = None
    ) -> None:
        """Add an array to the columns, or to what is left out.

        Args:
            array: the array, or a function that opens it when it is read.
            first: its first rows, where they may be bytes.
        """
        if len(self.columns) + len(self.left_out) >= _MOST_ARRAYS:
            raise CorpusError(
                f"holds over {_MOST_ARRAYS:,} arrays, as if each were a sample: {RECIPES}"
            )
        if not shape:
            self.left_out[name] = "it has no axis, so no rows"
            return
        vlen = dict(dtype.metadata or {}).get("vlen")  # as h5py marks values of any length
        how: How | None = None if dtype.hasobject else "npy"
        if len(shape) == 1:
            is_bytes = (dtype.kind in "SV" and not dtype.names) or vlen == np.uint8
            if is_bytes and first is not None and _are_images(first):
                how = "picture"
            elif dtype.kind in self.texts or vlen in (str, bytes):
                how = "txt"
            elif vlen is not None and not np.dtype(vlen).hasobject:
                how = "ragged"
        if how is None:
            self.left_out[name] = f"its values are {dtype} of {shape}, which no field can hold"
        else:
            self.columns[name], self._arrays[name] = ArrayColumn(name, shape, dtype, how), array

    def values(self, name: str, how: str, start: int, stop: int) -> list[Value | None]:
        """Return what rows [start, stop) of a column become: class numbers in digits, texts and
        images as they are, others as ``.npy``.

        Raises:
            FormatError: they are damaged.
        """
        with damage():
            rows = self.array(name)[start:stop]
            if how == "cls":
                return [b"%d" % number for number in rows.reshape(-1).tolist()]
            if how == "txt":
                return [_utf8(row) for row in rows]
            if how == "picture":
                return [*_blobs(rows)]
            dtype = self.columns[name].dtype
            if how == "ragged":
                held = [np.asarray(row, dict(dtype.metadata or {})["vlen"]) for row in rows]
                return [npy_header(row.dtype.str, row.shape) + row.tobytes() for row in held]
            out, shape = io.BytesIO(), rows.shape[1:]
            descr = np.lib.format.dtype_to_descr(dtype)
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(out, header)
            head, size = out.getvalue(), dtype.itemsize * prod(shape)
            data = np.ascontiguousarray(rows, dtype).tobytes()
            return [head + data[i * size : (i + 1) * size] for i in range(len(rows))]


def _blobs(rows: Any) -> list[bytes]:
    """Return each row's bytes, of JPEG and PNG files without the zeros that pad them."""
    if rows.dtype.hasobject:
        return [np.asarray(row, np.uint8).tobytes() for row in rows]
    held = (rows[i : i + 1].tobytes() for i in range(len(rows)))
    never_end_in_zeros = (b"\xff\xd8", b"\x89PNG")
    return [each.rstrip(b"\0") if each.startswith(never_end_in_zeros) else each for each in held]


def _are_images(rows: Any) -> bool:
    held = [value for value in _blobs(rows) if value.strip(b"\0")]
    # C strings end at their first zero, and so hold at most 8 bytes of an image.
    return bool(held) and all(each[8:] and image_field(each[:HEAD_BYTES]) for each in held)


def _utf8(text: str | bytes) -> bytes:
    if isinstance(text, str):
        return text.encode()
    str(text, "utf-8")
    return bytes(text)


@contextmanager
def damage() -> Iterator[None]:
    """Turn what libraries raise about damaged files into FormatError."""
    try:
        yield
    except ShardkitError:
        raise
    except (
        *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OSError),
        *(RuntimeError, ValueError, KeyError, TypeError, MemoryError),
    ) as error:
        if isinstance(error, OSError) and error.errno:  # the system's, not the library's
            raise
        what = str(error).partition("\n")[0]
        raise FormatError(f"is damaged, or cannot be read here: {what}") from error


# --- opening files ------------------------------------------------------------------------

BLOCK_BYTES = 8 << 20
"""About how much of an array is held at a time."""

_SAFETENSORS = {
    **{"BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4"},
    **{"I32": "<i4", "U64": "<u8", "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8"},
    "C64": "<c8",
}
"""safetensors' name of a dtype -> NumPy's."""

_IDX_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@contextmanager
def open_arrays(
    path: Path, names: Sequence[str] | None, scratch: Path, stamp: int = 0
) -> Iterator[ArrayFile]:
    """Open a file of arrays, or of a folder the ``.npy`` and idx files of these names.

    Args:
        names: columns that will be read; None for all of a file. scratch: a folder for unpacked
            copies. stamp: the file's, by which its copies are named.

    Raises:
        FormatError: the file is damaged; says which. CorpusError: it cannot be packed as it is.
        OSError.
    """
    file, ending = ArrayFile(), extension(path.name)
    with _naming(path), ExitStack() as stack:
        with damage():
            if path.is_dir():
                for name in names or ():
                    _add_npy(file, path / name, scratch)
            elif ending == SAFETENSORS:
                _add_safetensors(file, path)
            elif ending == NPZ:
                _add_npz(file, path, stack, names, scratch, stamp)
            elif ending in HDF5_EXTENSIONS:
                _add_hdf5(file, path, stack)
            else:
                _add_npy(file, path, scratch)
        yield file


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put a file's name before what is wrong with it."""
    try:
        yield
    except (FormatError, CorpusError) as error:
        if str(error).startswith(show_path(path)):
            raise
        raise type(error)(f"{show_path(path)}: {error}") from error


def _map_file(path: Path) -> memoryview:
    with path.open("rb") as file:
        return mapped(file.fileno(), os.fstat(file.fileno()).st_size)


def _add_npy(file: ArrayFile, path: Path, scratch: Path) -> None:
    """Add a ``.npy`` or idx file, a column called by the file's name."""
    with _naming(path), damage():
        view = _map_file(path)
        if holds_pickles(view[:MAX_NPY_HEADER]):
            file.left_out[path.name] = PICKLED
            return
        is_idx = is_idx_name(path.name)
        array = _idx_array(path, view, scratch) if is_idx else parse_npy(view)
    dtype = array.dtype.newbyteorder("=") if is_idx else array.dtype
    file.add(path.name, dtype, array.shape, array, array[:LOOK_ROWS] if array.ndim else None)


def _idx_array(path: Path, data: memoryview, scratch: Path) -> Array:
    """Return the array of one of MNIST's files, plain or compressed: two zero bytes, a byte for the
    type, one for the number of axes, each axis as a big-endian integer, and the values."""
    if data[:2] == GZIP:  # whatever it is called: browsers unpack without being asked
        data = _map_file(plain_copy(path, os.path.abspath(path), input_stamp(path), scratch))
    if len(data) < 4 or bytes(data[:2]) != b"\0\0" or data[2] not in _IDX_DTYPES or data[3] > 32:
        raise FormatError(f"is no idx file: it begins with {bytes(data[:8])!r}; fetch it again")
    start, dtype = 4 + 4 * data[3], np.dtype(_IDX_DTYPES[data[2]])
    shape = [int.from_bytes(data[i : i + 4]) for i in range(4, min(start, len(data)), 4)]
    if len(data) != start + dtype.itemsize * prod(shape):
        raise FormatError(f"is damaged: {len(data):,} bytes do not fit {shape}; fetch it again")
    return np.ndarray(shape, dtype, data, start)


def _add_safetensors(file: ArrayFile, path: Path) -> None:
    """Add the arrays of a file of 8 bytes that say how long the header is, the header in JSON, and
    the arrays end to end."""
    view = _map_file(path)
    start = 8 + int.from_bytes(view[:8], "little")
    if start > min(len(view), 100_000_000):  # the longest that its own library takes
        raise FormatError(f"is damaged: a header of {start} bytes in a file of {len(view)}")
    for name, entry in dict(json.loads(bytes(view[8:start]))).items():
        if name == "__metadata__":
            file.left_out[name] = "it is text about the whole file"
            continue
        kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if kind not in _SAFETENSORS:
            raise CorpusError(f"{name!r} is {kind}, which NumPy has not; save tensor.float()")
        # NumPy raises what damage() takes for damage if shape and bytes do not fit.
        data = view[start:][max(first, 0) : max(last, 0)]
        array = np.ndarray(tuple(shape), _SAFETENSORS[kind], data)
        if array.nbytes != last - first:
            raise FormatError(f"is damaged: {name!r} is not where its header says")
        file.add(name, array.dtype, array.shape, array)


# --- .npz ---------------------------------------------------------------------------------


def _add_npz(
    file: ArrayFile,
    path: Path,
    stack: ExitStack,
    names: Sequence[str] | None,
    scratch: Path,
    stamp: int,
) -> None:
    """Add the members of a zip of ``.npy`` files."""
    held = stack.enter_context(zipfile.ZipFile(stack.enter_context(path.open("rb"))))
    infos = {info.filename: info for info in held.infolist()}
    refuse_bomb(sum(info.file_size for info in held.infolist()), path.stat().st_size)
    for name in [name for name in infos if names is None or name in names]:
        if not name.endswith(".npy"):
            file.left_out[name] = "it is no .npy file"
            continue
        with held.open(name) as member:
            head = member.read(MAX_NPY_HEADER)
            if holds_pickles(memoryview(head)):
                file.left_out[name] = PICKLED
                continue
            dtype, shape, start = npy_layout(head)
            num_first = min(LOOK_ROWS, prod(shape)) if dtype.kind in "SV" else 0
            first = head[start:] + member.read(num_first * dtype.itemsize)
        opened = partial(_npz_array, path, held, infos[name], scratch, stamp)
        file.add(name, dtype, shape, opened, np.frombuffer(first, dtype, num_first))

    def prepare() -> None:
        with damage():
            for name in file.columns:
                file.array(name)
                if infos[name].compress_type == zipfile.ZIP_STORED:
                    with held.open(name) as member:  # zipfile compares the checksum
                        while member.read(BLOCK_BYTES):
                            pass

    file.prepare = prepare


def _npz_array(
    path: Path, held: zipfile.ZipFile, info: zipfile.ZipInfo, scratch: Path, stamp: int
) -> Array:
    """Return a member of a zip: where it lies, or from an unpacked copy."""
    if info.compress_type == zipfile.ZIP_STORED:
        view = _map_file(path)
        local = view[info.header_offset :][:30]  # the member's own header
        start = info.header_offset + 30 + sum(struct.unpack("<26xHH", local))
        return parse_npy(view[start : start + info.file_size])
    scratch.mkdir(exist_ok=True)
    named = f"{os.path.abspath(path)}\0{info.filename}\0{stamp}"
    done = scratch / f"{xxhash.xxh3_64_hexdigest(os.fsencode(named))}.npy"
    if not done.exists():
        with appearing(done) as out, held.open(info) as member:
            shutil.copyfileobj(member, out, BLOCK_BYTES)
    return parse_npy(_map_file(done))


# --- HDF5 ---------------------------------------------------------------------------------


def _add_hdf5(file: ArrayFile, path: Path, stack: ExitStack) -> None:
    """Add every dataset with a first axis, a column called by its path.

    Only what the file itself holds is read: a link to another file, or a dataset whose values lie
    in others, might lead anywhere, and is refused.
    """
    import h5py

    path.open("rb").close()  # what the system refuses is reported in its own words
    held = stack.enter_context(h5py.File(path, "r", locking="best-effort"))
    links: list[bytes] = []
    held.id.links.visit(links.append)  # into each group once: hard links may nest, and lead back
    names = sorted([os.fsdecode(link) for link in links], key=lambda name: name.split("/"))
    seen, attributes = {h5py.h5o.get_info(held.id).addr}, {*held.attrs}
    file.texts = "S"
    for name in names:
        link = held.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise CorpusError(f"{name!r} is a link to another file; copy what it leads to")
        if isinstance(link, h5py.SoftLink):
            file.left_out[name] = f"it is a link to {link.path}"
            continue
        found = held[name]
        address = h5py.h5o.get_info(found.id).addr
        if address in seen:
            file.left_out[name] = "it is another name of what came before"
            continue
        seen.add(address)
        attributes.update(found.attrs)
        if isinstance(found, h5py.Group):
            continue
        if not isinstance(found, h5py.Dataset):
            file.left_out[name] = "it is a type, and has no values"
        elif found.is_virtual or found.external:
            raise CorpusError(f"the values of {name!r} lie in other files; copy them into one")
        elif found.shape and found.size and not found.id.get_storage_size():
            file.left_out[name] = "nothing was ever written to it"
        else:
            if h5py.check_enum_dtype(found.dtype):
                attributes.add(f"names of numbers of {name}")
            is_blob = found.ndim == 1 and found.dtype.kind in "SVO"
            file.add(name, found.dtype, found.shape, found, found[:LOOK_ROWS] if is_blob else None)
    if attributes:
        file.left_out["attributes"] = f"no field holds them: {first_few(sorted(attributes))}"
    fixed = [column.num_bytes for column in file.columns.values() if not column.dtype.hasobject]
    refuse_bomb(sum(fixed), held.id.get_filesize())
