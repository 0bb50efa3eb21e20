"""All jobs of a pack: which are open, and what has become of the others."""

from __future__ import annotations

from collections.abc import Iterator

from shardkit.corpus.base import Corpus
from shardkit.errors import SampleError, TooManyRejectsError
from shardkit.images.naming import RAW_FIELD
from shardkit.index.parts import PartHead, part_path, read_head
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.job import Job
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.transform import unequal_shapes
from shardkit.system.progress import Progress
from shardkit.system.storage import file_size


class Jobs:
    """All jobs of a pack: listed, minus those done before, run, and their rejects counted."""

    def __init__(
        self, corpus: Corpus, place: Destination, options: PackOptions, progress: Progress
    ) -> None:
        self._work = place.work
        self._stage = place.stage
        self._options = options
        self._progress = progress
        self._first_reject = ""
        self.listing = Listing(place.work)
        self._raw: list[int] | None = None
        self.num_rejects = 0
        self.resumed: list[PartHead] = []
        self._jobs = list_jobs(corpus, self.listing, options, place.scratch)

    def run(self, engine: Engine) -> list[PartHead]:
        """Run what is open; all parts' heads, train first, then by split and shard."""
        # Resumed, a changed input is refused before any work, and the bar begins where it was.
        # Without workers listing comes first in any case; workers pack while it goes on.
        jobs = self._open()
        if self.listing.is_resumed or not self._options.num_workers:
            jobs = iter(list(jobs))
        heads = []
        for head in engine.run(jobs, self._progress):
            heads.append(head)
            self._count(head)
        heads += self.resumed
        return sorted(heads, key=lambda head: (head.split != "train", head.split, head.shard))

    def _open(self) -> Iterator[Job]:
        for job in self._jobs:
            head = self._finished(job)
            if head is None:
                yield job
            else:
                if head.rejects and self._options.on_error == "fail":
                    raise SampleError(": ".join(head.rejects[0]))
                self.resumed.append(head)
                self._progress.skip(job.num_entries)
                self._count(head)
        self._progress.expect(self.listing.num_entries)
        self._refuse_many()

    def _finished(self, job: Job) -> PartHead | None:
        """What an earlier call made of a job, if all of it is there; else it is made again."""
        head = read_head(part_path(self._work, job.split, job.shard))
        if head is None or head.stem != job.stem:
            return None
        if head.segment != job.digest:
            raise self.listing.changed(f"those of shard {job.stem}")
        sizes = {name: file_size(self._stage / name) for name in head.file_bytes}
        return head if sizes == head.file_bytes else None

    def _count(self, head: PartHead) -> None:
        self._compare_raw(head)
        if head.rejects:
            path, reason = head.rejects[0]
            self._first_reject = self._first_reject or f"{path}: {reason}"
            self.num_rejects += len(head.rejects)
            self._refuse_many()

    def _compare_raw(self, head: PartHead) -> None:
        """Raw pictures must have one shape in all shards, too."""
        shape = head.encodings.get(RAW_FIELD, {}).get("shape")
        if not self._options.images.is_raw or shape is None:
            return
        self._raw = self._raw or shape
        if shape != self._raw:
            raise unequal_shapes(f"every picture of shard {head.stem}", shape, self._raw)

    def _refuse_many(self) -> None:
        total, most = self.listing.num_entries, self._options.max_rejects
        if self.listing.is_complete and self.num_rejects > most * total:
            raise TooManyRejectsError(
                f"{self.num_rejects} of {total} inputs were rejected, more than the share of"
                f" {most:g} that --max-rejects allows; the first: {self._first_reject}"
            )
