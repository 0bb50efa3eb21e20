"""A packing process: reads jobs as JSON lines from stdin, answers on stdout.

A program of its own rather than multiprocessing: the caller's script is not imported again, no
``__main__`` guard is asked of it, and nothing is pickled. It dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from threading import Lock
from typing import Any, TextIO

from shardkit.errors import ShardkitError
from shardkit.packing.engine import error_answer
from shardkit.packing.job import Setup, Written, commit_job, write_job
from shardkit.packing.listing import Job

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
