"""Samples of a tar whose members do not lie together: which of its pieces are one sample.

A *piece* is a run of members that follow one another and share a key. Where a key has several:

- no two share a field (all pictures first, then all labels): they are one sample;
- all have the same fields: they are samples of their own, under one key. Such tars can be read, but
  not converted, as keys must be unique there;
- anything else does not tell which label belongs to which picture, and is refused.

One sample in two tars cannot be: a row of the index holds ranges of one file. So where tars share
a key, all samples of it must have the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers
from shardkit.errors import FormatError
from shardkit.index.assembling import hash_twins
from shardkit.index.rows import RowIndex
from shardkit.system.paths import show_path


def regroup(
    keys: Sequence[bytes], fields: Sequence[str], having: list[Integers]
) -> Integers | None:
    """The number of the sample that each piece belongs to, or None if each is one of its own.

    Args:
        keys: one a piece. fields: names. having: for each field the pieces that have it, at most
            256 fields.

    Returns:
        (num_pieces,) int64; samples are counted in the order of their first pieces.

    Raises:
        ValueError: pieces of one key fit together in no one way.
    """
    repeats = list(_repeated(keys))
    if not repeats:
        return None
    bits = _bits(len(keys), having)
    sample_of = np.arange(len(keys), dtype=np.int64)
    for pieces in repeats:
        sets = [int.from_bytes(bits[piece].tobytes(), "little") for piece in pieces]
        if are_one_sample(sets, keys[pieces[0]], fields):
            sample_of[pieces] = pieces[0]
    firsts, numbers = np.unique(sample_of, return_inverse=True)
    return numbers if len(firsts) < len(keys) else None


def are_one_sample(sets: list[int], key: bytes, fields: Sequence[str]) -> bool:
    """Whether pieces with these sets of fields (bit ``i``: it has ``fields[i]``) are one sample,
    and not samples of their own. Raises ValueError if they are neither."""
    seen = 0
    for one in sets:
        if seen & one:
            break
        seen |= one
    else:
        return True
    if len(set(sets)) == 1:
        return False
    twice = fields[((seen & one) & -(seen & one)).bit_length() - 1]
    kinds = sorted({", ".join(f for i, f in enumerate(fields) if each >> i & 1) for each in sets})
    raise ValueError(
        f"the members of {show_path(key)} lie in {len(sets)} places ({'; '.join(kinds)}), and"
        f" {twice!r} is there twice: nothing says what belongs together; remove or rename one, and"
        " put the members of a sample together (tar --sort=name)"
    )


def _repeated(keys: Sequence[bytes]) -> Iterator[list[int]]:
    """The pieces of each key that has several. It costs 8 bytes a piece if no key has several."""
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys))
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    is_twin = np.zeros(len(keys) + 1, np.bool_)
    is_twin[1:-1] = ranked[1:] == ranked[:-1]
    twins = order[is_twin[1:] | is_twin[:-1]].tolist()
    twins.sort(key=lambda piece: (keys[piece], piece))
    for _, group in groupby(twins, key=keys.__getitem__):
        pieces = list(group)
        if len(pieces) > 1:
            yield pieces


def _bits(num_pieces: int, having: list[Integers]) -> Hashes:
    """(num_pieces, 1 to 4): a bit a field."""
    bits = np.zeros((num_pieces, (len(having) + 63) // 64), np.dtype("<u8"))
    for i, pieces in enumerate(having):
        bits[pieces, i // 64] |= np.uint64(1 << i % 64)
    return bits


def refuse_scattered(index: RowIndex, fields: list[str], names: list[str], where: str) -> None:
    """Raise FormatError if tars of a split hold samples of one key that differ in their fields.

    ``names`` are those of the tars, one a shard.
    """
    for one, other in hash_twins(index):
        differs = np.zeros(len(one), np.bool_)
        for field in fields:
            size = index.column[f"{field}.size"]
            differs |= (index.table[one, size] < 0) != (index.table[other, size] < 0)
        for at in np.flatnonzero(differs).tolist():
            rows = [int(one[at]), int(other[at])]
            key = index.name(rows[0])[0]
            if key != index.name(rows[1])[0]:
                continue
            tars = [names[shard] for shard in index.shard_of(np.array(rows)).tolist()]
            parts = " and ".join(
                f"{show_path(tar)} ({', '.join(_present(index, fields, row))})"
                for tar, row in zip(tars, rows, strict=True)
            )
            raise FormatError(
                f"{where}: the sample {show_path(key)} is spread over {parts}; a sample must lie in"
                " one tar: put its members together, or open each tar by itself"
            )


def _present(index: RowIndex, fields: list[str], row: int) -> list[str]:
    return [f for f in fields if index.table[row, index.column[f"{f}.size"]] >= 0]
