"""SIGKILL in the middle of a pack, convert or unpack, again and again; then the same call ends as
if nothing had been.

A process forked from this one does the work, so that a kill costs milliseconds, not the start of an
interpreter. When it is killed is drawn in three ways: before the n-th of its calls into C (every
write, fsync and rename is one), before the n-th change of the file system, or after some time. The
first two make a finding reproducible: the work up to there is the same each time.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases import Case, Kind, Outcome, Place
from compare import difference, tree
from corpora import CONTAINERS, PACKED, pack_options
from processes import descendants, ended, kill_all

import shardkit

Random = random.Random
Job = Callable[[Path], object]
"""Does all of the work; is given the destination."""

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "open"}
CHANGES |= {"os.symlink", "shutil.rmtree", "os.scandir", "os.listdir", "os.chmod"}

SOURCE = ("pictures", "pairs", "arrays", "ragged", "texts", "tokens", "jsonl", "parquet")
WAIT_S = 30.0
ORPHANS_S = 10.0


@dataclass(frozen=True)
class Work:
    """What is killed: in words, what does it, and what an undisturbed run leaves."""

    what: str
    job: Job
    before: Path | None = None


def kills(case: Case, place: Place) -> Outcome:
    rng, outcome = case.random(), Outcome()
    work = drawn(rng, place.corpora)
    expected_at, dest = place.work / "undisturbed", place.work / "dest"
    calls, changes, seconds = rehearse(work, expected_at)
    expected = tree(expected_at)
    old = prepare(work, dest)
    history = [work.what]
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        moment = rng.choice(["call", "call", "change", "change", "time"])
        at = rng.randrange(1, {"call": calls, "change": changes}.get(moment, 1) + 2)
        delay = rng.uniform(0, 1.1 * seconds)
        is_group = rng.random() < 0.5
        history.append(f"killed {'at ' + str(at) if moment != 'time' else delay} ({moment})")
        was_killed, said = run(work.job, dest, moment, at, delay, is_group)
        outcome.counts["kills" if was_killed else "kills too late"] += 1
        if not was_killed and said and not is_done(said, dest, expected):
            outcome.finding(f"{'; '.join(history)}: taken up again, it said: {said}")
            return outcome
        if problem := half_done(dest, old, expected):
            outcome.finding(f"{'; '.join(history)}: {problem}")
            return outcome
    was_killed, said = run(work.job, dest, "never", 0, 0.0, False)
    if was_killed or (said and not is_done(said, dest, expected)):
        outcome.finding(f"{'; '.join(history)}: the last, undisturbed call said: {said}")
    elif wrong := difference(tree(dest), expected):
        outcome.finding(f"{'; '.join(history)}: {wrong}")
    elif more := sorted(path.name for path in place.work.iterdir() if path.name not in KNOWN):
        outcome.finding(f"{'; '.join(history)}: left over beside the destination: {more}")
    return outcome


KNOWN = {"undisturbed", "dest", "home", "said"}


def drawn(rng: Random, corpora: Path) -> Work:
    """What to kill."""
    to = rng.choice(CONTAINERS)
    workers = rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    way = rng.choice(
        ["pack", "pack", "pack", "tokens", "overwrite", "convert", "convert", "unpack"]
    )
    if way in ("convert", "unpack"):
        packed = corpora / "packed" / f"{rng.choice(PACKED)}-{rng.choice(CONTAINERS)}"
        if way == "unpack":
            return Work(
                f"unpack {packed.name}", lambda d: shardkit.unpack(packed, d, progress=False)
            )
        options: dict[str, Any] = {"to": to, "workers": workers, "progress": False}
        return Work(
            f"convert {packed.name} to {to}", lambda d: shardkit.convert(packed, d, **options)
        )
    kind = "tokens" if way == "tokens" else rng.choice(SOURCE)
    source = corpora / "sources" / kind
    options = {**pack_options(corpora, kind, to), "workers": workers, "shuffle": rng.random() < 0.3}
    if kind == "tokens" and rng.random() < 0.1:
        options |= {"tokenizer": None, "train_tokenizer": 300}
    what = f"{way} {kind} to {to}, {workers} workers"
    if way != "overwrite":
        return Work(what, lambda d: shardkit.pack(source, d, **options))
    before = corpora / "packed" / f"{rng.choice(PACKED)}-{rng.choice(CONTAINERS)}"
    options["overwrite"] = True
    return Work(
        f"{what}, over {before.name}", lambda d: shardkit.pack(source, d, **options), before
    )


def rehearse(work: Work, dest: Path) -> tuple[int, int, float]:
    """An undisturbed run: how many calls and changes it makes, and its seconds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        counter = _Counter()
        counter.install()
        started = time.perf_counter()
        code = 1
        try:
            work.job(dest)
            code = 0
        finally:
            sys.setprofile(None)
            numbers = counter.calls, counter.changes, time.perf_counter() - started
            os.write(writing, " ".join(map(str, numbers)).encode())
            os._exit(code)
    os.close(writing)
    text = os.read(reading, 1000).decode()
    os.close(reading)
    if status := os.waitpid(pid, 0)[1]:
        raise RuntimeError(f"{work.what}: undisturbed, it ended with {status}")
    calls, changes, seconds = text.split()
    return int(calls), int(changes), float(seconds)


def prepare(work: Work, dest: Path) -> dict[str, bytes | str]:
    """What is at the destination before; a tree of it."""
    if work.before is None:
        return {}
    shutil.copytree(work.before, dest)
    return tree(dest)


class _Counter:
    """Counts calls into C, and changes of the file system; may kill its process at one of them."""

    def __init__(self, moment: str = "never", at: int = 0, is_group: bool = False) -> None:
        self.calls = self.changes = 0
        self._kill_call = at if moment == "call" else -1
        self._kill_change = at if moment == "change" else -1
        self._is_group = is_group

    def install(self) -> None:
        sys.addaudithook(self._audit)
        sys.setprofile(self._profile)

    def _audit(self, event: str, args: Any) -> None:
        if event in CHANGES:
            self.changes += 1
            if self.changes == self._kill_change:
                self._die()

    def _profile(self, frame: Any, event: str, arg: Any) -> None:
        if event == "c_call":
            self.calls += 1
            if self.calls == self._kill_call:
                self._die()

    def _die(self) -> None:
        if self._is_group:
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def run(
    job: Job, dest: Path, moment: str, at: int, delay: float, is_group: bool
) -> tuple[bool, str]:
    """Do the job in a process of its own group and kill it; whether it was, else what it said."""
    said = dest.parent / "said"
    said.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _work(job, dest, said, _Counter(moment, at, is_group))
    if moment == "time":
        time.sleep(delay)
        (os.killpg if is_group else os.kill)(pid, signal.SIGKILL) if _has_group(pid) else None
    end = time.monotonic() + WAIT_S
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            kill_all(pid)
            os.waitpid(pid, 0)
            return False, f"no end after {WAIT_S:.0f} s"
        time.sleep(0.001)
    code = os.waitstatus_to_exitcode(done[1])
    if code == -signal.SIGKILL:
        left = ended(_group(pid), ORPHANS_S)
        return not left, f"workers outlive the packer: {left}" if left else ""
    return False, "" if code == 0 else said.read_text(errors="replace")


def _work(job: Job, dest: Path, said: Path, counter: _Counter) -> None:
    """The forked process; never returns."""
    os.setpgid(0, 0)
    code = 1
    try:
        counter.install()
        job(dest)
        code = 0
    except BaseException as error:
        sys.setprofile(None)
        said.write_text(f"{type(error).__name__}: {error}", errors="replace")
    finally:
        os._exit(code)


def _has_group(pid: int) -> bool:
    """Whether it has begun: a process has its own group only then."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        try:
            if os.getpgid(pid) == pid:
                return True
        except ProcessLookupError:
            return False
        time.sleep(0.0002)
    return False


def _group(number: int) -> list[int]:
    """Processes of a group, which has lost its leader."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == number:
                found.append(int(path.name))
    return [*found, *descendants(number)]


def is_done(said: str, dest: Path, expected: dict[str, bytes | str]) -> bool:
    """Killed after its last step, nothing is left to do, and the same call says so."""
    is_refused = said.startswith(("DestinationError", "UsageError"))
    return is_refused and not difference(tree(dest), expected)


def half_done(dest: Path, old: dict[str, bytes | str], expected: dict[str, bytes | str]) -> str:
    """What is wrong with what a kill left: where shardkit.json is, a dataset is whole."""
    if not (dest / "shardkit.json").exists():
        return ""
    index = (dest / "shardkit.json").read_bytes()
    is_of_old = index == old.get("shardkit.json")
    whole = old if is_of_old else expected
    got = {name: data for name, data in tree(dest).items() if not name.startswith(".packing")}
    missing = {name: data for name, data in whole.items() if got.get(name) != data}
    if missing:
        return f"shardkit.json is there, and not what it names: {sorted(missing)}"
    return ""


KIND = Kind(
    "kills",
    "SIGKILL in a pack, convert or unpack, then the same call",
    kills,
    default=40,
    batch=10,
    deadline_s=240,
)
