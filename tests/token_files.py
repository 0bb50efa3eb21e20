"""Files of token ids as nanoGPT, llm.c and Megatron write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from conftest import write

DOCUMENTS = [[[1, 2], [3]], [[]], [[4]], [], [[5, 6, 7]]]

CODES = {"|u1": 1, "|i1": 2, "<i2": 3, "<i4": 4, "<i8": 5, "<f8": 6, "<f4": 7, "<u2": 8}


def nanogpt(path: Path, ids: Sequence[int]) -> Path:
    return write(path, np.array(ids, "<u2").tobytes())


def llm_c(path: Path, ids: Sequence[int], num: int | None = None) -> Path:
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(ids) if num is None else num
    return write(path, header.tobytes() + np.array(ids, "<u2").tobytes())


def index(
    lengths: Sequence[int],
    documents: Sequence[int],
    dtype: str = "<i4",
    pointers: Sequence[int] | None = None,
    version: int = 1,
) -> bytes:
    """A ``.idx``: sequences of these lengths; ``documents`` are the first sequence of each, and
    the number of sequences."""
    head = b"MMIDIDX\0\0" + struct.pack(
        "<QBQQ", version, CODES[dtype], len(lengths), len(documents)
    )
    begins = np.cumsum([0, *lengths])[:-1] * np.dtype(dtype).itemsize
    arrays = [(lengths, "<i4"), (begins if pointers is None else pointers, "<i8")]
    return head + b"".join(np.array(a, t).tobytes() for a, t in [*arrays, (documents, "<i8")])


def megatron(
    prefix: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "<i4"
) -> Path:
    """``prefix.bin`` and ``prefix.idx`` of documents, each of which is some sequences."""
    sequences = [sequence for document in documents for sequence in document]
    firsts = np.cumsum([0, *map(len, documents)]).tolist()
    ids = [i for sequence in sequences for i in sequence]
    write(Path(f"{prefix}.bin"), np.array(ids, dtype).tobytes())
    write(Path(f"{prefix}.idx"), index([*map(len, sequences)], firsts, dtype))
    return prefix
