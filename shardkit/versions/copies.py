"""The first of samples that are equal but for keys and labels."""

from __future__ import annotations

import numpy as np

from shardkit.index.rows import RowIndex
from shardkit.operations.duplicates import contents_of
from shardkit.versions.choose import Masks


def first_of_copies(indexes: dict[str, RowIndex], among: Masks) -> Masks:
    """Those of ``among`` that no earlier one is equal to, in the order of splits and rows; but of
    copies in several splits those outside ``train`` stay, so that what is tested stays the same.

    Compared are the 64-bit checksums of contents that the index has: see
    :func:`shardkit.operations.duplicates.find_duplicates`.
    """
    names = sorted(indexes, key=lambda name: name == "train")
    contents = [contents_of(indexes[name]) for name in names]
    kept = np.concatenate([among[name] for name in names])
    every = np.concatenate(contents)
    rows = np.flatnonzero(kept)
    _, first = np.unique(every[rows], return_index=True)
    is_first = np.zeros(len(every), bool)
    is_first[rows[first]] = True
    cuts = np.cumsum([len(each) for each in contents])[:-1]
    return dict(zip(names, np.split(is_first, cuts), strict=True))
