"""A pack from beginning to end: from a corpus to a dataset at its destination, resumably.

The destination holds a work folder while a pack is under way: a lock, the options it was started
with, the listing, and the files and a part of every finished shard. When all is whole it takes the
place of what was there, shardkit.json last; then the work folder goes. Killed at any moment, the
same call goes on and ends in the same bytes.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from shardkit.corpus.base import Corpus
from shardkit.corpus.dataset import DatasetCorpus
from shardkit.errors import CorpusError
from shardkit.images.encode import require_encoder
from shardkit.packing.again import Standing, made_of, standing, standing_copy
from shardkit.packing.destination import Destination
from shardkit.packing.engine import Engine, InProcess, Processes
from shardkit.packing.finish import Origin, assemble, notes_on, own_origin
from shardkit.packing.job import JobContext
from shardkit.packing.jobs import Jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult, result_of
from shardkit.packing.tokenizer import Chosen, load_chosen, settle_tokenizer
from shardkit.system.progress import Progress
from shardkit.system.storage import os_errors

COMPLETE = "complete already, from an earlier run"
"""The note of a result that this call has not made."""


def run_pack(
    source: Path,
    corpus: Corpus,
    dest: Path,
    options: PackOptions,
    started: float,
    origin: Origin | None = None,
) -> PackResult:
    """Pack a corpus into ``dest``.

    ``started`` is when the clock of the result began (``time.perf_counter``), and ``origin`` what
    the dataset says of where its samples came from, if not what the corpus says.
    """
    if options.images:
        require_encoder(options.images)
    loaded = load_chosen(options)
    inputs = origin.inputs if origin else {}
    if loaded is not None:
        inputs = {"the tokenizer": [int(loaded.spec.xxh3, 16)]}
    lasting = {"inputs": inputs, "corpus": corpus.spec(), "options": options.lasting()}
    with os_errors(f"packing into {dest}"), ExitStack() as stack:
        if dest.resolve() == source.resolve():
            found = None  # no copy of itself: refused below
        elif isinstance(corpus, DatasetCorpus):
            found = standing_copy(corpus, dest, options)
        else:
            found = None if origin else standing(source, corpus, dest, options, lasting)
        if found is not None:
            return _found_standing(dest.resolve(), corpus, found, time.perf_counter() - started)
        place = stack.enter_context(Destination(dest, source, options.overwrite))
        if finished := place.finished(lasting):
            return _found_complete(place.dest, finished)
        if options.overwrite:
            place.clear()
        place.prepare(lasting)
        place.scratch.mkdir(exist_ok=True)
        chosen = settle_tokenizer(place, corpus, options, loaded)
        context = _context(place, options, chosen)
        before_workers = time.perf_counter()
        engine = stack.enter_context(_engine(source, corpus, context, options, place.lock_fd))
        started += time.perf_counter() - before_workers
        progress = stack.enter_context(Progress("packing", options.progress))
        jobs = Jobs(corpus, place, options, progress)
        heads = jobs.run(engine)
        if not any(head.num_rows for head in heads):
            raise CorpusError(f"nothing could be packed from {source}: every input was rejected")
        if origin is None:
            origin = own_origin(corpus, made_of(lasting, jobs.listing))
        info = assemble(place, corpus, heads, options, origin, chosen)
        result = result_of(
            place.dest,
            place.stage,
            corpus,
            info,
            jobs.listing,
            jobs.num_rejects,
            len(jobs.resumed),
            time.perf_counter() - started,
        )
        result.notes.extend([*(chosen.notes if chosen else []), *notes_on(options, heads)])
        place.finish(info, lasting, {**asdict(result), "dest": ""})
        return replace(result, seconds=time.perf_counter() - started)


def _found_standing(dest: Path, corpus: Corpus, found: Standing, seconds: float) -> PackResult:
    result = result_of(dest, dest, corpus, found.info, found.listing, found.num_rejects, 0, seconds)
    return replace(result, notes=[COMPLETE], was_complete=True)


def _found_complete(dest: Path, finished: dict[str, Any]) -> PackResult:
    notes = [*finished["notes"], COMPLETE]
    return PackResult(**{**finished, "dest": dest, "notes": notes, "was_complete": True})


def _context(place: Destination, options: PackOptions, chosen: Chosen | None) -> JobContext:
    return JobContext(
        work=str(place.work),
        stage=str(place.stage),
        to=options.to,
        compression=options.compression,
        skip_bad=options.on_error == "skip",
        check_images=options.check_images,
        dali_index=options.dali_index,
        images=options.images.to_json(),
        tokens=None if chosen is None else asdict(chosen),
    )


def _engine(
    source: Path, corpus: Corpus, context: JobContext, options: PackOptions, lock_fd: int
) -> Engine:
    if not options.num_workers:
        return InProcess(corpus, context)
    return Processes(options.num_workers, source, corpus, context, lock_fd)
