"""A pack from beginning to end: from a corpus to a dataset at its destination, resumably.

The destination holds a work folder while a pack is under way: a lock, the options it was started
with, the listing, and the files and the journal of finished shards. When all is whole it takes the
place of what was there, shardkit.json last; then the work folder goes. Killed at any moment, the
same call goes on and ends in the same bytes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from shardkit.commit.records import write_record
from shardkit.errors import CorpusError, SampleError, UsageError
from shardkit.images.encode import require_writers
from shardkit.index.file_names import PART_NAME
from shardkit.index.journal import Receipt, journal_path, read_receipt
from shardkit.inputs.corpus import Corpus
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine
from shardkit.packing.finish import Conclusion, Origin, ShardTally, in_order, up_to_date
from shardkit.packing.job import Setup
from shardkit.packing.listing import Job, ListedInput, Listing, list_jobs, read_entries
from shardkit.packing.local import LocalEngine
from shardkit.packing.options import PackOptions, Part
from shardkit.packing.parts import FinishedPart
from shardkit.packing.remote_destination import open_destination
from shardkit.packing.result import COMPLETE, PackResult, dry_run, found
from shardkit.packing.tokenize import ChosenTokenizer, load_chosen, prepare_tokenizer
from shardkit.remote.urls import Url
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tokens.tokenizer import Tokenizer


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
        is_shared = options.engine == "ray"
        where = dest, source, options.overwrite, options.staging, options.staging_bytes
        with open_destination(*where, is_shared) as destination:
            if finished := destination.finished(recipe, PackResult):
                if at is not None and up_to_date(at, *asked) is None:
                    raise destination.taken()
                notes = [*finished.notes, COMPLETE]
                return replace(finished, notes=notes, was_complete=True)
            destination.prepare(recipe)
            destination.scratch.mkdir(exist_ok=True)
            chosen = prepare_tokenizer(destination, corpus, options, tokenizer)
            pack = _Pack(source, corpus, destination, options, recipe, chosen, origin, classes)
            return pack.run(started)


@dataclass
class _Pack:
    """A pack of which all is decided, and the destination is held: its jobs are listed, those done
    before are left out, the others run, and rejects counted.

    Attributes:
        classes: as of :func:`run_pack`. num_shards: of each split, in all parts. num_bytes: of its
            own jobs. resumed: receipts of shards that an earlier call finished.
    """

    source: Path
    corpus: Corpus
    destination: Destination
    options: PackOptions
    recipe: dict[str, Any]
    chosen: ChosenTokenizer | None
    origin: Origin | None
    classes: Sequence[str] | None
    num_shards: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    resumed: list[Receipt] = field(default_factory=list)

    def run(self, started: float) -> PackResult:
        before_workers = time.perf_counter()
        options, work = self.options, self.destination.work
        engine = choose_engine(self._setup(), self.corpus, options, self.destination)
        with closing(engine), Progress("packing", options.progress) as progress:
            started += time.perf_counter() - before_workers
            if options.part is not None:  # it is not finished while it is made again
                (work / PART_NAME).unlink(missing_ok=True)
            packed = self.corpus.packed
            if packed is not None:
                self._keep_only(packed)  # others hold samples that come again
            self.listing = Listing(work, is_new=packed is not None)
            self.tally = ShardTally(options.max_rejects, is_raw=options.images.is_raw)
            jobs = self._open_jobs(progress)
            # Resumed, a changed input is refused before any work, and the bar begins where it was.
            # Without workers listing comes first in any case; workers pack while it goes on. What
            # is read once is not held until all is listed.
            is_listed_first = self.listing.is_resumed or not options.num_workers
            if is_listed_first and not self.corpus.is_read_once:
                jobs = iter(list(jobs))
            receipts = []
            for receipt in engine.run(jobs, progress):
                receipts.append(receipt)
                self._take(receipt)
            receipts = in_order(receipts + self.resumed)
            listed = ListedInput.of(self.corpus, self.listing)
            if self.classes is not None:
                listed = replace(listed, classes=[*self.classes])
            if options.own_part:
                return self._finish_part(options.own_part, receipts, listed, started)
            if not any(receipt.num_rows for receipt in receipts):
                raise CorpusError(
                    f"nothing could be packed from {self.source}: every input was rejected"
                )
            origin = self.origin
            if self.corpus.is_read_once:  # a listing has what the iterator gave, by chance, at once
                origin, listed = None, replace(listed, contents="")
            end = Conclusion(self.destination, options, self.recipe, self.chosen, origin)
            return end.publish(receipts, listed, len(self.resumed), started)

    def _setup(self) -> Setup:
        numbers = None
        if self.classes is not None and self.corpus.classes is not None:
            numbers = [self.classes.index(name) for name in self.corpus.classes]
        return Setup(
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
            numbers=numbers,
        )

    def _keep_only(self, receipts: Sequence[Receipt]) -> None:
        """Remove all that the journal has besides the shards of these."""
        kept = {journal_path(self.destination.work, own.split, own.shard) for own in receipts}
        for path in {*self.destination.work.glob("*.part")} - kept:
            path.unlink()

    # --- jobs -----------------------------------------------------------------------------

    def _open_jobs(self, progress: Progress) -> Iterator[Job]:
        """Yield the jobs that nobody has done, and take what was made of the others."""
        part, scratch = self.options.own_part, self.destination.scratch
        num_entries = 0
        is_announced = not progress.is_shown or self.corpus.is_read_once
        jobs = list_jobs(self.corpus, self.listing, self.options, self.corpus.runs(scratch))
        for number, job in enumerate(jobs):
            self.num_shards[job.split] = job.shard + 1
            if part is not None and not part.has(number):
                continue
            num_entries += job.num_entries
            self.num_bytes += job.num_bytes
            receipt = self._finished(job)
            if receipt is None:
                if not is_announced:
                    is_announced = True
                    runs, _ = read_entries(self.destination.work, job)
                    progress.say(found(self.corpus, runs[0], scratch, self.destination.dest))
                yield job
                continue
            if receipt.rejects and self.options.on_error == "fail":
                raise SampleError(": ".join(receipt.rejects[0]))
            self.resumed.append(receipt)
            progress.skip(job.num_entries)
            self._take(receipt)
        progress.expect(num_entries)
        self.tally.refuse_many(self.listing.num_entries)

    def _finished(self, job: Job) -> Receipt | None:
        """Return what an earlier call made of a job, if all of it is there; else it is made
        again."""
        receipt = read_receipt(journal_path(self.destination.work, job.split, job.shard))
        if receipt is None or receipt.stem != job.stem:
            return None
        if receipt.seen != job.seen:
            raise self.listing.changed(f"those of shard {job.stem}")
        if receipt.segment != job.digest:
            return None  # inputs were moved or copied, or changed and the time was set back
        sizes = {name: self.destination.size_of(name) for name in receipt.file_bytes}
        return receipt if sizes == receipt.file_bytes else None

    def _take(self, receipt: Receipt) -> None:
        self.tally.count(receipt)
        if self.listing.is_complete:
            self.tally.refuse_many(self.listing.num_entries)
        self.destination.deliver(receipt)

    # --- a part ---------------------------------------------------------------------------

    def _finish_part(
        self, part: Part, receipts: list[Receipt], listed: ListedInput, started: float
    ) -> PackResult:
        """Leave the shards where they are, and beside them what ``merge`` needs to know."""
        self._keep_only(receipts)  # others are of whatever put them there
        options = {name: v for name, v in self.recipe["options"].items() if name != "part"}
        finished = FinishedPart(
            part=part,
            recipe=self.recipe | {"options": options},
            listed=listed,
            num_shards=self.num_shards,
            max_rejects=self.options.max_rejects,
            chosen=None if self.chosen is None else asdict(self.chosen),
        )
        write_record(self.destination.work / PART_NAME, asdict(finished))
        splits = Counter[str]()
        for receipt in receipts:
            splits[receipt.split] += receipt.num_rows
        notes = [f"part {part}: `shardkit merge` makes the dataset of all {part.total}"]
        return PackResult(
            dest=self.destination.dest,
            container=self.options.to,
            kind=listed.kind,
            splits=dict(splits),
            num_samples=splits.total(),
            num_shards=len(receipts),
            num_rejects=self.tally.num_rejects,
            input_bytes=self.num_bytes,
            dataset_bytes=sum(sum(receipt.file_bytes.values()) for receipt in receipts),
            resumed_shards=len(self.resumed),
            seconds=time.perf_counter() - started,
            ignored=dict(listed.ignored),
            notes=[*notes, *(self.chosen.notes if self.chosen else [])],
            part=str(part),
        )


def choose_engine(
    setup: Setup, corpus: Corpus, options: PackOptions, destination: Destination
) -> Engine:
    """Return what does the jobs of a pack."""
    if options.engine == "ray":
        from shardkit.packing.ray_engine import RayTasks

        setup = replace(setup, objects=corpus.objects())
        return RayTasks(setup, options, destination.folder.check_held)
    return LocalEngine(setup, corpus, options.workers, destination.folder.lock_fd)
