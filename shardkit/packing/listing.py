"""Listing a corpus into shard jobs, on disk, while the first of them may already run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Integers
from shardkit.commit.own_files import create
from shardkit.commit.records import read_record, write_record
from shardkit.errors import CorpusError, ResumeError, StorageError
from shardkit.index.journal import Receipt
from shardkit.inputs.corpus import Corpus, Run
from shardkit.packing.options import PackOptions
from shardkit.packing.plan import Cutter, ScatteredEntries, Shard, cut, num_val, take
from shardkit.system.paths import show_path
from shardkit.system.stamps import UPPER


@dataclass(frozen=True)
class Job:
    """One shard to make: where its entries stand in the listing, and how many input bytes.

    Attributes:
        digest: XXH3-64 of its segment. seen: of what people see of its inputs: their names, sizes
            and times of change.
    """

    split: str
    shard: int
    start: int
    size: int
    digest: int
    seen: int
    num_entries: int
    num_bytes: int = 0

    @property
    def stem(self) -> str:
        return f"{self.split}-{self.shard:05d}"


LISTING_NAME = "listing"
"""In the work folder."""


def encode_shard(runs: Sequence[Run], order: Integers | None = None) -> bytes:
    """Return one segment: for each run a JSON line, its numbers, its locators and its keys.

    ``order`` is that of the samples, where it is not that of the runs' entries: indices of entries.
    """
    parts: list[bytes] = []
    for run in runs:
        locators = b"\0".join(run.locators)
        keys = b"\0".join(run.keys)
        head = [run.split, run.base, run.label, len(run), len(locators), len(keys)]
        numbers = np.array([run.sizes, run.stamps], "<i8")
        parts += [json.dumps(head).encode(), b"\n", numbers.tobytes(), locators, keys]
    if order is not None:
        parts += [json.dumps([len(order)]).encode(), b"\n", order.astype("<i8").tobytes()]
    return b"".join(parts)


def decode_shard(segment: bytes) -> tuple[list[Run], Integers | None]:
    """Undo :func:`encode_shard`."""
    records = list(_records(segment))
    orders = [record for record in records if not isinstance(record, Run)]
    return [record for record in records if isinstance(record, Run)], orders[0] if orders else None


def decode_runs(listing: bytes) -> Iterator[Run]:
    """Yield all runs of a whole listing. A run cut short, by a kill, ends it."""
    return (record for record in _records(listing) if isinstance(record, Run))


def _records(data: bytes) -> Iterator[Run | Integers]:
    at = 0
    while (line_end := data.find(b"\n", at)) >= 0:
        head = json.loads(data[at:line_end])
        at = line_end + 1
        if len(head) == 1:
            yield np.frombuffer(data, "<i8", head[0], at)
            at += 8 * head[0]
            continue
        split, base, label, count, locators_len, keys_len = head
        if at + 16 * count + locators_len + keys_len > len(data):
            return
        numbers = np.frombuffer(data, "<i8", 2 * count, at).reshape(2, count)
        at += 16 * count
        locators = data[at : at + locators_len].split(b"\0") if count else []
        at += locators_len
        keys = data[at : at + keys_len].split(b"\0") if count else []
        at += keys_len
        yield Run(split, base, label, locators, keys, numbers[0].tolist(), numbers[1].tolist())


def read_entries(work: Path, job: Job) -> tuple[list[Run], Integers | None]:
    """Return the entries of a job, as :func:`decode_shard`, from the listing in a work folder.

    Raises:
        StorageError: they are not as they were written.
    """
    path = work / LISTING_NAME
    with path.open("rb") as file:
        file.seek(job.start)
        segment = file.read(job.size)
    if xxhash.xxh3_64_intdigest(segment) != job.digest:
        raise StorageError(
            f"{show_path(path)} is not as it was written; run the same command again"
        )
    return decode_shard(segment)


def first_change(old: Iterable[Run], new: Iterable[Run]) -> str | None:
    """Return what changed between two listings, in words; None if nothing did."""
    for before, after in zip_longest(_entries(old), _entries(new)):
        if before == after:
            continue
        if before is None:
            return f"{_name(after)} was added"
        if after is None:
            return f"{_name(before)} is gone"
        if _name(before) == _name(after):
            return f"{_name(before)} changed ({before[2]} bytes then, {after[2]} now)"
        return f"{_name(before)} was expected, {_name(after)} found"
    return None


_Entry = tuple[str, bytes, int, int, int | None, str]


def _entries(runs: Iterable[Run]) -> Iterator[_Entry]:
    for run in runs:
        for entry in zip(run.locators, run.keys, run.sizes, run.stamps, strict=True):
            locator, _, size, stamp = entry
            yield run.base, locator, size, stamp >> UPPER, run.label, run.split


def _name(entry: _Entry) -> str:
    base, locator = entry[:2]
    # What may follow the path in a locator is for its corpus alone, and long.
    text = locator.partition(b"//")[0].decode(errors="backslashreplace")
    return repr(f"{base}/{text}" if base else text)


@dataclass(frozen=True)
class ListedInput:
    """Plain values, so that who has no access to the input may have them.

    Attributes:
        kind, classes, spec, ignored, notes: as of :class:`shardkit.inputs.corpus.Corpus`.
        num_entries, num_bytes: listed. contents, seen: checksums of that, as of
            :class:`shardkit.packing.listing.Listing`.
    """

    kind: str
    classes: list[str] | None
    spec: dict[str, Any]
    ignored: dict[str, int]
    notes: list[str]
    num_entries: int
    num_bytes: int
    contents: str
    seen: str

    @classmethod
    def of(cls, corpus: Corpus, listing: Listing) -> ListedInput:
        return cls(
            kind=corpus.kind,
            classes=corpus.classes,
            spec=corpus.spec(),
            ignored=dict(corpus.ignored),
            notes=[*corpus.notes],
            num_entries=listing.num_entries,
            num_bytes=listing.num_bytes,
            contents=listing.contents,
            seen=listing.seen,
        )


TRAIN, VAL = "train", "val"


class Listing:
    """The listing file of one pack: written once, then read by jobs, compared when resumed.

    Attributes:
        num_entries, num_bytes: listed so far. is_complete: whether that is all.
        is_resumed: an earlier call had listed everything.
    """

    def __init__(self, work: Path, *, is_new: bool = False) -> None:
        """``is_new``: an earlier call's is of no use."""
        self._done = work / "listing.json"
        if is_new:
            self._done.unlink(missing_ok=True)
        self._kept = work / LISTING_NAME
        self._was = read_record(self._done) if self._done.exists() else None
        self.is_resumed = self._was is not None  # a damaged record is none
        self._path = work / "listing.new" if self.is_resumed else self._kept
        self._end = 0
        self._seen = xxhash.xxh3_64()
        self._contents = xxhash.xxh3_64()
        self.num_entries = 0
        self.num_bytes = 0
        self.is_complete = False
        self.scatter_path = work / "listing.tmp"
        self._old = work / "listing.old"
        if self._kept.exists() and not self.is_resumed:
            self._kept.replace(self._old)
        create(self._path).close()

    def add(self, split: str, shard: int, runs: list[Run], order: Integers | None) -> Job:
        """Append one shard's entries."""
        segment = encode_shard(runs, order)
        with self._path.open("ab") as file:
            file.write(segment)
        timeless = encode_shard([replace(r, stamps=[0] * len(r)) for r in runs], order)
        self._contents.update(timeless)
        stamps = np.array([stamp for run in runs for stamp in run.stamps], np.int64)
        seen = timeless + (stamps >> UPPER).tobytes()
        self._seen.update(seen)
        count, num_bytes = sum(map(len, runs)), sum(sum(run.sizes) for run in runs)
        digests = xxhash.xxh3_64_intdigest(segment), xxhash.xxh3_64_intdigest(seen)
        job = Job(split, shard, self._end, len(segment), *digests, count, num_bytes)
        self._end += len(segment)
        self.num_entries += count
        self.num_bytes += num_bytes
        return job

    def add_packed(self, receipt: Receipt) -> Job:
        """Return the job that a receipt answers, whose entries are listed nowhere any more."""
        num_entries = receipt.num_rows + len(receipt.rejects)
        self.num_entries += num_entries
        self.num_bytes += receipt.num_bytes
        digests = receipt.segment, receipt.seen
        return Job(receipt.split, receipt.shard, 0, 0, *digests, num_entries, receipt.num_bytes)

    @property
    def contents(self) -> str:
        """Return a checksum of all that is listed but times: splits, shards, names, labels and
        sizes."""
        return self._contents.hexdigest()

    @property
    def seen(self) -> str:
        """Return the same of all that people see of the inputs: times, too."""
        return self._seen.hexdigest()

    def complete(self) -> None:
        """Record that all is listed. Raises ResumeError if an earlier listing was another."""
        self.is_complete = True
        state = {"bytes": self._end, "xxh3": self.seen}
        if not self.is_resumed:
            write_record(self._done, state)
            return
        if self._was != state:
            raise self.changed("shards are cut otherwise, or one that was left out is another")
        # As good as equal, unless that one was damaged: files may have been moved or copied.
        self._path.replace(self._kept)

    def changed(self, otherwise: str) -> ResumeError:
        """Return the error that names the first input that is not as an earlier call listed it."""
        before = self._kept if self.is_resumed else self._old
        what = None
        if before.exists():
            with suppress(ValueError, TypeError, OverflowError):  # it is damaged
                old, new = (decode_runs(path.read_bytes()) for path in (before, self._path))
                what = first_change(old, new)
        return ResumeError(
            f"input files changed since this pack was started: {what or otherwise}; restore them,"
            " or pass --overwrite to start afresh"
        )


def list_jobs(
    corpus: Corpus, listing: Listing, options: PackOptions, runs: Iterable[Run]
) -> Iterator[Job]:
    """Cut what the corpus lists into jobs; each is ready to run when it is yielded.

    Raises:
        ResumeError: an earlier, complete listing was another.
        CorpusError: ``val_fraction`` asks for a split that is there, or of one that is not.
    """
    splits = corpus.splits() if options.val_fraction else [TRAIN]
    if VAL in splits:
        raise CorpusError(f"the source has a split {VAL!r} already; leave out --val-fraction")
    if TRAIN not in splits:
        raise CorpusError(
            f"the source has no split {TRAIN!r} to cut from, only {', '.join(splits)}; leave out"
            " --val-fraction"
        )
    if corpus.packed is not None:
        yield from _list_mixed(listing, options, runs, corpus.packed)
        listing.complete()
        return
    for split, own in groupby(runs, key=lambda run: run.split):
        for name, shards in _divide(corpus, split, own, options, listing.scatter_path):
            for number, (shard, order) in enumerate(shards):
                yield listing.add(name, number, shard, order)
    listing.complete()


def _list_mixed(
    listing: Listing, options: PackOptions, runs: Iterable[Run], packed: Sequence[Receipt]
) -> Iterator[Job]:
    """Cut runs of which those of a split need not follow one another, behind the shards packed."""
    cutters: dict[str, Cutter] = {}
    numbers, num_bytes = Counter[str](), Counter[str]()
    for receipt in packed:
        yield listing.add_packed(receipt)
        numbers[receipt.split] += 1
        num_bytes[receipt.split] += receipt.num_bytes

    def jobs(split: str, shards: Iterator[list[Run]]) -> Iterator[Job]:
        for shard in shards:
            yield listing.add(split, numbers[split], shard, None)
            numbers[split] += 1

    for run in runs:
        if run.split not in cutters:
            cutters[run.split] = Cutter(*_sizes_of(options), begin=num_bytes[run.split])
        yield from jobs(run.split, cutters[run.split].add(run))
    for split, cutter in cutters.items():
        yield from jobs(split, cutter.end())


def _sizes_of(options: PackOptions) -> tuple[int, int | None]:
    """Return the most, and the least, that a shard is to hold."""
    given = options.shard_bytes
    return (given, None) if isinstance(given, int) else given[::-1]


def _divide(
    corpus: Corpus, split: str, runs: Iterator[Run], options: PackOptions, scatter_path: Path
) -> Iterator[tuple[str, Iterator[Shard]]]:
    """Yield the splits to make of one: itself, reordered on request, less a validation split."""
    val_fraction = options.val_fraction if split == TRAIN else 0.0
    sizes = _sizes_of(options)
    if corpus.keeps_shards:
        yield split, (([run], None) for run in runs)
    elif not options.shuffle and not val_fraction:
        shards = cut(take(runs, options.limit), *sizes)
        yield split, ((shard, None) for shard in shards)
    else:
        entries = ScatteredEntries(runs, scatter_path)
        in_val = entries.choose(num_val(len(entries), val_fraction), options.seed)
        order = entries.order(options.seed) if options.shuffle else np.arange(len(entries))
        for name, own in ((split, order[~in_val[order]]), (VAL, order[in_val[order]])):
            if len(own):
                yield name, entries.shards(name, own[: options.limit], *sizes)
        entries.close()
