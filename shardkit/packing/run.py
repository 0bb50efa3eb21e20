"""A pack from beginning to end: from a corpus to a dataset at its destination, resumably.

The destination holds a work folder while a pack is under way: a lock, the options it was started
with, the listing, and the files and the journal of finished shards. When all is whole it takes the
place of what was there, shardkit.json last; then the work folder goes. Killed at any moment, the
same call goes on and ends in the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, SampleError, UsageError
from shardkit.images.encode import require_writers
from shardkit.index.journal import Receipt, journal_path, read_receipt
from shardkit.index.manifest import PART_NAME
from shardkit.inputs.base import Corpus
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.finish import (
    Conclusion,
    Origin,
    ShardTally,
    in_order,
    made_of,
    own_origin,
    up_to_date,
)
from shardkit.packing.job import Setup
from shardkit.packing.listing import (
    LISTING_NAME,
    Job,
    ListedInput,
    Listing,
    decode_shard,
    list_jobs,
    read_segment,
)
from shardkit.packing.local import GrowingPool, InProcess, ProcessPool
from shardkit.packing.merge import FinishedPart
from shardkit.packing.options import PackOptions, Part
from shardkit.packing.result import COMPLETE, PackResult, dry_run, found, result_of_part
from shardkit.packing.tokenize import ChosenTokenizer, load_chosen, prepare_tokenizer
from shardkit.remote.urls import Url
from shardkit.system.byte_sizes import parse_size
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tokens.tokenizer import Tokenizer


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


def run_pack(
    source: Path,
    corpus: Corpus,
    dest: Path | Url,
    options: PackOptions,
    started: float,
    origin: Origin | None = None,
    classes: Sequence[str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> PackResult:
    """Pack a corpus into ``dest``.

    ``started`` is when the clock of the result began (``time.perf_counter``), and ``origin`` what
    the dataset says of where its samples came from, if not what the corpus says. ``classes``: names
    in the order of the numbers that they are to have, all of the corpus's among them.
    ``tokenizer``: in place of the one that the options name.
    """
    if options.images:
        require_writers(options.images)
    if options.part is not None and isinstance(dest, Url):
        raise UsageError(
            f"part {options.part} is packed into a folder, and {dest} is a URL: `shardkit merge`"
            " takes all parts there"
        )
    if options.dry_run:
        return dry_run(source, corpus, dest, options, started)
    tokenizer = tokenizer or load_chosen(options)
    inputs = origin.inputs if origin else {}
    if tokenizer is not None:
        inputs = {"the tokenizer": [int(tokenizer.spec.xxh3, 16)]}
    recipe = {"inputs": inputs, "corpus": corpus.spec(), "options": options.lasting()}
    if classes is not None:
        recipe["options"]["classes"] = list(classes)
    with os_errors(f"packing into {dest}"):
        at: Path | None = None  # of a dataset that may be complete already
        if isinstance(dest, Path) and options.part is None and not corpus.is_read_once:
            # A copy of itself is none: it is refused below.
            at = dest.resolve() if dest.resolve() != source.resolve() else None
        asked = corpus, options, recipe, origin, started
        if at is not None and (found := up_to_date(at, *asked)):
            return found
        with _open(dest, source, options) as destination:
            if finished := destination.finished(recipe, PackResult):
                if at is not None and up_to_date(at, *asked) is None:
                    raise destination.taken()
                notes = [*finished.notes, COMPLETE]
                return replace(finished, notes=notes, was_complete=True)
            if options.overwrite:
                destination.clear()
            destination.prepare(recipe)
            destination.scratch.mkdir(exist_ok=True)
            runs = partial(corpus.runs, destination.scratch)
            chosen = prepare_tokenizer(destination, corpus, runs, options, tokenizer)
            pack = _Pack(source, corpus, destination, options, recipe, chosen, origin, classes)
            return pack.run(started)


def _open(dest: Path | Url, source: Path, options: PackOptions) -> Destination:
    most = None if options.staging_bytes is None else parse_size(options.staging_bytes)
    is_shared = options.engine == "ray"
    if isinstance(dest, Path) and options.staging is None and most is None:
        return Destination(dest, source, options.overwrite, is_shared)
    from shardkit.packing.remote_destination import open_destination

    return open_destination(dest, source, options.overwrite, options.staging, most, is_shared)


@dataclass(frozen=True)
class _Pack:
    """A pack of which all is decided, and the destination is held."""

    source: Path
    corpus: Corpus
    destination: Destination
    options: PackOptions
    recipe: dict[str, Any]
    chosen: ChosenTokenizer | None
    origin: Origin | None
    classes: Sequence[str] | None = None

    def run(self, started: float) -> PackResult:
        before_workers = time.perf_counter()
        with self._engine() as engine, Progress("packing", self.options.progress) as progress:
            started += time.perf_counter() - before_workers
            if self.options.part is not None:  # it is not finished while it is made again
                (self.destination.work / PART_NAME).unlink(missing_ok=True)
            jobs = Jobs(self.corpus, self.destination, self.options, progress)
            receipts = jobs.run(engine)
            listed = ListedInput.of(self.corpus, jobs.listing)
            if self.classes is not None:
                listed = replace(listed, classes=[*self.classes])
            if part := self.options.own_part:
                return self._finish_part(part, receipts, jobs, listed, started)
            if not any(receipt.num_rows for receipt in receipts):
                raise CorpusError(
                    f"nothing could be packed from {self.source}: every input was rejected"
                )
            origin = self.origin
            if self.corpus.is_read_once:  # a listing has what the iterator gave, by chance, at once
                origin = own_origin(listed.spec, made_of(self.recipe, ""))
            end = Conclusion(self.destination, self.options, self.recipe, self.chosen, origin)
            num_rejects, num_resumed = jobs.tally.num_rejects, len(jobs.resumed)
            return end.publish(receipts, listed, num_rejects, num_resumed, started)

    def _engine(self) -> Engine:
        setup = Setup(
            source=str(self.source.absolute()),
            dest=str(self.destination.dest),
            corpus=self.corpus.spec(),
            to=self.options.to,
            compression=self.options.compression,
            skip_bad=self.options.on_error == "skip",
            check_images=self.options.check_images,
            dali_index=self.options.dali_index,
            images=self.options.images.to_json(),
            tokens=None if self.chosen is None else asdict(self.chosen),
            numbers=self._numbers(),
            objects=self._objects(),
        )
        return choose_engine(setup, self.corpus, self.options, self.destination)

    def _objects(self) -> bytes:
        """Return what other processes need of the input besides its spec, if there will be any."""
        has_others = self.options.engine == "ray" or bool(self.options.workers)
        return self.corpus.objects() if has_others else b""

    def _numbers(self) -> list[int] | None:
        """What each class number of the corpus becomes."""
        if self.classes is None or self.corpus.classes is None:
            return None
        return [self.classes.index(name) for name in self.corpus.classes]

    def _finish_part(
        self, part: Part, receipts: list[Receipt], jobs: Jobs, listed: ListedInput, started: float
    ) -> PackResult:
        """Leave the shards where they are, and beside them what ``merge`` needs to know."""
        own_names = {journal_path(self.destination.work, r.split, r.shard) for r in receipts}
        for path in set(self.destination.work.glob("*.part")) - own_names:
            path.unlink()  # of whatever put it there
        whole = {name: v for name, v in self.recipe["options"].items() if name != "part"}
        FinishedPart(
            part=part,
            recipe=self.recipe | {"options": whole},
            listed=listed,
            num_shards=jobs.num_shards,
            max_rejects=self.options.max_rejects,
            chosen=None if self.chosen is None else asdict(self.chosen),
        ).write(self.destination.work)
        own = replace(listed, num_bytes=jobs.num_bytes)
        result = result_of_part(part, self.destination.dest, self.options.to, own, receipts)
        return replace(
            result,
            resumed_shards=len(jobs.resumed),
            seconds=time.perf_counter() - started,
            notes=[*result.notes, *(self.chosen.notes if self.chosen else [])],
        )


def choose_engine(
    setup: Setup, corpus: Corpus, options: PackOptions, destination: Destination
) -> Engine:
    """Where the jobs of a pack are done."""
    if options.engine == "ray":
        from shardkit.packing.ray_engine import RayTasks

        return RayTasks(setup, options, destination.check_held)
    if not options.num_workers:
        return InProcess(setup, corpus)
    if options.workers is None:
        return GrowingPool(setup, corpus, options.num_workers, destination.lock_fd)
    return ProcessPool(setup, options.num_workers, destination.lock_fd)
