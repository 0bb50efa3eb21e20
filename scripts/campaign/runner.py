"""Cases run in forked processes, a batch each, so that none of them can end the campaign.

A process says on a pipe which case it begins and what came of it: so a crash, a hang or a death for
want of memory is the case's that was begun and not ended, and the rest of its batch goes to a new
process. Forked from one that has everything imported, a process costs milliseconds.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import json
import os
import resource
import select
import shutil
import signal
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import Case, Kind, Outcome, Place
from processes import descendants, ended, kill_all, limit_address_space, shared_memory

ENDING_S = 10.0
"""Processes that a case started may take so long to end by themselves."""


TELLING_S = 0.5
"""A process that hangs has so long to say where."""


@dataclass(frozen=True)
class Done:
    case: Case
    outcome: Outcome
    work: Path


@dataclass
class Worker:
    """A forked process, the case it is at, and those it has not begun."""

    pid: int
    pipe: int
    left: deque[Case]
    log: Path
    now: Case | None = None
    began: float = field(default_factory=time.monotonic)
    heard: bytes = b""


class Runner:
    """Runs cases of one kind in ``workers`` processes at once.

    Args:
        folder: ``corpora`` in it is there; a case gets a folder of its own in ``work``.
    """

    def __init__(self, kind: Kind, folder: Path, workers: int) -> None:
        self.kind, self.folder, self.most = kind, folder, workers
        self.workers: list[Worker] = []
        self.batches: deque[deque[Case]] = deque()

    def run(self, cases: Iterator[Case]) -> Generator[Done, None, None]:
        """Outcomes, in the order in which cases end. ``cases`` may be endless: close this then."""
        try:
            while True:
                while len(self.workers) < self.most:
                    batch = self._next_batch(cases)
                    if not batch:
                        break
                    self.workers.append(self._start(batch))
                if not self.workers:
                    return
                yield from self._hear()
        finally:
            for worker in self.workers:
                self._end(worker)
            self.workers.clear()

    def _next_batch(self, cases: Iterator[Case]) -> deque[Case]:
        if self.batches:
            return self.batches.popleft()
        return deque(itertools.islice(cases, self.kind.batch))

    def work(self, case: Case) -> Path:
        return self.folder / "work" / case.file_name

    # --- the parent's side ----------------------------------------------------------------

    def _start(self, batch: deque[Case]) -> Worker:
        log = self.folder / f"{batch[0].file_name}.log"
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            for other in self.workers:
                os.close(other.pipe)
            self._be_worker(batch, writing, log)
        os.close(writing)
        return Worker(pid, reading, deque(batch), log)

    def _hear(self) -> Iterator[Done]:
        """What the processes said, within some time; ends those that are too late."""
        ready, _, _ = select.select([worker.pipe for worker in self.workers], [], [], 0.2)
        for worker in list(self.workers):
            if worker.pipe in ready:
                data = os.read(worker.pipe, 1 << 16)
                worker.heard += data
                *lines, worker.heard = worker.heard.split(b"\n")
                for line in lines:
                    yield from self._said(worker, json.loads(line))
                if not data:
                    yield from self._gone(worker)
            elif time.monotonic() - worker.began > self.kind.deadline_s:
                if worker.now is None and worker.left:  # it hangs between two
                    worker.now = worker.left.popleft()
                os.kill(worker.pid, signal.SIGABRT)  # faulthandler says where it stands
                time.sleep(TELLING_S)
                yield from self._gone(worker, f"hangs: no end after {self.kind.deadline_s:.0f} s")

    def _said(self, worker: Worker, line: dict[str, Any]) -> Iterator[Done]:
        if "begins" in line:
            worker.now = worker.left.popleft()
            worker.began = time.monotonic()
        else:
            case, worker.now = worker.now, None
            worker.began = time.monotonic()
            if case is None:
                raise RuntimeError(f"a worker ended a case that it did not begin: {line}")
            yield Done(case, Outcome(line["findings"], Counter(line["counts"])), self.work(case))

    def _gone(self, worker: Worker, why: str = "") -> Iterator[Done]:
        self.workers.remove(worker)
        status = self._end(worker)
        said = worker.log.read_text(errors="replace")[-3000:]
        if worker.now is not None:
            words = why or f"the process ended: {_ending(status)}"
            outcome = Outcome([f"{words}\n{said}" if said else words])
            yield Done(worker.now, outcome, self.work(worker.now))
        worker.log.unlink()
        if worker.left:
            self.batches.appendleft(worker.left)

    def _end(self, worker: Worker) -> int:
        """Its wait status."""
        os.close(worker.pipe)
        kill_all(worker.pid)
        return os.waitpid(worker.pid, 0)[1]

    # --- the child's side -----------------------------------------------------------------

    def _be_worker(self, batch: deque[Case], pipe: int, log: Path) -> None:
        """Never returns."""
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            faulthandler.enable(all_threads=True)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            limit_address_space(self.kind.address_space)
            warnings.simplefilter("ignore")
            gc.freeze()  # or each case's collection would go through all of torch: 0.2 s
            for case in batch:
                _say(pipe, begins=str(case))
                outcome = self._one(case)
                _say(pipe, findings=outcome.findings, counts=dict(outcome.counts))
        except BaseException:
            traceback.print_exc()
            os._exit(70)
        os._exit(0)

    def _one(self, case: Case) -> Outcome:
        work = self.work(case)
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        home = work / "home"
        home.mkdir()
        os.chdir(home)
        before = shared_memory()
        try:
            outcome = self.kind.run(case, Place(self.folder / "corpora", work))
        except Exception:
            outcome = Outcome(["raised: " + traceback.format_exc()])
        if os.getcwd() == str(home) and list(home.iterdir()):
            outcome.finding(f"wrote into the current folder: {[p.name for p in home.iterdir()]}")
        gc.collect()
        if left := ended(list(descendants(os.getpid())), ENDING_S):
            outcome.finding(f"processes are left over: {[_command(pid) for pid in left]}")
        if threads := _threads_left():
            outcome.finding(f"threads are left over: {threads}")
        if more := shared_memory() - before:
            outcome.finding(f"left over in /dev/shm: {sorted(more)}")
        if not outcome.findings:
            shutil.rmtree(work, ignore_errors=True)
        return outcome


def in_a_process(step: Callable[[], object]) -> None:
    """Do something in a forked process, so that this one stays as it is: without threads.

    Raises:
        RuntimeError: it failed there.
    """
    pid = os.fork()
    if pid == 0:
        try:
            step()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if status := os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"making the data failed: {_ending(status)}")


def _say(pipe: int, **line: Any) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(pipe, data) :]


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
    except OSError:
        return str(pid)


def _threads_left() -> list[str]:
    """Of Python's, those that keep a process from ending; they get a moment."""
    end = time.monotonic() + ENDING_S
    while True:
        names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        names = [name for name in names if "shardkit" in name.lower()]
        if not names or time.monotonic() > end:
            return names
        time.sleep(0.01)
