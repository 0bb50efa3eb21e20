"""Rows of a dataset on their way into a version, with its shards as a journal of them has them.

No shard is read or written, but for old labels where new ones take their place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from shardkit.arrays import Hashes, Integers, Mask
from shardkit.index.assembling import write_split
from shardkit.index.journal import FinishedShard, Receipt
from shardkit.index.manifest import DatasetInfo, ShardInfo, SplitInfo
from shardkit.index.rows import NO_INT, RowIndex, row_columns
from shardkit.operations.file_damage import RecordedSums
from shardkit.samples.encoding import LABEL, Encoding
from shardkit.samples.sample import Value, sample_checksums
from shardkit.shards.locate import Located
from shardkit.shards.stored import ShardReader
from shardkit.versions.reconcile import CLS


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
        return ShardReader(self.place.storage, self.place.info, self.split)

    @property
    def index(self) -> RowIndex:
        return self.reader.index

    @cached_property
    def _sums(self) -> RecordedSums:
        found = RecordedSums()
        found.add(self.place.storage, self.split)
        return found

    def _rows(self, shard: int) -> Integers:
        """Numbers of the rows of one shard that are kept."""
        first, last = self.index.row_starts[shard : shard + 2].tolist()
        if self.keep is None:
            return np.arange(first, last)
        found: Integers = np.flatnonzero(self.keep[first:last]) + first
        return found

    def shards(self) -> Iterator[tuple[ShardInfo, dict[str, Encoding]]]:
        """Those of which any row is kept, with their layouts; the number of a layout is not known
        yet."""
        for number, old in enumerate(self.split.shards):
            num_rows = len(self._rows(number))
            if num_rows:
                num_left_out = old.num_left_out + old.num_rows - num_rows
                stem, files = self._renamed(number)
                made = ShardInfo(num_rows, 0, files, stem, num_left_out, old.has_restarts)
                yield made, self._layout(old.layout)

    def _renamed(self, number: int) -> tuple[str, dict[str, int]]:
        """Stem and files of a shard, as they are called here."""
        old = self.split.stem(number)
        stem = self.stems.get(old, old)
        sizes = sorted(self.split.shards[number].file_bytes.items())
        return stem, {stem + name.removeprefix(old): num_bytes for name, num_bytes in sizes}

    def _layout(self, number: int) -> dict[str, Encoding]:
        found = self.split.layouts[number]
        return found if self.labels is None else found | {CLS: Encoding(LABEL)}

    def journal(self) -> Iterator[FinishedShard]:
        """What the index has of those shards, in order.

        Raises:
            IndexFileError: a row is damaged. DataError: an old label cannot be read.
        """
        for number, shard in enumerate(self.split.shards):
            rows = self._rows(number)
            if len(rows):
                yield self._finished(number, rows, self._layout(shard.layout))

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
        sums = self._sums_of(number)
        _, files = self._renamed(number)
        receipt = Receipt(
            split=self.name,
            shard=number,
            segment=0,
            seen=0,
            num_rows=len(rows),
            file_bytes=files,
            encodings={name: encoding.to_json() for name, encoding in layout.items()},
            num_sums=len(sums),
            names_bytes=len(names),
        )
        return FinishedShard(receipt, table, names, sums)

    def _names(self, table: Integers) -> bytes:
        """Their entries of the names file, end to end: neighbours in one go."""
        starts, sizes = (table[:, self.index.column[f"name.{part}"]] for part in ("start", "size"))
        blob, ends = self.index.names(), starts + sizes
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        firsts, lasts = np.append(0, breaks), np.append(breaks, len(table)) - 1
        pairs = zip(starts[firsts].tolist(), ends[lasts].tolist(), strict=True)
        return b"".join(blob[start:end] for start, end in pairs)

    def _sums_of(self, number: int) -> Hashes:
        files = sorted(self.split.shards[number].file_bytes)
        return np.concatenate([np.zeros(0, np.uint64), *(self._sums[name] for name in files)])

    def _relabelled(self, rows: Integers, here: dict[str, Integers]) -> dict[str, Integers]:
        """Columns of rows with their new labels. A checksum of a sample is a sum over its fields,
        so that the share of one can be exchanged."""
        new = np.asarray(self.labels)[rows]
        sums = here["xxh3"].view(np.uint64)
        if CLS in self.index.fields:
            batch = self.reader.gather(rows)
            sums = sums - sample_checksums({CLS: self.reader.canonical(batch, CLS)}, len(rows))
        sums = sums + sample_checksums({CLS: label_values(new)}, len(rows))
        absent = np.full(len(rows), -1, np.int64)
        places = {f"{CLS}.start": absent, f"{CLS}.size": absent}
        return {"xxh3": sums.view(np.int64), CLS: new, **places}


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


def label_values(labels: Integers) -> list[Value | None]:
    """The canonical value of each label: decimal digits, or absent."""
    return [None if label == NO_INT else b"%d" % label for label in labels.tolist()]
