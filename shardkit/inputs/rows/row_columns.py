"""A column: an array whose rows belong to samples, whatever file holds it."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from shardkit.errors import CorpusError, FormatError, ShardkitError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.index.manifest import is_field_name
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import Value
from shardkit.samples.split_names import split_word

How = Literal["npy", "txt", "ragged", "picture"]
"""What a row is: an array of one shape, a text, an array of any length, or an image file."""

RECIPES = "docs/recipes/arrays.md"

_MOST_ARRAYS = 10_000
"""Arrays of one file: to look at more takes long, and no sample has so many fields."""

LABEL_NAMES = frozenset({"label", "labels", "y", "target", "targets", "cls", "class"})
"""Last words of columns that hold class numbers, if they hold one whole number per row."""

_LABEL_WORDS = LABEL_NAMES - {"y"} | {"category", "categories"}
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
        return is_number and re.split("[/.]", self.short)[-1].lower() in LABEL_NAMES

    @property
    def looks_like_label(self) -> bool:
        """True if people who see its name expect labels: ``fine_labels``, ``y``."""
        words = re.split("[^a-z]+", self.short.lower())
        return words == ["y"] or not _LABEL_WORDS.isdisjoint(words)

    @property
    def row(self) -> tuple[Any, ...]:
        """What must be the same in all files of a split."""
        return self.how, self.shape[1:], self.dtype if self.how == "npy" else None


def field_of(name: str, how: str, *, is_only_picture: bool) -> str:
    """Return the field of a column; of images without its ending, which depends on the image.

    Raises:
        CorpusError: the name cannot name a field.
    """
    if how == "cls" or (how == "txt" and name.lower() in ("text", "txt")):
        return how
    if how == "picture" and is_only_picture:
        return ""
    ending = {"txt": "txt", "picture": "jpg"}.get(how, "npy")
    stem = re.sub("[^a-z0-9_.-]+", "_", name.lower().strip("/").replace("/", ".")).lstrip(".-")
    field = f"{stem}.{ending}"
    if not stem or not is_field_name(field):
        raise CorpusError(
            f"{name!r} cannot name a field ({field!r}: at most 64 of a-z 0-9 _ . -); rename it"
        )
    return field.removesuffix("jpg") if how == "picture" else field


# --- files of columns ---------------------------------------------------------------------


class ArrayFile:
    """An open file of arrays, or the ``.npy`` and idx files of one folder.

    Attributes:
        columns: arrays that have rows, by name. left_out: name of anything else -> why.
        texts: kinds of dtypes whose rows are texts.
    """

    texts = "U"

    def __init__(self) -> None:
        self.columns: dict[str, ArrayColumn] = {}
        self.left_out: dict[str, str] = {}

    def array(self, name: str) -> Any:
        """Return an array, or anything sliced like one. Raises FormatError."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Compare checksums, and unpack what is compressed: once per pack. Raises FormatError."""

    def add(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], first: Any = None
    ) -> None:
        """Add an array to the columns, or to what is left out. ``first``: its first rows, where
        they may be bytes."""
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
            self.columns[name] = ArrayColumn(name, shape, dtype, how)

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
            out = io.BytesIO()
            descr, shape = np.lib.format.dtype_to_descr(dtype), rows.shape[1:]
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
