"""The engines of this machine: this process alone, or worker processes."""

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
from typing import Any, Self, TextIO

import shardkit.errors
from shardkit import system
from shardkit.errors import DataError, ShardkitError, StorageError, UsageError
from shardkit.index.journal import Receipt
from shardkit.inputs.base import Corpus
from shardkit.packing.engine import Backlog, error_answer, rebuild
from shardkit.packing.job import Setup, Written, commit_job, write_job
from shardkit.packing.listing import Job
from shardkit.system.file_io import write_full
from shardkit.system.progress import Progress

START_AFTER_S = 1.5
"""Two workers take 0.7 to 1.5 seconds of a core to start. 50,000 files of 1 KB take 1.1 s alone,
and took 1.5 s with workers that were started after 0.7 s."""


class InProcess:
    """No worker but this process. One shard is committed while the next is read and written."""

    def __init__(self, setup: Setup, corpus: Corpus) -> None:
        """``corpus`` is the one that lists: it need not be opened once more to be read."""
        self._setup = setup
        self._corpus = corpus

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        committing: Future[Receipt] | None = None
        with ThreadPoolExecutor(1) as committer:
            for job in jobs:
                written = write_job(self._corpus, job, self._setup, progress.add)
                if committing is not None:
                    yield committing.result()
                committing = committer.submit(commit_job, written, self._setup)
            if committing is not None:
                yield committing.result()

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Started:
    """A worker that was started as a program."""

    def __init__(self, held_fd: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shardkit.packing.local", str(os.getpid())],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Without a stderr of ours, its number may be that of any file we have open.
            stderr=subprocess.DEVNULL if sys.stderr is None else None,
            pass_fds=[held_fd],
            env=_environment(),
        )
        self.jobs_fd = self._process.stdin.fileno()  # type: ignore[union-attr]
        self.answers_fd = self._process.stdout.fileno()  # type: ignore[union-attr]

    def wait(self) -> int:
        """Return its exit status, below 0 for a signal."""
        return self._process.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            stream.close()  # type: ignore[union-attr]


class _Forked:
    """A worker that this process was copied into: it has imported all and starts in milliseconds.

    Only a process of the command line forks, one that has no other thread and no client of an
    object store: a copy has the locks of threads that it has not, and obstore hangs in it.
    """

    def __init__(self) -> None:
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
        """Return its exit status, below 0 for a signal."""
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


class _Worker:
    """One worker process, the jobs it holds, and its unread answers."""

    def __init__(self, held_fd: int) -> None:
        self.held: list[Job] = []
        self._unread = b""
        self.process: _Forked | _Started = _Forked() if can_fork() else _Started(held_fd)

    @property
    def answers_fd(self) -> int:
        return self.process.answers_fd

    def send(self, message: dict[str, Any]) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        try:
            # Longer than a pipe holds is no trouble: a worker with a free hand is reading.
            write_full(self.process.jobs_fd, [data])
        except BrokenPipeError as error:
            raise self._death() from error

    def receive(self) -> list[dict[str, Any]]:
        """The answers that have come, at least one; waits for it."""
        while b"\n" not in self._unread:
            data = os.read(self.answers_fd, 1 << 20)
            if not data:
                raise self._death()
            self._unread += data
        lines, _, self._unread = self._unread.rpartition(b"\n")
        return [json.loads(line) for line in lines.split(b"\n")]

    def _death(self) -> DataError:
        code = self.process.wait()
        where = f" while packing {self.held[0].stem}" if self.held else ""
        return StorageError(
            f"a packing worker {_end(code)}{where}{_advice(code)}; run the same command again to go"
            " on"
        )

    def stop(self) -> None:
        self.process.close()


class ProcessPool:
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
                worker = _Worker(held_fd)
                self._workers.append(worker)
                self._selector.register(worker.answers_fd, selectors.EVENT_READ, worker)
            for worker in self._workers:
                # Pickled objects come behind the line, as they are.
                worker.send({**asdict(replace(setup, objects=b"")), "objects": len(setup.objects)})
                worker.send_bytes(setup.objects)
            self._starting = [*self._workers]
        except BaseException:
            self._stop()
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

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        """Draws all jobs while the first of them run."""
        self.is_ready(wait=True)
        backlog = Backlog(jobs)
        while backlog.can_draw or backlog or any(worker.held for worker in self._workers):
            worker = min(self._workers, key=lambda w: len(w.held))
            can_send = bool(backlog) and len(worker.held) < self.IN_HAND
            if can_send:
                job = backlog.pop()
                worker.held.append(job)
                worker.send(asdict(job))
            elif backlog.can_draw:
                backlog.draw()
            # With nothing held no answer would ever come: all jobs were done by an earlier run.
            is_held = any(worker.held for worker in self._workers)
            yield from self._collect(progress, wait=not (can_send or backlog.can_draw) and is_held)

    def _collect(self, progress: Progress, wait: bool) -> Iterator[Receipt]:
        for key, _ in self._selector.select(None if wait else 0):
            worker: _Worker = key.data
            for answer in worker.receive():
                if "progress" in answer:
                    progress.add(*answer["progress"])
                elif "done" in answer:
                    worker.held.pop(0)
                    yield Receipt(**answer["done"])
                else:
                    raise rebuild(*answer["error"])

    def _stop(self) -> None:
        self._selector.close()
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()


class GrowingPool:
    """This process alone, and then, if there is more to do, several workers.

    Forked workers are there at once, if there is more than one job. Others take START_AFTER_S to
    import what they need, each on a core. So they are started once as much time has gone, and this
    process packs on until they are ready: a small input has none.
    """

    def __init__(self, setup: Setup, corpus: Corpus, num_workers: int, held_fd: int) -> None:
        self._given = setup, num_workers, held_fd
        self._corpus = corpus
        self._is_tried = False
        self._alone = InProcess(setup, corpus)
        self._pool: ProcessPool | None = None

    def run(self, jobs: Iterable[Job], progress: Progress) -> Iterator[Receipt]:
        left = iter(jobs)
        if can_fork():
            first = [*islice(left, 2)]
            left = chain(first, left)
            if len(first) > 1:
                self._start()
        if self._pool is None:
            yield from self._alone.run(self._first(left), progress)
        if self._pool is not None:
            yield from self._pool.run(left, progress)

    def _first(self, jobs: Iterator[Job]) -> Iterator[Job]:
        """Yield jobs until workers are ready for the others."""
        begun = time.monotonic()
        for job in jobs:
            yield job
            if not self._is_tried and time.monotonic() - begun > START_AFTER_S:
                self._start()
            if self._pool is not None and self._pool.is_ready():
                return

    def _start(self) -> None:
        """Start the workers; go on alone if they could not be given the input."""
        self._is_tried = True
        setup, *others = self._given
        with suppress(UsageError):
            objects = self._corpus.objects()
            self._pool = ProcessPool(replace(setup, objects=objects), *others)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.__exit__(*error)


def _environment() -> dict[str, str]:
    """Ours, with the folder shardkit was imported from on the path: it may not be installed."""
    here = str(Path(shardkit.errors.__file__).parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    names = {int(known): f" ({known.name})" for known in signal.Signals}
    return f"was killed by signal {-code}{names.get(-code, '')}"


def _advice(code: int) -> str:
    if code != -signal.SIGKILL:
        return ""
    # How Linux ends a process when memory runs out; nothing else does it by itself.
    return "; if memory ran out, use fewer --workers or a smaller --shard-size"


_PR_SET_PDEATHSIG = 1
REPORT_BYTES = 8_000_000
"""Progress is reported once that much input was read, or at the end of a shard."""


def main() -> None:
    """Serve until stdin closes."""
    _open_stderr()
    serve(int(sys.argv[1]), 0, os.dup(1))


def serve(parent: int, jobs_fd: int, answers_fd: int) -> None:
    """Do the jobs that come by one pipe, and answer on another, until the first closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(parent)
    os.dup2(2, 1)  # a library that prints must not break the protocol, or the command's output
    asked, answers = os.fdopen(jobs_fd, "rb"), os.fdopen(answers_fd, "w")
    told = json.loads(asked.readline())
    setup = Setup(**{**told, "objects": asked.read(told["objects"])})
    try:
        try:
            packer = _Packer(setup, answers)
        except ShardkitError as error:
            Answers(answers).send(error_answer(error))
            return
        Answers(answers).send({"ready": True})
        for line in asked:
            packer.do(line)
        packer.finish()
    except BrokenPipeError:  # the packer is gone; nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), answers.fileno())


class Answers:
    """Lines of JSON to the packer, from any thread; progress is held back for a while."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._lock = Lock()
        self._unreported = [0, 0]

    def send(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._answers.write(json.dumps(message) + "\n")
            self._answers.flush()

    def report(self, num_entries: int, num_bytes: int) -> None:
        held = self._unreported
        held[0] += num_entries
        held[1] += num_bytes
        if held[1] >= REPORT_BYTES:
            self.flush()

    def flush(self) -> None:
        self.send({"progress": self._unreported})
        self._unreported[:] = 0, 0


class _Packer:
    """Does one job at a time, and commits one beside it; answers in the order of the jobs."""

    def __init__(self, setup: Setup, answers: TextIO) -> None:
        self._setup = setup
        self._corpus = setup.open_corpus()
        self._answers = Answers(answers)
        self._committer = ThreadPoolExecutor(1)
        self._committing: Future[None] | None = None

    def do(self, line: bytes) -> None:
        job = Job(**json.loads(line))
        try:
            written = write_job(self._corpus, job, self._setup, self._answers.report)
        except ShardkitError as error:
            self.finish()
            self._answers.send(error_answer(error))
            return
        self._answers.flush()
        self.finish()
        self._committing = self._committer.submit(self._commit, written)

    def _commit(self, written: Written) -> None:
        try:
            receipt = commit_job(written, self._setup)
        except ShardkitError as error:
            self._answers.send(error_answer(error))
            return
        self._answers.send({"done": asdict(receipt)})

    def finish(self) -> None:
        """Wait for the commit under way; raises any unforeseen error from it."""
        if self._committing is not None:
            self._committing.result()


def _open_stderr() -> None:
    """Started with stderr closed, ``answers`` would become what everybody writes to as stderr."""
    try:
        os.fstat(2)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill us when the packer is killed; elsewhere the closed stdin ends us."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
