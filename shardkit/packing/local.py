"""The engine of this machine: this process, and worker processes.

A worker is a program of its own rather than one of multiprocessing: the caller's script is not
imported again, no ``__main__`` guard is asked of it, and nothing is pickled. It reads jobs as JSON
lines from one pipe, answers on another, and dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import shardkit.errors
from shardkit import system
from shardkit.errors import DataError, ShardkitError, StorageError, UsageError
from shardkit.index.journal import Receipt
from shardkit.inputs.corpus import Corpus
from shardkit.packing.engine import Crew, error_answer, rebuild
from shardkit.packing.job import Setup, Written, commit_job, write_job
from shardkit.packing.listing import Job
from shardkit.system.file_io import write_full
from shardkit.system.progress import Progress
from shardkit.system.resources import allowance

START_AFTER_S = 1.5
"""Two workers take 0.7 to 1.5 seconds of a core to start. 50,000 files of 1 KB take 1.1 s alone,
and took 1.5 s with workers that were started after 0.7 s."""


class LocalEngine:
    """This process, several workers, or first the one and then the others.

    By default this process packs alone, and workers take over if there is more to do. Forked ones
    are there at once, if there is more than one job. Others take START_AFTER_S to import what they
    need, each on a core. So they are started once as much time has gone, and this process packs on
    until they are ready: a small input has none.
    """

    def __init__(self, setup: Setup, corpus: Corpus, num_workers: int | None, held_fd: int) -> None:
        """``corpus`` is the one that lists: it need not be opened once more to be read."""
        self._setup = setup
        self._corpus = corpus
        self._held_fd = held_fd
        self._may_grow = num_workers is None
        self._pool: ProcessPool | None = None
        if num_workers:
            self._start(num_workers)

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        left = iter(jobs)
        if self._may_grow and can_fork():
            first = [*islice(left, 2)]
            left = chain(first, left)
            if len(first) > 1:
                self._grow()
        if self._pool is None:
            yield from self._run_alone(self._until_ready(left), progress)
        if self._pool is not None:
            self._pool.is_ready(wait=True)
            yield from self._pool.run(left, progress)

    def _run_alone(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        """Do jobs in this process. One shard is committed while the next is read and written."""
        committing: Future[Receipt] | None = None
        with ThreadPoolExecutor(1) as committer:
            for job in jobs:
                written = write_job(self._corpus, job, self._setup, progress.add)
                if committing is not None:
                    yield committing.result()
                committing = committer.submit(commit_job, written, self._setup)
            if committing is not None:
                yield committing.result()

    def _until_ready(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yield jobs until workers are ready for the others."""
        begun = time.monotonic()
        for job in jobs:
            yield job
            if self._may_grow and time.monotonic() - begun > START_AFTER_S:
                self._grow()
            if self._pool is not None and self._pool.is_ready():
                return

    def _grow(self) -> None:
        """Start the workers; go on alone if they could not be given the input."""
        self._may_grow = False
        with suppress(UsageError):
            self._start(allowance().cpus)

    def _start(self, num_workers: int) -> None:
        setup = replace(self._setup, objects=self._corpus.objects())
        self._pool = ProcessPool(setup, num_workers, self._held_fd)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


class ProcessPool(Crew):
    """Several workers, each a process that is given one job at a time, and one in hand.

    Law: a worker is sent a job only while it holds fewer than two; each answers in order.

    Each keeps the file open that ``held_fd`` is, the lock of the destination: it is free only when
    the last of them is gone. They are told nothing of it.
    """

    IN_HAND = 2

    def __init__(self, setup: Setup, num_workers: int, held_fd: int) -> None:
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        try:
            for _ in range(num_workers):
                worker: _Worker = _Forked() if can_fork() else _Started(held_fd)
                self._workers.append(worker)
                self._selector.register(worker.answers_fd, selectors.EVENT_READ, worker)
            told = {**asdict(replace(setup, objects=b"")), "objects": len(setup.objects)}
            for worker in self._workers:
                worker.send(told, setup.objects)  # pickled ones, as they are
            self._starting = [*self._workers]
        except BaseException:
            self.close()
            raise

    def is_ready(self, *, wait: bool = False) -> bool:
        """Return True once all workers have imported what they need."""
        while self._starting:
            if not wait and not select.select([self._starting[0].answers_fd], [], [], 0)[0]:
                return False
            for answer in self._starting[0].receive():
                if "error" in answer:
                    raise rebuild(*answer["error"])
            self._starting.pop(0)
        return True

    def is_busy(self) -> bool:
        return any(worker.held for worker in self._workers)

    def can_begin(self) -> bool:
        return any(len(worker.held) < self.IN_HAND for worker in self._workers)

    def begin(self, job: Job) -> None:
        worker = min(self._workers, key=lambda w: len(w.held))
        worker.held.append(job)
        worker.send(asdict(job))

    def ended(self, progress: Progress, wait: bool) -> Iterator[Receipt]:
        for key, _ in self._selector.select(None if wait else 0):
            worker = key.data
            for answer in worker.receive():
                if "progress" in answer:
                    progress.add(*answer["progress"])
                elif "done" in answer:
                    worker.held.pop(0)
                    yield Receipt(**answer["done"])
                else:
                    raise rebuild(*answer["error"])

    def close(self) -> None:
        self._selector.close()
        for worker in self._workers:
            worker.close()


class _Worker:
    """One worker process, the jobs it holds, and its unread answers."""

    jobs_fd: int
    answers_fd: int

    def __init__(self) -> None:
        self.held: list[Job] = []
        self._unread = b""

    def send(self, message: dict[str, Any], data: bytes = b"") -> None:
        """Send a line of JSON, and bytes behind it."""
        try:
            # Longer than a pipe holds is no trouble: a worker with a free hand is reading.
            write_full(self.jobs_fd, [json.dumps(message).encode(), b"\n", data])
        except BrokenPipeError as error:
            raise self._death() from error

    def receive(self) -> list[dict[str, Any]]:
        """Return the answers that have come, at least one; waits for it."""
        while b"\n" not in self._unread:
            data = os.read(self.answers_fd, 1 << 20)
            if not data:
                raise self._death()
            self._unread += data
        lines, _, self._unread = self._unread.rpartition(b"\n")
        return [json.loads(line) for line in lines.split(b"\n")]

    def _death(self) -> DataError:
        where = f" while packing {self.held[0].stem}" if self.held else ""
        said = _end(self.wait(), where)
        return StorageError(f"a packing worker {said}; run the same command again to go on")

    def wait(self) -> int:
        """Return its exit status, below 0 for a signal."""
        raise NotImplementedError

    def close(self) -> None:
        """Kill it, if it still runs."""
        raise NotImplementedError


class _Started(_Worker):
    """A worker that was started as a program."""

    def __init__(self, held_fd: int) -> None:
        super().__init__()
        # The folder shardkit was imported from: it may not be installed.
        here = str(Path(shardkit.errors.__file__).parents[1])
        paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shardkit.packing.local", str(os.getpid())],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Without a stderr of ours, its number may be that of any file we have open.
            stderr=subprocess.DEVNULL if sys.stderr is None else None,
            pass_fds=[held_fd],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.jobs_fd = self._process.stdin.fileno()  # type: ignore[union-attr]
        self.answers_fd = self._process.stdout.fileno()  # type: ignore[union-attr]

    def wait(self) -> int:
        return self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            stream.close()  # type: ignore[union-attr]


class _Forked(_Worker):
    """A worker that this process was copied into: it has imported all and starts in milliseconds.

    Only a process of the command line forks, one that has no other thread and no client of an
    object store: a copy has the locks of threads that it has not, and obstore hangs in it.
    """

    def __init__(self) -> None:
        super().__init__()
        jobs, self.jobs_fd = os.pipe()
        self.answers_fd, answers = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            status = 1
            try:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.close(self.jobs_fd)
                os.close(self.answers_fd)
                serve(parent, jobs, answers)
                status = 0
            except BaseException:  # noqa: BLE001  # nothing of the command must run in a copy
                traceback.print_exc()
            finally:
                os._exit(status)
        self._status: int | None = None
        os.close(jobs)
        os.close(answers)

    def wait(self) -> int:
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._status

    def close(self) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
        self.wait()
        os.close(self.jobs_fd)
        os.close(self.answers_fd)


def can_fork() -> bool:
    """Return True in a process of the command line that may be copied into workers."""
    is_alone = threading.active_count() == 1 and "obstore" not in sys.modules
    # Without a stderr of ours, its number may be that of a worker's pipe.
    is_plain = sys.platform == "linux" and sys.stderr is not None
    return system.is_command_line and is_alone and is_plain


def _end(code: int, where: str) -> str:
    """Return how a worker ended, in words."""
    if code >= 0:
        return f"ended with exit status {code}{where}"
    names = {int(known): f" ({known.name})" for known in signal.Signals}
    said = f"was killed by signal {-code}{names.get(-code, '')}{where}"
    # How Linux ends a process when memory runs out; nothing else does it by itself.
    is_memory = code == -signal.SIGKILL
    advice = "; if memory ran out, use fewer --workers or a smaller --shard-size"
    return said + advice if is_memory else said


# --- in a worker --------------------------------------------------------------------------

_PR_SET_PDEATHSIG = 1
REPORT_BYTES = 8_000_000
"""Progress is reported once that much input was read, or at the end of a shard."""


def main() -> None:
    """Serve until stdin closes."""
    try:
        os.fstat(2)
    except OSError:  # closed: answers would become what everybody writes to as stderr
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    serve(int(sys.argv[1]), 0, os.dup(1))


def serve(parent: int, jobs_fd: int, answers_fd: int) -> None:
    """Do the jobs that come by one pipe, and answer on another, until the first closes.

    One shard is committed while the next is read and written.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # to be killed when the packer is; elsewhere a closed pipe ends us
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os.kill(os.getpid(), signal.SIGKILL)
    os.dup2(2, 1)  # a library that prints must not break the protocol, or the command's output
    asked, answers = os.fdopen(jobs_fd, "rb"), os.fdopen(answers_fd, "w")
    told = json.loads(asked.readline())
    setup = Setup(**{**told, "objects": asked.read(told["objects"])})
    lock, unreported = Lock(), [0, 0]

    def send(message: dict[str, Any]) -> None:
        with lock:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

    def report(num_entries: int, num_bytes: int, at_least: int = REPORT_BYTES) -> None:
        unreported[0] += num_entries
        unreported[1] += num_bytes
        if unreported[1] >= at_least:
            send({"progress": unreported})
            unreported[:] = 0, 0

    def commit(written: Written) -> None:
        try:
            send({"done": asdict(commit_job(written, setup))})
        except ShardkitError as error:
            send(error_answer(error))

    try:
        try:
            corpus = setup.open_corpus()
            send({"ready": True})
            with ThreadPoolExecutor(1) as committer:
                committing: Future[None] | None = None
                for line in asked:
                    written = write_job(corpus, Job(**json.loads(line)), setup, report)
                    report(0, 0, at_least=0)
                    if committing is not None:
                        committing.result()  # answers come in the order of the jobs
                    committing = committer.submit(commit, written)
                if committing is not None:
                    committing.result()
        except ShardkitError as error:
            send(error_answer(error))
            for _ in asked:
                pass  # the packer sends jobs until it has read this
    except BrokenPipeError:  # the packer is gone; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())


if __name__ == "__main__":
    main()
