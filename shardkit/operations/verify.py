"""``verify``: every checksum, and which shard, sample or region is broken."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.errors import DataError, FormatError, IndexFileError
from shardkit.index.manifest import (
    CHANGE_NAME,
    DALI_INDEX,
    INDEX_NAME,
    WORK_NAME,
    SplitInfo,
    all_files,
    is_sealed,
    read_index,
    read_info,
    strays,
)
from shardkit.index.rows import RowIndex
from shardkit.operations.compare import Originals
from shardkit.operations.contradictions import (
    misplaced,
    repeated_keys,
    wrong_files,
    wrong_labels,
    wrong_rows,
)
from shardkit.operations.deflated import changed_stream
from shardkit.operations.detokenize import spec_of
from shardkit.operations.file_damage import Damage, RecordedSums, look_at, read_block, regions
from shardkit.operations.originals import originals_of
from shardkit.operations.verify_tokens import foreign_ids, tokenizer_problem
from shardkit.remote.urls import as_place, show_place
from shardkit.samples.encoding import TOKENS
from shardkit.shards.locate import Located, locate_place
from shardkit.shards.stored import ShardReader, container_of
from shardkit.system.blocks import BLOCK_BYTES
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tokens.spec import TokenizerSpec

CHANGING = (
    "a change of it is under way, or was interrupted, which changed nothing of this version; the"
    " same command ends it; files that are not listed were not looked for"
)

_WITHOUT = {
    "rows": "no sample of this split could be checked",
    "names": "no sample of this split could be checked",
    "find": "samples may not be found by key",
    "sums": "only samples could be checked, not what lies around them",
}
"""What is lost with each of a split's own files."""


@dataclass(frozen=True)
class Problem:
    """One thing found wrong.

    Attributes:
        where: a file or a sample, in words. what: what is wrong with it.
        split, shard, key: where that is known.
    """

    where: str
    what: str
    split: str = ""
    shard: int | None = None
    key: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass
class VerifyResult:
    """What was checked, and what was found; ``ok`` if nothing.

    Attributes:
        num_samples, num_bytes: samples and bytes looked at.
        is_compared, num_compared: whether the originals were looked at, as they are if the
            dataset itself is whole, and how many samples were compared with them.
        has_checksums: False for tars made by others: only sizes were looked at.
        notes: what else there is to know, a line each.
    """

    num_samples: int = 0
    num_bytes: int = 0
    is_compared: bool = False
    num_compared: int = 0
    has_checksums: bool = True
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(
    dataset: str | Path,
    against: Any = None,
    *,
    version: int | None = None,
    progress: bool | None = None,
) -> VerifyResult:
    """Check every file, block and sample of a dataset against its checksums.

    Args:
        dataset: its folder, or its URL: then all of it is fetched anew, whatever the cache has,
            and files that it does not name are not looked for.
        against: the original input, to compare every sample with: its path, or the dataset of
            Hugging Face ``datasets`` that was packed, whose rows are written into a temporary
            folder; left undone if the dataset itself is broken.
        version: its number, of a dataset that was changed since it was packed; default: the last.

    Returns:
        What was found; damage is not an exception here.

    Raises:
        DatasetMissingError: there is no dataset. IndexFileError: shardkit.json cannot be read.
        CorpusError: ``against`` is not the kind of input that the dataset was packed from.
    """
    source = as_place(dataset, "the dataset")
    place = locate_place(source, anew=True, version=version)
    opener = None if against is None else originals_of(place, against)
    splits = place.info.splits.values()
    result = VerifyResult(has_checksums=all(split.has_checksums for split in splits))
    if not is_sealed(read_index(place.folder, place.index)):
        what = "its bytes differ from those written; nothing else can be checked"
        result.problems.append(Problem(place.index, what))
        return result
    with os_errors(f"verifying {show_place(source)}"), Progress("verifying", progress) as bar:
        bar.expect(sum(split.num_rows for split in splits))
        recorded = RecordedSums()
        spec = spec_of(place.info)
        checks = [_SplitCheck(place, split, spec, recorded, result, bar) for split in splits]
        for check in checks:  # all of them first: a shard may have been swapped between splits
            check.index()
        for check in checks:
            check.shards()
        if spec is not None and (problem := tokenizer_problem(place.folder, spec)):
            result.problems.append(Problem(*problem))
        found = []
        if place.index == INDEX_NAME:  # what lies beside shards is of the last version
            # Behind a URL only what shardkit.json names is looked at: a web server lists nothing.
            names = os.listdir(place.folder) if isinstance(source, Path) else []
            if (place.folder / WORK_NAME / CHANGE_NAME).exists():
                result.notes.append(CHANGING)
            else:
                found = _look_beside(place, names, result)
    if opener is not None and result.ok:
        with opener(progress) as originals:
            _compare(originals, result, progress)
        if spec is not None and not spec.is_lossless:
            result.notes.append(
                "the tokenizer does not keep all of a text: compared are the ids that it gives"
            )
    what = "looks like a part of this dataset and is not listed in it; remove or rename it"
    result.problems += [Problem(name, what) for name in found]
    return result


def _look_beside(place: Located, names: list[str], result: VerifyResult) -> list[str]:
    """Check the files for other tools; names of those that no version lists."""
    if not names:
        _check_signposts(place, result)
        return []
    last = read_info(place.folder)  # a version may have come meanwhile
    if last.version == place.info.version:
        _check_signposts(place, result)
    return strays(all_files(place.folder, last), names)


def _check_signposts(place: Located, result: VerifyResult) -> None:
    """Add what is wrong with the files for other tools."""
    for name, (num_bytes, digest) in place.info.signposts.items():
        what = look_at(place.storage, name, num_bytes, RecordedSums()).what
        if not what:
            result.num_bytes += num_bytes
            found = xxhash.xxh3_64_intdigest(place.storage.contents(name, num_bytes))
            what = "" if found == digest else "its bytes differ from those written"
        if what:
            told = f"{what}; other tools may be told wrong things of this dataset"
            result.problems.append(Problem(name, told))


def _compare(originals: Originals, result: VerifyResult, progress: bool | None) -> None:
    """Add what the originals say of a dataset that is whole."""
    with Progress("comparing", progress) as bar:
        bar.expect(result.num_samples)
        found = [Problem(where, what) for where, what in originals.differences(bar)]
    if not originals.num_compared and originals.num_originals:
        what = (
            "has nothing in common with the dataset: none of its"
            f" {originals.num_originals:,} samples is there, and none of the dataset's"
            f" {result.num_samples:,} is here; give what the dataset was packed from"
        )
        found.insert(0, Problem(originals.name, what))
    result.problems += found
    result.is_compared, result.num_compared = True, originals.num_compared
    if number := originals.copies.num_found:
        result.notes.append(
            f"{number:,} inputs were left out as duplicates, see rejected.jsonl"
            if number > 1
            else "1 input was left out as a duplicate, see rejected.jsonl"
        )
    if originals.has_own_labels:
        result.notes.append("classes are of a file given by --labels, which was not compared")
    if originals.rewritten:
        result.notes.append(
            f"pictures were written anew ({', then '.join(originals.rewritten)}): keys, labels"
            " and all other fields were compared, but not pixels"
        )


class _SplitCheck:
    """Checks one split, adding to the result."""

    def __init__(
        self,
        place: Located,
        split: SplitInfo,
        spec: TokenizerSpec | None,
        recorded: RecordedSums,
        result: VerifyResult,
        bar: Progress,
    ) -> None:
        self._place = place
        self._split = split
        self._spec = spec
        self._recorded = recorded
        self._result = result
        self._bar = bar
        self._reader: ShardReader | None = None
        self._told: set[int] = set()

    def index(self) -> None:
        """Check rows, names, find and sums, and open those that are whole."""
        whole = {kind for kind in _WITHOUT if self._is_whole(kind)}
        if "sums" in whole and self._split.has_checksums:
            self._recorded.add(self._place.storage, self._split)
        if {"rows", "names"} <= whole:
            self._reader = ShardReader(self._place.storage, self._place.info, self._split)
            self._index_itself(self._reader.index, "find" in whole)

    def _index_itself(self, index: RowIndex, has_find: bool) -> None:
        """Look for what an index says that cannot be, though it is as it was written."""
        self._tell(wrong_rows(index, self._place.info.classes))
        if self._told:  # the rest would follow from it
            return
        self._tell(repeated_keys(index))
        for file, what in wrong_files(index, has_find):
            self._add(file, what)

    def shards(self) -> None:
        """Check every shard's files, and the samples in those that can be read."""
        start = 0
        for number, shard in enumerate(self._split.shards):
            self._shard(number, range(start, start + shard.num_rows))
            start += shard.num_rows

    def _add(self, where: str, what: str, shard: int | None = None, key: str = "") -> None:
        self._result.problems.append(Problem(where, what, self._split.name, shard, key))

    def _is_whole(self, kind: str) -> bool:
        storage, name = self._place.storage, self._split.index_file(kind)
        num_bytes, digest = self._split.files[name]
        what = look_at(storage, name, num_bytes, self._recorded).what
        if not what:
            self._result.num_bytes += num_bytes
            try:
                if xxhash.xxh3_64_intdigest(storage.contents(name, num_bytes)) != digest:
                    what = "its bytes differ from those written"
            except DataError as error:  # where it is compared before it counts
                what = f"cannot be read: {error}"
        if what:
            self._add(name, f"{what}; {_WITHOUT[kind]}")
        return not what

    def _shard(self, number: int, rows: range) -> None:
        sizes = self._split.shards[number].file_bytes
        damages = {name: self._file(name, sizes[name]) for name in sorted(sizes)}
        for name in filter(DALI_INDEX.fullmatch, sizes):
            self._dali_index(name, damages.pop(name), number)
        reader = None if any(damage.what for damage in damages.values()) else self._reader
        broken = self._samples(reader, rows) if reader else np.zeros(0, np.int64)
        for name, damage in damages.items():
            if damage.what:
                self._add(name, f"{damage.what}; its {len(rows)} samples were not checked", number)
            where, blocks = "", damage.blocks
            if reader is not None:
                where, blocks = "outside any sample, ", _outside(reader, broken, name, blocks)
                if not len(broken):
                    blocks = [
                        b for b in blocks if not self._is_stream(reader, name, sizes[name], b, rows)
                    ]
            for first, last in regions(blocks, sizes[name]):
                self._add(name, f"damage {where}in bytes {first} to {last}", number)

    def _is_stream(
        self, reader: ShardReader, name: str, num_bytes: int, block: int, rows: range
    ) -> bool:
        """Whether what is damaged in a block is one sample's; told, then."""
        data = read_block(reader.storage, name, num_bytes, block)
        digest = int(self._recorded[name][block])
        row = changed_stream(reader, rows, name, block * BLOCK_BYTES, data, digest)
        if row is not None:
            self._tell([(row, "its deflated bytes differ, and inflate to those packed")])
        return row is not None

    def _dali_index(self, name: str, damage: Damage, shard: int) -> None:
        what = damage.what or ("its bytes differ from those written" if damage.blocks else "")
        if what:
            self._add(name, f"{what}; shardkit.dali.write_index(...) makes it anew", shard)

    def _file(self, name: str, num_bytes: int) -> Damage:
        damage = look_at(self._place.storage, name, num_bytes, self._recorded)
        self._result.num_bytes += num_bytes
        self._bar.add(0, num_bytes)
        return damage

    def _samples(self, reader: ShardReader, rows: range) -> Integers:
        """The broken rows, each named."""
        broken = []
        for start, stop in reader.row_ranges(rows.start, rows.stop):
            piece = np.arange(start, stop, dtype=np.int64)
            found = _broken(reader, piece) if self._split.has_checksums else []
            whole = np.setdiff1d(piece, found)
            if self._split.has_checksums:
                self._tell(wrong_labels(reader, whole))
            self._tokens(reader, whole)
            broken += found
            self._result.num_samples += stop - start
            self._bar.add(stop - start, 0)
        self._tell((row, "its bytes differ from those packed") for row in broken)
        if self._split.has_checksums and not broken:
            self._tell(misplaced(reader, container_of(self._place.info), rows))
        return np.array(broken, np.int64)

    def _tell(self, found: Iterable[tuple[int, str]]) -> None:
        """Add what is wrong with rows: of each, what was found first."""
        for row, what in found:
            if row in self._told or self._reader is None:
                continue
            self._told.add(row)
            shard = int(self._reader.index.shard_of(np.array([row]))[0])
            try:
                key = self._reader.index.name(row)[0].decode(errors="surrogateescape")
            except IndexFileError:
                self._add(f"row {row} ({self._split.stem(shard)})", what, shard)
            else:
                self._add(self._reader.where(row), what, shard, key)

    def _tokens(self, reader: ShardReader, rows: Integers) -> None:
        if self._spec is not None and TOKENS in self._place.info.fields:
            self._tell(foreign_ids(reader, rows, self._spec))


def _broken(reader: ShardReader, rows: Integers) -> list[int]:
    try:
        matches = reader.matches(reader.gather(rows))
    except FormatError:  # a value does not fit its encoding: whose?
        if len(rows) == 1:
            return [int(rows[0])]
        return [row for one in rows for row in _broken(reader, np.array([one]))]
    return [int(row) for row in rows[~matches]]


def _outside(reader: ShardReader, rows: Integers, file_name: str, blocks: list[int]) -> list[int]:
    """Those blocks of a shard's file that hold nothing of the shard's given rows."""
    batch = reader.gather(rows)
    for name in reader.fields_in(batch, file_name):
        starts, sizes = reader.places(batch, name)
        first = starts[sizes > 0] // BLOCK_BYTES
        last = (starts + sizes - 1)[sizes > 0] // BLOCK_BYTES
        blocks = [b for b in blocks if not ((first <= b) & (b <= last)).any()]
    return blocks
