"""MNIST's idx files, ``train-images-idx3-ubyte``, each of which holds an array: two zero bytes, a
byte for the type, one for the number of axes, the sizes in big-endian order, and the values."""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.lines import plain_copy
from shardkit.memory.maps import mapped
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.system.paths import first_few, show_path
from shardkit.system.stamps import stamp_of_open
from shardkit.tars.members import GZIP

_NAME = re.compile(r"(.+)[-.]idx[0-9][-.](?:ubyte|byte|short|int|float|double)(?:\.gz)?", re.I)

_STEM = re.compile(rf"(?:(.+)[-_])?(t10k|{'|'.join(sorted(SPLIT_NAMES))})[-_](.+)", re.I)
"""What stands before ``idx``: the name of the dataset, if any; the split; what the array is."""

_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}

_MOST_AXES = 32
"""As NumPy had it before 2.0."""

_MOST_HEAD = 4 + 4 * _MOST_AXES


# --- names --------------------------------------------------------------------------------


def is_idx_name(name: str) -> bool:
    """Also ``train-images.idx3-ubyte`` and ``emnist-letters-train-images-idx3-ubyte.gz``."""
    return _NAME.fullmatch(name) is not None


def idx_title(name: str) -> str:
    """What the array is called: ``test-images`` for ``t10k-images-idx3-ubyte``."""
    return _dataset_and_title(name)[1]


def _dataset_and_title(name: str) -> tuple[str, str]:
    stem = _NAME.sub(r"\1", name)
    found = _STEM.fullmatch(stem)
    if found is None:
        return "", stem
    split = found[2].lower().replace("t10k", "test")
    return (found[1] or "").lower(), f"{split}-{found[3]}"


def choose_idx(names: Sequence[str], where: str) -> tuple[list[str], dict[str, str]]:
    """Of the idx files in one folder those to read, and the others -> why not: downloaders leave
    ``x.gz`` beside the ``x`` that they make of it.

    Raises:
        CorpusError: they are files of several datasets, as all of EMNIST's are.
    """
    chosen: dict[str, str] = {}
    left_out = {}
    for name in sorted(names):
        other = chosen.setdefault(_NAME.sub(r"\1", name), name)
        if other != name:
            left_out[name] = f"{show_path(other)} of the same name lies beside it"
    seen = [_dataset_and_title(name) for name in chosen.values()]
    if len({dataset for dataset, _ in seen}) > 1 or len({title for _, title in seen}) < len(seen):
        raise CorpusError(
            f"{where} holds files of several datasets ({first_few([*chosen.values()])}): put those"
            " of each into a folder of its own"
        )
    return [*chosen.values()], left_out


# --- contents -----------------------------------------------------------------------------


def looks_like_idx(path: Path) -> bool:
    """Whether a file, which may be compressed, begins as idx files do. Raises OSError."""
    try:
        idx_layout(path, whole=False)
    except FormatError:
        return False
    return True


def idx_layout(path: Path, whole: bool = True) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """What a file says that it holds, and where it is not compressed and ``whole``, does. How many
    bytes compressed ones have, :func:`map_idx` sees.

    Raises:
        FormatError: it is no idx file, or is damaged. OSError.
    """
    with path.open("rb") as file:
        is_packed = _is_packed(file)
        size = os.fstat(file.fileno()).st_size
        with _damage(path):
            head = (gzip.GzipFile(fileobj=file) if is_packed else file).read(_MOST_HEAD)
    dtype, shape, start = _parsed(head, path)
    if whole and not is_packed:
        _require_size(size, dtype, shape, start, path)
    return dtype, shape


def map_idx(path: Path, scratch: Path | None) -> Array:
    """The array of a file, as it is stored; that of a compressed one from a copy in ``scratch``,
    which is made once; None where little is read: labels, to see whether they are some.

    Raises:
        FormatError: it is damaged. OSError.
    """
    with path.open("rb") as file, _damage(path):
        if _is_packed(file) and scratch is None:
            packed = gzip.GzipFile(fileobj=file)
            head = packed.read(_MOST_HEAD)
            dtype, shape, start = _parsed(head, path)
            more = start + dtype.itemsize * math.prod(shape) + 1 - len(head)  # and a bit too much
            data = memoryview(head + packed.read(max(more, 0)))
        elif _is_packed(file) and scratch is not None:
            stamp = stamp_of_open(file.fileno(), path)
            copy = plain_copy(path, os.path.abspath(path), stamp, scratch)
            with copy.open("rb") as plain:
                data = mapped(plain.fileno(), os.fstat(plain.fileno()).st_size)
        else:
            data = mapped(file.fileno(), os.fstat(file.fileno()).st_size)
    dtype, shape, start = _parsed(bytes(data[:_MOST_HEAD]), path)
    _require_size(len(data), dtype, shape, start, path)
    return np.ndarray(shape, dtype, data, start)


def _is_packed(file: IO[bytes]) -> bool:
    """Whether it is compressed, whatever it is called: browsers unpack without being asked."""
    head = file.read(len(GZIP))
    file.seek(0)
    return head == GZIP


def _parsed(head: bytes, path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """The dtype as it is stored, the shape, and the bytes of the header. Raises FormatError."""
    is_idx = len(head) >= 4 and head[:2] == b"\0\0" and head[2] in _DTYPES
    if not is_idx or head[3] > _MOST_AXES:
        raise FormatError(
            f"{show_path(path)}: is no idx file: it begins with {head[:8]!r}; fetch it again"
        )
    start = 4 + 4 * head[3]
    shape = [int.from_bytes(head[i : i + 4]) for i in range(4, start, 4)]
    if len(head) < start:
        raise FormatError(f"{show_path(path)}: is damaged: it ends in its header; fetch it again")
    return np.dtype(_DTYPES[head[2]]), tuple(shape), start


def _require_size(
    size: int, dtype: np.dtype[Any], shape: tuple[int, ...], start: int, path: Path
) -> None:
    wanted = start + dtype.itemsize * math.prod(shape)
    is_huge = math.prod(max(number, 1) for number in shape) >= 2**59  # NumPy makes no such array
    if size != wanted or is_huge:
        raise FormatError(
            f"{show_path(path)}: is damaged: it has {size:,} bytes, and by its header"
            f" {wanted:,} ({dtype.name} of {shape}); fetch it again"
        )


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """What is raised of damaged compressed files, as a FormatError that names the file."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error, FormatError) as error:
        told = isinstance(error, FormatError)
        why = str(error) if told else f"is damaged: {error}; fetch it again"
        raise FormatError(f"{show_path(path)}: {why}") from error
