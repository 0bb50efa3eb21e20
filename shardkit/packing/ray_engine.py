"""The engine of a Ray cluster: each job is a task, on any node that sees source and destination.

A node that does not answer is given up, and its job is begun elsewhere; yet the node may be alive,
and write on. A driver that was killed may leave such nodes behind, and the next one may pack with
other options. Therefore:

Law: an attempt writes into a folder of its own, within one of this run; only the run's driver, who
has the lock and the lease of the destination, moves anything out of it, and only for attempts that
have answered it. The first thing a new run does is to take the folders of all others away: under
the path that an old attempt knows, there is nothing more to write into, and nothing to move.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shardkit.commit.durable_files import fsync_path
from shardkit.commit.own_files import remove_own
from shardkit.errors import SampleError, UsageError
from shardkit.index.journal import Receipt, journal_path, write_finished
from shardkit.inputs.base import Corpus
from shardkit.packing.engine import Answer, Crew, rebuild
from shardkit.packing.job import Setup, read_job, stage_files, sync_files, write_job
from shardkit.packing.listing import Job
from shardkit.packing.options import PackOptions
from shardkit.packing.ray_cluster import RayCluster, Told, answered, here, told_to_tasks
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.tars.patterns import is_pattern

_PREFIX = "attempts-"
_STAGED = "; for a destination behind a URL, pass staging, such a folder"


class Attempts:
    """The driver's side: the folder of this run's attempts, gone when it is closed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        for old in setup.work.glob(f"{_PREFIX}*"):
            remove_own(old)
        self.folder = setup.work / f"{_PREFIX}{uuid.uuid4().hex}"
        self.folder.mkdir()

    def accept(self, name: str, receipt: Receipt) -> None:
        """Take what an attempt has made as the shard: its files into the stage, then its rows into
        the journal. Raises StorageError."""
        folder = self.folder / name
        journal = journal_path(self._setup.work, receipt.split, receipt.shard)
        with os_errors(f"committing shard {receipt.stem}"):
            stage_files(folder, receipt, self._setup)
            (folder / journal.name).replace(journal)
            fsync_path(self._setup.work)
            folder.rmdir()

    def close(self) -> None:
        if self.folder.exists():
            remove_own(self.folder)


def attempt(corpus: Corpus, job: Job, setup: Setup, attempts: str, where: str) -> dict[str, Any]:
    """On some node: do a job in a new folder within ``attempts``; its receipt and that folder.

    Raises:
        UsageError: the node does not see the destination, or the source; or the run has ended.
        DataError: as of :func:`shardkit.packing.job.write_job`.
    """
    folder = Path(attempts, f"{job.stem}-{uuid.uuid4().hex}")
    with os_errors(f"packing shard {job.stem}"):
        try:
            folder.mkdir()
        except FileNotFoundError:
            raise _unseen("destination", setup.dest, where) from None
        source = Path(setup.source)
        is_here = setup.objects or "url" in setup.corpus
        if not is_here and not (source.parent if is_pattern(source) else source).exists():
            raise _unseen("source", setup.source, where)
        written = write_job(corpus, job, setup, lambda *counts: None, folder)
        sync_files(written)
        receipt = written.finished.receipt
        name = journal_path(folder, receipt.split, receipt.shard)
        write_finished(name, written.finished)
        return {"receipt": asdict(receipt), "folder": folder.name}


def _unseen(what: str, path: str, where: str) -> UsageError:
    return UsageError(
        f"{where} does not see the {what} {show_path(path)}: it must be a folder that all machines"
        f" of the cluster share, under the same path{_STAGED if what == 'destination' else ''}"
    )


VANISHED = "vanished since it was listed"
"""How the reason ends why an input was left out that was not there."""


class RayTasks(Crew):
    """An engine of a cluster. The cluster knows of few jobs at once, the others wait here."""

    def __init__(self, setup: Setup, options: PackOptions, check_held: Callable[[], None]) -> None:
        """``check_held`` raises if another process has taken over the destination."""
        self._setup = setup
        self._check_held = check_held
        self._cluster = RayCluster(options.address, options.workers, do_job, "packing")
        try:
            self._attempts = Attempts(setup)
        except BaseException:
            self._cluster.close()
            raise
        self._told = {
            **told_to_tasks("url" in setup.corpus),
            "setup": asdict(setup),
            "attempts": str(self._attempts.folder),
        }

    def is_busy(self) -> bool:
        return len(self._cluster) > 0

    def can_begin(self) -> bool:
        return len(self._cluster) < self._cluster.most_tasks

    def begin(self, job: Job) -> None:
        self._cluster.begin(self._told, asdict(job), job.stem)

    def ended(self, progress: Progress, wait: bool) -> Iterator[Receipt]:
        for raw, answer in self._cluster.ended(wait):
            job = Job(**raw)
            yield self._accept(job, answer)
            progress.add(job.num_entries, job.num_bytes)

    def _accept(self, job: Job, answer: Answer) -> Receipt:
        if "error" in answer:
            error = rebuild(*answer["error"])
            if isinstance(error, SampleError):
                self._doubt(job, answer["node"], [])
            raise error
        receipt = Receipt(**answer["done"]["receipt"])
        if any(reason.endswith(VANISHED) for _, reason in receipt.rejects):
            self._doubt(job, answer["node"], receipt.rejects)
        self._check_held()
        self._attempts.accept(answer["done"]["folder"], receipt)
        return receipt

    def _doubt(self, job: Job, node: str, rejects: list[tuple[str, str]]) -> None:
        """Look whether inputs are bad, or only not seen by a node that lacks a mount: nobody would
        notice where bad ones are skipped.

        Raises:
            UsageError: this machine can read what the node could not.
            SampleError: an input is bad here, too, and none is to be skipped.
        """
        batch = read_job(self._setup.open_corpus(), job, self._setup, lambda *counts: None)
        if batch.rejects != rejects or not self._setup.skip_bad:
            raise UsageError(
                f"{node} could not read inputs of shard {job.stem} that this machine can: the"
                f" source {show_path(self._setup.source)} must be a folder that all machines of"
                " the cluster share, with all that is mounted below it"
            )

    def close(self) -> None:
        try:
            self._cluster.close()
        finally:
            self._attempts.close()


def do_job(told: Told, raw: Told) -> Answer:
    """A task: one job, on whichever node."""

    def do() -> Told:
        run, setup = told["attempts"], Setup(**told["setup"])
        if run not in _opened:
            _opened.clear()
            _opened[run] = setup.open_corpus()
        return attempt(_opened[run], Job(**raw), setup, run, here())

    return answered(told, do)


_opened: dict[str, Corpus] = {}
"""The input of one run, opened once by each process that does jobs of it."""
