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

import errno
import logging
import os
import signal
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import shardkit
from shardkit.commit.durable_files import fsync_path
from shardkit.commit.own_files import remove_own
from shardkit.errors import SampleError, ShardkitError, StorageError, UsageError
from shardkit.index.journal import Receipt, journal_path, write_finished
from shardkit.inputs.corpus import Corpus
from shardkit.packing.engine import Answer, Crew, error_answer, rebuild
from shardkit.packing.job import Setup, read_job, stage_files, sync_files, write_job
from shardkit.packing.listing import Job
from shardkit.packing.options import PackOptions
from shardkit.remote.urls import CACHE_BYTES, CACHE_DIR, settings_of
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.system.resources import allowance
from shardkit.tars.patterns import is_pattern

_PASSING = {errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNRESET}
_PASSING |= {errno.EREMOTEIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH}
"""What a shared file system says when its server restarts, or a network fails: that passes. That
the disk is full, or a file is bad, does not."""

PASSING_S = 3.0
"""Before such a job is begun again."""

Told = dict[str, Any]
"""Plain values: what all calls are told, or one."""


class PassingError(Exception):
    """A job failed in a way that may pass: Ray begins it again, on another node perhaps."""


def told_to_tasks(is_remote: bool) -> Told:
    """Return what any task must know of this process: the release, and for what lies behind a URL,
    how it is reached."""
    names = (CACHE_DIR, CACHE_BYTES)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    environment = settings_of(os.environ) | kept if is_remote else {}
    return {"release": shardkit.__version__, "environment": environment}


def answered(told: Told, do: Callable[[], Any]) -> Answer:
    """Return, in a task, what ``do`` comes to, as plain values.

    Raises:
        PassingError: it failed in a way that may pass.
    """
    os.environ.update(told["environment"])
    try:
        if told["release"] != shardkit.__version__:
            raise UsageError(
                f"{here()} has shardkit {shardkit.__version__}, and {told['release']} asks: install"
                " the same release on all machines of the cluster"
            )
        return {"done": do(), "node": here()}
    except ShardkitError as error:
        if _is_passing(error):
            time.sleep(PASSING_S)
            raise PassingError(str(error)) from error
        return {**error_answer(error), "node": here()}


def here() -> str:
    return f"node {os.uname().nodename}"


def _is_passing(error: BaseException | None) -> bool:
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__
    return error is not None and error.errno in _PASSING


MAX_RETRIES = 10
"""How often a task is begun again whose worker or node died. Preempted nodes are many in a long
pack; a job that kills whoever does it is told after so many."""

TASKS_PER_CPU = 2
"""What the cluster knows of at once: a task that waits hides the way to the driver and back."""

_ROOM_S = 5.0
"""Seconds between questions for the size of a cluster, which may grow."""

WITHOUT_CPU_S = 300.0
"""How long to wait for a cluster without any CPU: one that grows on demand is starting some, or the
nodes are gone and nobody starts others."""

_LOOK_S = 20.0
"""How often that is asked while nothing ends."""

KNOCK_S = 10.0
"""For the head of a cluster to answer."""

_STORE_BYTES = 100_000_000
"""For objects, in a cluster of our own: tasks take and return some hundred bytes."""


class RayCluster:
    """A connection to a cluster, and the calls of one function that are under way there. It ends
    with the block; so does the cluster, if it was started here.

    Where this process is connected already, that connection is used, and stays.
    """

    def __init__(
        self,
        address: str | None,
        workers: int | None,
        function: Callable[[Told, Told], Answer],
        name: str,
    ) -> None:
        """Connect.

        Args:
            workers: tasks at once; None for as many as the cluster has CPUs.
            function: of a module that nodes have, too; each call is a task of one CPU. ``name``:
                what it does, in errors.

        Raises:
            UsageError: this process is connected to a cluster, and another is given.
            StorageError: no cluster answers there, or none can be started.
        """
        import ray

        self._ray = ray
        self._workers = workers
        self._name = name
        self._most = 0
        self._asked = -_ROOM_S
        self._under_way: dict[Any, tuple[Told, str]] = {}
        self._told: tuple[Told, Any] | None = None
        self._is_own = not ray.is_initialized()
        if self._is_own:
            _connect(ray, address or os.environ.get("RAY_ADDRESS") or "local", workers)
        elif address is not None:
            raise UsageError("address is given, and this process is connected to Ray: leave it out")
        options = {
            "num_cpus": 1,
            "max_retries": MAX_RETRIES,
            "retry_exceptions": [PassingError],
            "scheduling_strategy": "SPREAD",  # reading and writing are spread over nodes, too
        }
        self._remote = ray.remote(**options)(function)

    @property
    def most_tasks(self) -> int:
        """Return how many tasks the cluster should know of at once."""
        if self._workers is not None:
            return self._workers
        if time.monotonic() - self._asked >= _ROOM_S:
            self._asked = time.monotonic()
            self._most = TASKS_PER_CPU * self._num_cpus()
        return max(self._most, TASKS_PER_CPU)  # one that grows on demand may have nothing yet

    def _num_cpus(self) -> int:
        """Return the number of CPUs of all living nodes, busy or not."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def __len__(self) -> int:
        """Return how many calls are under way."""
        return len(self._under_way)

    def begin(self, told: Told, item: Told, what: str) -> None:
        """Have ``function(told, item)`` called somewhere; ``what`` it is, in errors."""
        if self._told is None or self._told[0] is not told:
            self._told = told, self._ray.put(told)  # once: a pickled dataset may be in it
        call = self._remote.options(name=f"{self._name} {what}")
        self._under_way[call.remote(self._told[1], item)] = item, what

    def ended(self, wait: bool) -> Iterator[tuple[Told, Answer]]:
        """Yield what calls that have ended came to; wait for one, if asked to and any is under way.

        Raises:
            StorageError: a call could not be brought to an end, however often it was begun; or
                there is no CPU that could do any.
        """
        if not self._under_way:
            return
        under_way = list(self._under_way)
        had_any = time.monotonic()
        while wait and not self._ray.wait(under_way, num_returns=1, timeout=_LOOK_S)[0]:
            if self._num_cpus():
                had_any = time.monotonic()
            elif time.monotonic() - had_any > WITHOUT_CPU_S:
                raise StorageError(
                    f"the Ray cluster has had no CPU for {WITHOUT_CPU_S:.0f} s, so nothing goes on;"
                    " start nodes, and run the same command again"
                )
        done, _ = self._ray.wait(under_way, num_returns=len(under_way), timeout=0)
        for call in done:
            item, what = self._under_way.pop(call)
            yield item, self._answer(call, f"{self._name} {what}")

    def _answer(self, call: Any, what: str) -> Answer:
        errors, again = self._ray.exceptions, "run the same command again"
        try:
            answer: Answer = self._ray.get(call)
        except errors.RayTaskError as error:
            cause = error.cause
            said = f"{what}: {type(cause).__name__}: {cause}; {again} to go on"
            if isinstance(cause, PassingError):
                said = f"{cause}; tried {MAX_RETRIES + 1} times; {again} to go on"
            elif isinstance(cause, ModuleNotFoundError) and "shardkit" in (cause.name or ""):
                said = (
                    f"{what}: a node has no shardkit, or another release ({cause}); install the"
                    f" same on all machines of the cluster, and {again}"
                )
            raise StorageError(said) from error
        except errors.RayError as error:
            why = str(error).strip().partition("\n")[0]
            raise StorageError(
                f"{what}: given up by Ray, which begins a task {MAX_RETRIES} times more: {why};"
                f" {again} to go on"
            ) from error
        return answer

    def close(self) -> None:
        """Have no call under way any more. What cannot be reached may still be running."""
        try:
            for call in self._under_way:
                self._ray.cancel(call, force=True)
        finally:
            if self._is_own:
                self._ray.shutdown()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _connect(ray: Any, address: str, workers: int | None) -> None:
    """Raise StorageError if no cluster answers there, or none can be started."""
    given: dict[str, Any] = {
        "address": address,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": True,
    }
    if address == "local":
        given["num_cpus"] = allowance().cpus if workers is None else workers
        given["include_dashboard"] = False
        given["object_store_memory"] = _STORE_BYTES
    # Ray sends statistics of a cluster that is started to its makers, unless told not to, and takes
    # over SIGTERM.
    name = "RAY_USAGE_STATS_ENABLED"
    was_set = name in os.environ
    os.environ.setdefault(name, "0")
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit():  # where nobody listens, Ray itself goes on asking for minutes
            socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
        ray.init(**given)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise StorageError(_no_cluster(address, error)) from error
    finally:
        if is_main and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        if not was_set:
            del os.environ[name]


def _no_cluster(address: str, error: Exception) -> str:
    why = str(error).strip().partition("\n")[0]
    if "uthentication token" in "".join(traceback.format_exception(error)):  # a cause may say it
        return (
            f"the Ray cluster at {address} wants a token, and this process has none or a wrong one:"
            " set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to that of the head"
        )
    if address == "local":
        return f"no Ray cluster could be started on this machine: {why}"
    return (
        f"no Ray cluster answers at {address}: {why}; `ray status` on its head says whether it runs"
    )


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
    """Do a job, on some node, in a new folder within ``attempts``: its receipt and that folder.

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
    """Do one job, as a task, on whichever node."""

    def do() -> Told:
        run, setup = told["attempts"], Setup(**told["setup"])
        if run not in _opened:
            _opened.clear()
            _opened[run] = setup.open_corpus()
        return attempt(_opened[run], Job(**raw), setup, run, here())

    return answered(told, do)


_opened: dict[str, Corpus] = {}
"""The input of one run, opened once by each process that does jobs of it."""
