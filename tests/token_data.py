"""Small datasets of tokens, made without a tokenizer."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from conftest import write

import shardkit

Tokens = np.ndarray[Any, np.dtype[Any]]


def npy(array: Tokens) -> bytes:
    """A ``.npy`` file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def documents(lengths: Sequence[int], dtype: str = "<u2") -> list[Tokens]:
    """Documents of these many tokens, which count on from one to the next."""
    ends = np.cumsum([0, *lengths])
    return [np.arange(a, b).astype(dtype) for a, b in itertools.pairwise(ends)]


def pack_tokens(
    folder: Path, docs: Sequence[Tokens], to: str = "npy", shard_size: str = "1MB"
) -> Path:
    """A dataset of one split, ``train``, whose row i holds ``docs[i]`` in field ``tokens``."""
    source = folder / "documents"
    for i, tokens in enumerate(docs):
        write(source / f"{i:06d}.tokens", npy(tokens))
    dest = folder / to
    shardkit.pack(
        source, dest, to=to, corpus="paired", shard_size=shard_size, workers=0, progress=False
    )
    return dest
