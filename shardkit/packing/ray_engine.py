"""The engine of a Ray cluster: each job is a task, on any node that sees source and destination."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict

from shardkit.errors import SampleError, UsageError
from shardkit.index.journal import Receipt
from shardkit.inputs.base import Corpus
from shardkit.packing.answers import Answer, rebuild
from shardkit.packing.attempts import Attempts, attempt
from shardkit.packing.backlog import Backlog
from shardkit.packing.job import Job, Setup, read_job
from shardkit.packing.options import PackOptions
from shardkit.packing.ray_answers import Told, answered, here, told_to_tasks
from shardkit.packing.ray_cluster import RayCluster
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress

VANISHED = "vanished since it was listed"
"""How the reason ends why an input was left out that was not there."""


class RayTasks:
    """An engine. The cluster knows of few jobs at once, the others wait here.

    Law: tasks write into folders of their own, see :mod:`shardkit.packing.attempts`; what counts is
    made of them here, after a look at the lease. So a task that Ray runs twice, or that outlives
    its driver on a node that was cut off, changes nothing.
    """

    def __init__(self, setup: Setup, options: PackOptions, check_held: Callable[[], None]) -> None:
        """``check_held`` raises if another process has taken over the destination."""
        self._setup = setup
        self._check_held = check_held
        self._cluster = RayCluster(options.address, options.workers)
        try:
            self._attempts = Attempts(setup)
        except BaseException:
            self._cluster.close()
            raise
        self._calls = self._cluster.tasks(do_job, "packing")
        self._told = {
            **told_to_tasks("url" in setup.corpus),
            "setup": asdict(setup),
            "attempts": str(self._attempts.folder),
        }

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        backlog = Backlog(jobs)
        while backlog.can_draw or backlog or self._calls:
            can_begin = bool(backlog) and len(self._calls) < self._cluster.most_tasks
            if can_begin:
                job = backlog.pop()
                self._calls.begin(self._told, asdict(job), job.stem)
            elif backlog.can_draw:
                backlog.draw()
            for raw, answer in self._calls.ended(wait=not (can_begin or backlog.can_draw)):
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

    def __enter__(self) -> RayTasks:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._calls.cancel()
            self._attempts.close()
        finally:
            self._cluster.close()


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
