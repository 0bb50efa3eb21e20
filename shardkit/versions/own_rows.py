"""Rows of a dataset on their way into a version, with its shards as a journal of them has them.

No shard is read or written, but for old labels where new ones take their place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers, Mask
from shardkit.errors import UsageError
from shardkit.index.assembling import write_split
from shardkit.index.journal import FinishedShard, Receipt
from shardkit.index.manifest import DatasetInfo, ShardInfo, SplitInfo
from shardkit.index.rows import NO_INT, RowIndex, row_columns
from shardkit.operations.duplicates import label_shares
from shardkit.operations.file_damage import RecordedSums
from shardkit.samples.checksums import sample_checksums
from shardkit.samples.encoding import LABEL, Encoding
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.versions.reconcile import CLS

_SHARD = re.compile(r"(.+)-(\d{5,})\..*")


@dataclass(frozen=True)
class OwnRows:
    """Rows of one split that a version has.

    Attributes:
        place, name: the dataset and its split.
        keep: (num_rows,) which of its rows; None for all.
        labels: (num_rows,) int64, what all its rows have for a label from now on, ``NO_INT`` for
            none; None: what they have.
        stems: what the files of a shard are called there -> here; others keep their names.
    """

    place: Located
    name: str
    keep: Mask | None = None
    labels: Integers | None = None
    stems: Mapping[str, str] = field(default_factory=dict)

    @property
    def split(self) -> SplitInfo:
        return self.place.info.splits[self.name]

    @cached_property
    def reader(self) -> ShardReader:
        return self.place.reader(self.name)

    @property
    def index(self) -> RowIndex:
        return self.reader.index

    @cached_property
    def _sums(self) -> RecordedSums:
        found = RecordedSums()
        found.add(self.place.storage, self.split)
        return found

    def _kept(self) -> Iterator[tuple[int, ShardInfo, Integers]]:
        """Yield number, description and kept rows of each shard of which any row is kept."""
        starts = self.index.row_starts.tolist()
        for number, shard in enumerate(self.split.shards):
            rows = np.arange(starts[number], starts[number + 1])
            if self.keep is not None:
                rows = rows[self.keep[rows]]
            if len(rows):
                yield number, shard, rows

    def shards(self) -> Iterator[tuple[ShardInfo, dict[str, Encoding]]]:
        """Yield those of which any row is kept, as they are called here, with their layouts; the
        number of a layout is not known yet."""
        for number, old, rows in self._kept():
            there = self.split.stem(number)
            stem = self.stems.get(there, there)
            sizes = sorted(old.file_bytes.items())
            files = {stem + name.removeprefix(there): num_bytes for name, num_bytes in sizes}
            num_left_out = old.num_left_out + old.num_rows - len(rows)
            made = ShardInfo(len(rows), 0, files, stem, num_left_out, old.has_restarts)
            yield made, self._layout(old)

    def _layout(self, shard: ShardInfo) -> dict[str, Encoding]:
        found = self.split.layouts[shard.layout]
        return found if self.labels is None else found | {CLS: Encoding(LABEL)}

    def journal(self) -> Iterator[FinishedShard]:
        """Yield what the index has of those shards, in order.

        Raises:
            IndexFileError: a row is damaged. DataError: an old label cannot be read.
        """
        for number, shard, rows in self._kept():
            yield self._finished(number, rows, self._layout(shard))

    def _finished(self, number: int, rows: Integers, layout: dict[str, Encoding]) -> FinishedShard:
        found = np.array(self.index.table[rows])
        self.index.refuse_damage(rows, found)
        names = self._names(found)
        column = self.index.column
        sizes = found[:, column["name.size"]]
        found[:, column["name.start"]] = np.cumsum(sizes) - sizes
        here = {name: found[:, at] for name, at in column.items()}
        if self.labels is not None:
            here |= self._relabelled(rows, here)
        columns = row_columns(sorted(layout))
        table = np.stack([here[name] for name in columns], 1)
        files = sorted(self.split.shards[number].file_bytes)
        sums = np.concatenate([np.zeros(0, np.uint64), *(self._sums[name] for name in files)])
        encodings = {name: encoding.to_json() for name, encoding in layout.items()}
        # What is said of its files and where it came from goes another way: see shards().
        receipt = Receipt(self.name, number, 0, 0, len(rows), {}, encodings, len(sums), len(names))
        return FinishedShard(receipt, table, names, sums)

    def _names(self, table: Integers) -> bytes:
        """Return their entries of the names file, end to end: neighbours in one go."""
        starts, sizes = (table[:, self.index.column[f"name.{part}"]] for part in ("start", "size"))
        blob, ends = self.index.names(), starts + sizes
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        firsts, lasts = np.append(0, breaks), np.append(breaks, len(table)) - 1
        pairs = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
        return b"".join(blob[start:end] for start, end in pairs)

    def _relabelled(self, rows: Integers, here: dict[str, Integers]) -> dict[str, Integers]:
        """Return columns of rows with their new labels."""
        new = np.asarray(self.labels)[rows]
        sums = here["xxh3"].view(np.uint64)
        if CLS in self.index.fields:
            batch = self.reader.gather(rows)
            sums = sums - sample_checksums({CLS: self.reader.canonical(batch, CLS)}, len(rows))
        sums = sums + label_shares(new)
        absent = np.full(len(rows), -1, np.int64)
        places = {f"{CLS}.start": absent, f"{CLS}.size": absent}
        return {"xxh3": sums.view(np.int64), CLS: new, **places}


def rows_among(
    place: Located, name: str, stems: Mapping[str, str], classes: Sequence[str] | None
) -> OwnRows:
    """Return all rows of a split, with the numbers that their labels have among these classes.

    Raises:
        UsageError: a label is no number of a class.
    """
    theirs = place.info.classes
    rows = OwnRows(place, name, stems=stems)
    if CLS not in place.info.fields or theirs is None or classes is None:
        return rows
    number = {name: at for at, name in enumerate(classes)}
    table = np.array([number[name] for name in theirs], np.int64)
    if np.array_equal(table, np.arange(len(table))):
        return rows
    labels = rows.index.table[:, rows.index.column[CLS]]
    known = (labels >= 0) & (labels < len(table))
    if (labels[~known] != NO_INT).any():
        raise UsageError(f"a label is {int(labels[~known].max())}, and classes are {len(table)}")
    return replace(rows, labels=np.where(known, table[np.where(known, labels, 0)], NO_INT))


def new_stems(theirs: DatasetInfo, names: Sequence[str]) -> dict[str, str]:
    """Return the stem of each of their shards -> what it is called here: numbers go on after the
    largest of any version.

    Args:
        names: of the files that are here.
    """
    largest: dict[str, int] = {}
    for name in names:
        if found := _SHARD.fullmatch(name):
            split, number = found.group(1), int(found.group(2))
            largest[split] = max(largest.get(split, -1), number)
    stems: dict[str, str] = {}
    for name, split in theirs.splits.items():
        for shard in range(len(split.shards)):
            stem = split.stem(shard)
            if stem not in stems:
                largest[name] = largest.get(name, -1) + 1
                stems[stem] = f"{name}-{largest[name]:05d}"
    return stems


def renamed_files(theirs: DatasetInfo, stems: dict[str, str]) -> Iterator[tuple[str, str, int]]:
    """Yield the name of each file of their shards, what it is called here, and its bytes."""
    for split in theirs.splits.values():
        for number, shard in enumerate(split.shards):
            old = split.stem(number)
            for name, num_bytes in shard.file_bytes.items():
                yield name, stems[old] + name.removeprefix(old), num_bytes


def write_rows(
    dest: Path, stem: str, name: str, parts: Sequence[OwnRows], info: DatasetInfo
) -> SplitInfo:
    """Write the index of a split, of these rows end to end.

    Args:
        stem: what its files are called. info: of the dataset, as far as it is known.

    Raises:
        DataError: two samples have one key.
    """
    layouts: list[dict[str, Encoding]] = []
    shards: list[ShardInfo] = []
    for part in parts:
        for shard, layout in part.shards():
            if layout not in layouts:
                layouts.append(layout)
            usual = f"{name}-{len(shards):05d}"
            own = "" if shard.stem == usual else shard.stem
            shard = replace(shard, stem=own, layout=layouts.index(layout))
            shards.append(among(shard, part.place.info, info))
    return write_split(
        dest,
        stem,
        SplitInfo(name, 0, "", layouts, shards, {}),
        lambda: (finished for part in parts for finished in part.journal()),
        info,
        unique_keys=True,
    )


def among(shard: ShardInfo, ours: DatasetInfo, info: DatasetInfo) -> ShardInfo:
    """Return a shard as it is described in a dataset that has shards of others, too."""
    is_plain = info.provenance.has_restarts and not ours.provenance.has_restarts
    return replace(shard, has_restarts=False) if is_plain else shard
