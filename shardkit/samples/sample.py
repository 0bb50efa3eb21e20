"""What a sample is: a key, the paths it came from, and named fields.

A field is named as WebDataset names it, by extension (``jpg``, ``cls``, ``txt``, ``npy`` ...).
Its *canonical value* is the bytes a tar member of that name would hold: ``b"7"`` for a class
index, a whole ``.npy`` file for an array. Row formats (tar, LMDB) store canonical values as
they are; column formats (HDF5, .npy) may store them typed, see :mod:`shardkit.samples.encoding`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardkit.errors import FormatError

Value = bytes | memoryview
"""A canonical value."""

KEY = "__key__"
"""Reserved field name: the sample's key."""

SPLIT_NAMES = frozenset(
    {"train", "val", "valid", "validation", "test", "dev", "eval", "evaluation"}
)
"""What an input calls its splits; a folder of another name is no split."""


@dataclass
class SampleBatch:
    """Consecutive samples, column by column, in row order.

    Attributes:
        keys: one key a sample (bytes: UTF-8 where the file name was; never NUL).
        paths: one a sample: what :func:`pack_paths` makes of the files it came from.
        columns: field name -> one canonical value a sample, ``None`` where absent.
        rejects: (path, reason) of inputs that could not become samples.
        counts: what became of values that were written anew, and how often.
    """

    keys: list[bytes] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    columns: dict[str, list[Value | None]] = field(default_factory=dict)
    rejects: list[tuple[str, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.keys)

    def fields(self, i: int) -> dict[str, Value]:
        """The values that sample ``i`` has."""
        return {name: v for name, values in self.columns.items() if (v := values[i]) is not None}

    def take(self, rows: Sequence[int]) -> SampleBatch:
        """The samples at ``rows``, in that order; rejects and counts are kept."""
        columns = {name: [values[i] for i in rows] for name, values in self.columns.items()}
        return SampleBatch(
            [self.keys[i] for i in rows],
            [self.paths[i] for i in rows],
            {name: v for name, v in columns.items() if any(x is not None for x in v)},
            self.rejects,
            self.counts,
        )

    def extend(self, other: SampleBatch) -> None:
        """Append ``other``'s samples; a field unknown to one side is absent there."""
        before, added = len(self.keys), len(other.keys)
        self.keys += other.keys
        self.paths += other.paths
        self.rejects += other.rejects
        self.counts += other.counts
        for name in dict.fromkeys([*self.columns, *other.columns]):  # in the same order each time
            mine = self.columns.setdefault(name, [None] * before)
            mine += other.columns.get(name, [None] * added)

    # --- original paths -----------------------------------------------------------------------

    def file_of(self, i: int, name: str) -> str:
        """Return the file a field came from; tars made by others name none, so there it is the
        key."""
        for one, path, _ in unpack_paths(self.keys[i], self.paths[i], [*self.fields(i)]):
            if one == name:
                return os.fsdecode(path)
        return os.fsdecode(self.keys[i])

    def without(self, made: SampleBatch, reasons: dict[int, tuple[str, str]]) -> SampleBatch:
        """Return ``made`` of this batch, sample by sample, but for those at the given places, for
        which one field and its reason are given: the files those came from become rejects."""
        if not reasons:
            return made
        kept = made.take([i for i in range(len(made)) if i not in reasons])
        rejects = [(self.file_of(i, name), why) for i, (name, why) in sorted(reasons.items())]
        kept.rejects = self.rejects + rejects
        return kept


def pack_paths(key: bytes, paths: Sequence[bytes]) -> bytes:
    """Encode the relative paths of a sample's files, one a file field, sorted by field name.

    Each is ``+suffix`` where the path starts with the key, else ``=path``; NUL joins them.
    """
    cut = len(key)
    return b"\0".join(b"+" + p[cut:] if p.startswith(key) else b"=" + p for p in paths)


def part_of_file(offset: int, path: bytes) -> bytes:
    """Encode "this value lies at byte ``offset`` of ``path``" (a line of a .jsonl file)."""
    return b"@%d:%s" % (offset, path)


def unpack_paths(
    key: bytes, packed: bytes, fields: Sequence[str]
) -> list[tuple[str, bytes, int | None]]:
    """Decode to (field, path, offset in it or None for a whole file).

    ``fields`` are those the sample has. One more field than paths means that ``cls`` came from a
    folder's name, not from a file.

    Raises:
        FormatError: the encoding is none of the three above, or paths and fields do not match.
    """
    items = packed.split(b"\0") if packed else []
    names = sorted(fields)
    if len(names) == len(items) + 1 and "cls" in names:
        names.remove("cls")
    if items and len(names) != len(items):
        raise FormatError(f"sample {key!r} has {len(items)} original paths for fields {names}")
    return [(name, *_unpack_path(key, item)) for name, item in zip(names, items, strict=False)]


def rename_field(
    key: bytes, packed: bytes, fields: Sequence[str], old: str, new: str, path: bytes
) -> bytes:
    """The encoded paths of a sample of which field ``old`` has become ``new``, from ``path``.

    ``fields`` are those the sample had, and ``old`` one that came from a file.

    Raises:
        FormatError: as of :func:`unpack_paths`.
    """
    names = [name for name, _, _ in unpack_paths(key, packed, fields)]
    items = dict(zip(names, packed.split(b"\0"), strict=True))
    del items[old]
    items[new] = pack_paths(key, [path])
    return b"\0".join(items[name] for name in sorted(items))


def _unpack_path(key: bytes, item: bytes) -> tuple[bytes, int | None]:
    lead, rest = item[:1], item[1:]
    if lead == b"+":
        return key + rest, None
    if lead == b"=":
        return rest, None
    offset, colon, path = rest.partition(b":")
    if lead == b"@" and colon and offset.isdigit() and len(offset) < 19:
        return path, int(offset)
    raise FormatError(f"sample {key!r}: {item!r} is no stored path")
