"""All jobs of a pack: which are open, and what has become of the others."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.errors import SampleError, TooManyRejectsError
from shardkit.images.naming import RAW_FIELD
from shardkit.index.journal import Receipt, journal_path, read_receipt
from shardkit.inputs.base import Corpus
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.listing import (
    LISTING_NAME,
    Job,
    Listing,
    decode_shard,
    list_jobs,
    read_segment,
)
from shardkit.packing.options import PackOptions
from shardkit.packing.pictures import unequal_shapes
from shardkit.packing.result import found
from shardkit.system.progress import Progress


class ShardTally:
    """Of one pack.

    Attributes:
        num_rejects: inputs left out so far.
    """

    def __init__(self, max_rejects: float, *, is_raw: bool) -> None:
        self.num_rejects = 0
        self._max_rejects = max_rejects
        self._is_raw = is_raw
        self._first_reject = ""
        self._shape: list[int] | None = None

    def count(self, receipt: Receipt) -> None:
        """Raises SampleError if raw pictures have another shape than those of earlier shards."""
        shape = receipt.encodings.get(RAW_FIELD, {}).get("shape")
        if self._is_raw and shape is not None:
            self._shape = self._shape or shape
            if shape != self._shape:
                raise unequal_shapes(f"every picture of shard {receipt.stem}", shape, self._shape)
        if receipt.rejects:
            path, reason = receipt.rejects[0]
            self._first_reject = self._first_reject or f"{path}: {reason}"
            self.num_rejects += len(receipt.rejects)

    def refuse_many(self, num_entries: int) -> None:
        """Raises TooManyRejectsError if of so many inputs too many were left out."""
        if self.num_rejects > self._max_rejects * num_entries:
            raise TooManyRejectsError(
                f"{self.num_rejects} of {num_entries} inputs were rejected, more than the share of"
                f" {self._max_rejects:g} that --max-rejects allows; the first:"
                f" {self._first_reject}"
            )


def in_order(receipts: list[Receipt]) -> list[Receipt]:
    """As the dataset has them: train first, then by split and shard."""
    return sorted(receipts, key=lambda own: (own.split != "train", own.split, own.shard))


class Jobs:
    """All jobs of a pack, or of a part of it: listed, minus those done before, run, and their
    rejects counted.

    Attributes:
        listing: of all. num_shards: of each split, in all parts. num_entries, num_bytes: of its own
            jobs.
    """

    def __init__(
        self,
        corpus: Corpus,
        destination: Destination,
        options: PackOptions,
        progress: Progress,
    ) -> None:
        self._destination = destination
        self._work = destination.work
        self._corpus = corpus
        self._is_read_once = corpus.is_read_once
        self._options = options
        self._progress = progress
        self._is_announced = False
        if corpus.packed is not None:
            kept = {journal_path(self._work, own.split, own.shard) for own in corpus.packed}
            for path in {*self._work.glob("*.part")} - kept:
                path.unlink()  # it holds samples that come again
        self.listing = Listing(destination.work, is_new=corpus.packed is not None)
        self.tally = ShardTally(options.max_rejects, is_raw=options.images.is_raw)
        self.num_shards: dict[str, int] = {}
        self.num_entries = self.num_bytes = 0
        self.resumed: list[Receipt] = []
        self._jobs = list_jobs(corpus, self.listing, options, corpus.runs(destination.scratch))

    def run(self, engine: Engine) -> list[Receipt]:
        """Run what is open; the receipts of all jobs, train first, then by split and shard."""
        # Resumed, a changed input is refused before any work, and the bar begins where it was.
        # Without workers listing comes first in any case; workers pack while it goes on. What is
        # read once is not held until all is listed.
        jobs = self._open()
        if not self._is_read_once and (self.listing.is_resumed or not self._options.num_workers):
            jobs = iter(list(jobs))
        receipts = []
        for receipt in engine.run(jobs, self._progress):
            receipts.append(receipt)
            self._count(receipt)
            self._destination.deliver(receipt)
        receipts += self.resumed
        return in_order(receipts)

    def _open(self) -> Iterator[Job]:
        part = self._options.own_part
        for number, job in enumerate(self._jobs):
            self.num_shards[job.split] = job.shard + 1
            if part is not None and not part.has(number):
                continue
            self.num_entries += job.num_entries
            self.num_bytes += job.num_bytes
            receipt = self._finished(job)
            if receipt is None:
                self._announce(job)
                yield job
            else:
                if receipt.rejects and self._options.on_error == "fail":
                    raise SampleError(": ".join(receipt.rejects[0]))
                self.resumed.append(receipt)
                self._progress.skip(job.num_entries)
                self._count(receipt)
                self._destination.deliver(receipt)
        self._progress.expect(self.num_entries)
        self.tally.refuse_many(self.listing.num_entries)

    def _announce(self, job: Job) -> None:
        """Say before the first job what was found, where somebody looks on."""
        if not self._progress.is_shown or self._is_read_once or self._is_announced:
            return
        self._is_announced = True
        segment = read_segment(self._work / LISTING_NAME, job.start, job.size, job.digest)
        runs = decode_shard(segment)[0]
        scratch, dest = self._destination.scratch, self._destination.dest
        self._progress.say(found(self._corpus, runs[0], scratch, dest))

    def _finished(self, job: Job) -> Receipt | None:
        """What an earlier call made of a job, if all of it is there; else it is made again."""
        receipt = read_receipt(journal_path(self._work, job.split, job.shard))
        if receipt is None or receipt.stem != job.stem:
            return None
        if receipt.seen != job.seen:
            raise self.listing.changed(f"those of shard {job.stem}")
        if receipt.segment != job.digest:
            return None  # inputs were moved or copied, or changed and the time was set back
        sizes = {name: self._destination.size_of(name) for name in receipt.file_bytes}
        return receipt if sizes == receipt.file_bytes else None

    def _count(self, receipt: Receipt) -> None:
        self.tally.count(receipt)
        if self.listing.is_complete:
            self.tally.refuse_many(self.listing.num_entries)
