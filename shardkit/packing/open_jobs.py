"""All jobs of a pack: which are open, and what has become of the others."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.corpus.base import Corpus
from shardkit.errors import SampleError, TooManyRejectsError
from shardkit.images.naming import RAW_FIELD
from shardkit.index.journal import Receipt, journal_path, read_receipt
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.job import Job
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.pictures import unequal_shapes
from shardkit.system.progress import Progress


class Jobs:
    """All jobs of a pack: listed, minus those done before, run, and their rejects counted."""

    def __init__(
        self, corpus: Corpus, destination: Destination, options: PackOptions, progress: Progress
    ) -> None:
        self._destination = destination
        self._work = destination.work
        self._options = options
        self._progress = progress
        self._first_reject = ""
        self.listing = Listing(destination.work)
        self._raw: list[int] | None = None
        self.num_rejects = 0
        self.resumed: list[Receipt] = []
        self._jobs = list_jobs(corpus, self.listing, options, destination.scratch)

    def run(self, engine: Engine) -> list[Receipt]:
        """Run what is open; the receipts of all jobs, train first, then by split and shard."""
        # Resumed, a changed input is refused before any work, and the bar begins where it was.
        # Without workers listing comes first in any case; workers pack while it goes on.
        jobs = self._open()
        if self.listing.is_resumed or not self._options.num_workers:
            jobs = iter(list(jobs))
        receipts = []
        for receipt in engine.run(jobs, self._progress):
            receipts.append(receipt)
            self._count(receipt)
            self._destination.deliver(receipt)
        receipts += self.resumed
        return sorted(receipts, key=lambda own: (own.split != "train", own.split, own.shard))

    def _open(self) -> Iterator[Job]:
        for job in self._jobs:
            receipt = self._finished(job)
            if receipt is None:
                yield job
            else:
                if receipt.rejects and self._options.on_error == "fail":
                    raise SampleError(": ".join(receipt.rejects[0]))
                self.resumed.append(receipt)
                self._progress.skip(job.num_entries)
                self._count(receipt)
                self._destination.deliver(receipt)
        self._progress.expect(self.listing.num_entries)
        self._refuse_many()

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
        self._compare_raw(receipt)
        if receipt.rejects:
            path, reason = receipt.rejects[0]
            self._first_reject = self._first_reject or f"{path}: {reason}"
            self.num_rejects += len(receipt.rejects)
            self._refuse_many()

    def _compare_raw(self, receipt: Receipt) -> None:
        """Raw pictures must have one shape in all shards, too."""
        shape = receipt.encodings.get(RAW_FIELD, {}).get("shape")
        if not self._options.images.is_raw or shape is None:
            return
        self._raw = self._raw or shape
        if shape != self._raw:
            raise unequal_shapes(f"every picture of shard {receipt.stem}", shape, self._raw)

    def _refuse_many(self) -> None:
        total, most = self.listing.num_entries, self._options.max_rejects
        if self.listing.is_complete and self.num_rejects > most * total:
            raise TooManyRejectsError(
                f"{self.num_rejects} of {total} inputs were rejected, more than the share of"
                f" {most:g} that --max-rejects allows; the first: {self._first_reject}"
            )
