"""Faults around a loader: one clear error within seconds, or the right data; nothing left over."""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Case, Kind, Outcome, Place
from compare import difference, same, tree
from corpora import CONTAINERS, pack_options
from processes import descendants

import shardkit

Random = random.Random
Batch = dict[str, Any]

SECONDS = 20.0
"""An error must come within so many, on a busy machine: torch looks for dead workers every 5."""

CLONE_NEWNS = 0x00020000
SMALL = 4


def faults(case: Case, place: Place) -> Outcome:
    rng, outcome = case.random(), Outcome()
    name = [*FAULTS][case.number % len(FAULTS)]
    torch.set_num_threads(1)
    said = FAULTS[name](rng, place)
    outcome.counts[f"{name} skipped" if said.startswith("skipped") else name] += 1
    if said and not said.startswith("skipped"):
        outcome.finding(f"{name}: {said}")
    return outcome


def dataset(rng: Random, corpora: Path, **options: Any) -> shardkit.Dataset:
    return shardkit.open(corpora / "packed" / f"pictures-{rng.choice(CONTAINERS)}", **options)


def loader(source: Any, **options: Any) -> shardkit.Loader:
    return shardkit.Loader(source, SMALL, **{"shuffle": "full", "with_keys": True, **options})


def expected(source: Any, **options: Any) -> list[Batch]:
    return [*loader(source, workers=0, **options)]


def judged(run: Callable[[], list[Batch]], right: list[Batch], must_fail: bool = False) -> str:
    """What is wrong with a run under a fault, in words: it may give all of the right data, or one
    error of ours in one line, in time."""
    started = time.monotonic()
    try:
        got = run()
    except shardkit.ShardkitError as error:
        took = time.monotonic() - started
        if took > SECONDS:
            return f"the error took {took:.0f} s: {error}"
        return f"not one line: {error}" if "\n" in str(error) else ""
    except SystemExit:
        return ""  # a transform that ends the program ends it
    except Exception as error:
        return f"{type(error).__name__} comes through: {error}"
    if must_fail:
        return f"no error, {len(got)} of {len(right)} batches"
    if len(got) != len(right):
        return f"no error, and {len(got)} of {len(right)} batches"
    return "" if all(map(same, got, right)) else "no error, and other data"


# --- workers ------------------------------------------------------------------------------


def killed_worker(rng: Random, place: Place) -> str:
    source = dataset(rng, place.corpora)
    at, right = rng.randrange(3), expected(source)
    how = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])

    def run() -> list[Batch]:
        got = []
        for batch in loader(source, workers=2, worker_type="process", prefetch=1):
            got.append(batch)
            if len(got) == at + 1:
                os.kill(rng.choice([*descendants(os.getpid())]), how)
        return got

    return judged(run, right)


class Bad:
    """A transform that does something bad at a sample that is drawn."""

    def __init__(self, how: str, label: int) -> None:
        self.how, self.label = how, label

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if sample["cls"] == self.label:
            match self.how:
                case "raise":
                    raise KeyError("a transform\nof two lines")
                case "exit":
                    sys.exit(3)
                case "os._exit":
                    os._exit(3)
                case "memory":
                    raise MemoryError
                case "stop":
                    raise StopIteration
                case "os":
                    raise OSError(errno.EMFILE, "Too many open files")
        return {"cls": sample["cls"], "drawn": float(rng.random())}


HOWS = ("raise", "exit", "memory", "stop", "os")


def bad_transform(rng: Random, place: Place) -> str:
    """It must come as an error at its batch, from any kind of worker."""
    source = dataset(rng, place.corpora).select(range(24))
    worker_type = rng.choice(["thread", "process"])
    workers = rng.choice([0, 2]) if worker_type == "thread" else 2
    how = rng.choice([*HOWS, "os._exit"] if worker_type == "process" else HOWS)
    options: dict[str, Any] = {"workers": workers, "worker_type": worker_type}
    options |= {"shuffle": None, "on_error": rng.choice(["fail", "fail", "skip"])}
    made = loader(
        source.select(np.flatnonzero(np.asarray(source.column("cls")) == 0)),
        transform=Bad("none", -1),
    )
    if options["on_error"] == "skip":
        made = loader(source, transform=Bad("none", -1))
    right = [*made]
    options["max_skips"] = 2
    words = f"{how} in {workers} {worker_type}s, {options['on_error']}"
    # The loader tries a transform on the first samples: those are all right.
    late = source.select(sorted(range(24), key=lambda row: int(source.column("cls")[row])))
    said = judged(lambda: [*loader(late, transform=Bad(how, 1), **options)], right, must_fail=True)
    return f"{words}: {said}" if said else ""


class Slow:
    """A transform that takes for ever at a label."""

    def __init__(self, label: int) -> None:
        self.label = label

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if sample["cls"] == self.label:
            time.sleep(1000)
        return {"cls": sample["cls"]}


def left_while_it_hangs(rng: Random, place: Place) -> str:
    """A worker process that hangs does not keep a loop from leaving."""
    source = dataset(rng, place.corpora)
    late = source.select(sorted(range(len(source)), key=lambda row: int(source.column("cls")[row])))
    started = time.monotonic()
    batches = iter(
        loader(late, transform=Slow(2), workers=2, worker_type="process", shuffle=None, prefetch=2)
    )
    next(batches)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    del batches
    gc.collect()
    took = time.monotonic() - started
    return f"leaving the loop took {took:.0f} s" if took > SECONDS else ""


# --- what is read -------------------------------------------------------------------------


def cut_while_read(rng: Random, place: Place) -> str:
    """With verify=True: the right data, or an error; SIGBUS is what a memory map may give."""
    source = place.corpora / "packed" / f"pictures-{rng.choice(CONTAINERS)}"
    bad = place.work / "dataset"
    shutil.copytree(source, bad)
    opened = shardkit.open(bad, verify=True)
    right = expected(shardkit.open(source, verify=True))
    after, how = rng.randrange(4), rng.choice(["cut", "empty", "remove", "overwrite"])
    files = sorted(p for p in bad.iterdir() if p.suffix != ".json")
    path, share = rng.choice(files), rng.random()

    def spoil() -> None:
        size = path.stat().st_size
        match how:
            case "cut":
                os.truncate(path, int(size * share))
            case "empty":
                os.truncate(path, 0)
            case "remove":
                shutil.rmtree(bad)
            case "overwrite":
                with path.open("r+b") as file:
                    file.seek(int(size * share))
                    file.write(bytes(min(100, size - int(size * share))))

    workers = rng.choice([0, 2])
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            batches = []
            for number, batch in enumerate(loader(opened, workers=workers)):
                batches.append(batch)
                if number == after:
                    spoil()
            code = 0 if len(batches) == len(right) and all(map(same, batches, right)) else 9
        except shardkit.ShardkitError:
            code = 0
        except BaseException as error:
            (place.work / "said").write_text(repr(error))
            code = 8
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status in (0, -signal.SIGBUS):
        return ""
    words = f"{how} of {path.name}, {workers} threads"
    if status == 9:
        return f"{words}: other data than was packed, and no error, with verify=True"
    said = place.work / "said"
    return f"{words}: status {status}: {said.read_text() if said.exists() else ''}"


# --- the machine --------------------------------------------------------------------------


def small_shared_memory(rng: Random, place: Place) -> str:
    """/dev/shm of a container: some kilobytes, and batches do not fit."""
    size = rng.choice([16, 64, 256])
    if place.work.is_relative_to("/dev/shm"):
        return "skipped: the data lies there"

    def run() -> str:
        if said := mounted("/dev/shm", size):
            return said
        source = dataset(rng, place.corpora)
        options: dict[str, Any] = {"transform": Large(), "workers": 2, "worker_type": "process"}
        right = expected(source, transform=Large())
        return judged(lambda: [*loader(source, **options)], right)

    return apart(run, place)


class Large:
    """Makes 64 kB of each sample."""

    def __call__(self, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"cls": sample["cls"], "large": rng.integers(0, 9, 8192)}


def full_disk(rng: Random, place: Place) -> str:
    """A pack says that the disk is full, and ends in the same bytes when there is room."""
    to, workers = rng.choice(CONTAINERS), rng.choice([0, 0, 1])
    kind = rng.choice(["pictures", "pairs", "tokens", "texts"])
    size = rng.choice([12, 20, 40, 64, 100])
    source, disk = place.corpora / "sources" / kind, place.work / "disk"
    options = {**pack_options(place.corpora, kind, to), "workers": workers}

    def run() -> str:
        disk.mkdir()
        if said := mounted(str(disk), size):
            return said
        shardkit.pack(source, place.work / "right", **options)
        try:
            shardkit.pack(source, disk / "dest", **options)
        except shardkit.ShardkitError as error:
            if "full" not in str(error) and "space" not in str(error):
                return f"of a full disk it says: {error}"
            if (disk / "dest" / "shardkit.json").exists():
                return "shardkit.json is there, of what is not whole"
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            gc.collect()
            shardkit.pack(source, disk / "dest", **options)
        return difference(tree(disk / "dest"), tree(place.work / "right"))

    return apart(run, place)


def few_descriptors(rng: Random, place: Place) -> str:
    """``ulimit -n`` lower than a dataset has files."""
    more = rng.choice([0, 2, 5, 10, 20, 40])
    worker_type = rng.choice(["thread", "process"])
    workers = 2 if worker_type == "process" else rng.choice([0, 2])

    def run() -> str:
        source = dataset(rng, place.corpora)
        options: dict[str, Any] = {"workers": workers, "worker_type": worker_type}
        right = expected(dataset(random.Random(0), place.corpora))
        used = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, used + more))
        return judged(lambda: [*loader(source, **options)], right)

    said = apart(run, place)
    return f"{more} more descriptors, {workers} {worker_type}s: {said}" if said else ""


def mounted(where: str, kilobytes: int) -> str:
    """A small tmpfs that this process alone sees; else why not, in words."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS):
        return "skipped: this system gives no namespace of mounts"
    size = f"size={kilobytes}k"
    for line in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", size, "tmpfs", where]):
        if subprocess.run(["mount", *line], capture_output=True).returncode:
            return "skipped: this system does not let us mount a tmpfs"
    return ""


def apart(run: Callable[[], str], place: Place) -> str:
    """What is said by ``run`` in a process of its own, which may change what it is allowed."""
    said = os.open(place.work / "apart", os.O_RDWR | os.O_CREAT)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(said, run().encode(errors="replace"))
            code = 0
        except BaseException as error:
            os.write(said, f"{type(error).__name__} comes through: {error}".encode())
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.lseek(said, 0, os.SEEK_SET)
    text = os.read(said, 10_000).decode(errors="replace")
    os.close(said)
    return text or (f"the process ended with {status}" if status else "")


# --- processes ----------------------------------------------------------------------------


def left_early(rng: Random, place: Place) -> str:
    """A loop left after some batches holds nothing any more."""
    source = dataset(rng, place.corpora)
    options: dict[str, Any] = {"workers": 2, "worker_type": rng.choice(["thread", "process"])}
    options |= {"device": rng.choice([None, "cpu"])}
    [*loader(source, **options)]  # opens what stays open
    before = held()
    for _ in range(3):
        for number, _batch in enumerate(loader(source, **options)):
            if number == rng.randrange(3):
                break
    del _batch
    end = time.monotonic() + SECONDS
    while any(now > then for now, then in zip(held(), before, strict=True)):
        gc.collect()
        if time.monotonic() > end:
            return f"{options}: {before} threads, files and processes became {held()}"
        time.sleep(0.02)
    return ""


def held() -> tuple[int, int, int]:
    files = len(os.listdir("/proc/self/fd"))
    return threading.active_count(), files, len([*descendants(os.getpid())])


def forked_while_read(rng: Random, place: Place) -> str:
    """A fork in the middle of an epoch: parent and child both go on, with the right data."""
    source = dataset(rng, place.corpora, verify=rng.random() < 0.5)
    right = expected(source)
    at, worker_type = rng.randrange(4), rng.choice(["thread", "process"])
    got, status = [], -1
    for batch in loader(source, workers=2, worker_type=worker_type):
        got.append(batch)
        if len(got) == at + 1:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    again = [*loader(source, workers=rng.choice([0, 2]))]
                    code = 0 if all(map(same, again, right)) else 9
                finally:
                    os._exit(code)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        return f"{worker_type}: the child ended with {status}"
    return "" if all(map(same, got, right)) else f"{worker_type}: other data in the parent"


def killed_rank(rng: Random, place: Place) -> str:
    """One rank of a gloo group is killed; the run goes on with another world size, from what was
    saved by all, and is the run that nothing happened to."""
    source = dataset(rng, place.corpora)
    options: dict[str, Any] = {"seed": rng.randrange(100), "shuffle": "full", "with_keys": True}
    right = [*shardkit.Loader(source, 12, workers=0, **options)]
    world, then, at = rng.choice([2, 3]), rng.choice([1, 2, 4]), rng.randrange(1, 3)
    victim = rng.randrange(world)
    store = place.work / "store"
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            _rank(source, options, rank, world, store, at, victim, place.work)
        pids.append(pid)
    started = time.monotonic()
    for pid in pids:
        os.waitpid(pid, 0)
    if (took := time.monotonic() - started) > 3 * SECONDS:
        return f"the other ranks ended after {took:.0f} s"
    states = [(place.work / f"state-{rank}").read_text() for rank in range(world)]
    number, state = min((json.loads(each) for each in states), key=lambda each: int(each[0]))
    rest = []
    for rank in range(then):
        made = shardkit.Loader(source, 12 // then, rank=rank, world_size=then, **options)
        made.load_state_dict(state)
        rest.append([*made])
    got = [
        {name: [value for batch in ranks for value in batch[name]] for name in ranks[0]}
        for ranks in zip(*rest, strict=True)
    ]
    wanted = [{name: [*batch[name]] for name in batch} for batch in right[number:]]
    is_same = len(got) == len(wanted) and all(map(same, got, wanted))
    return "" if is_same else f"resumed at batch {number} on {then} ranks, other batches"


def _rank(
    source: Any,
    options: dict[str, Any],
    rank: int,
    world: int,
    store: Path,
    at: int,
    victim: int,
    work: Path,
) -> None:
    """A rank of the group; never returns."""
    from datetime import timedelta

    import torch.distributed as dist

    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=SECONDS),
        )
        made = shardkit.Loader(source, 12 // world, **options)
        for number, _ in enumerate(made):
            dist.barrier()
            new = work / f"new-{rank}"
            new.write_text(json.dumps([number + 1, made.state_dict()]))
            new.replace(work / f"state-{rank}")
            if (rank, number) == (victim, at - 1):
                os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


FAULTS: dict[str, Callable[[Random, Place], str]] = {
    "killed worker": killed_worker,
    "bad transform": bad_transform,
    "left while it hangs": left_while_it_hangs,
    "cut while read": cut_while_read,
    "small /dev/shm": small_shared_memory,
    "full disk": full_disk,
    "few descriptors": few_descriptors,
    "left early": left_early,
    "forked while read": forked_while_read,
    "killed rank": killed_rank,
}

KIND = Kind(
    "faults",
    "dead workers, full disks, small /dev/shm, forks, lost ranks",
    faults,
    default=20,
    batch=1,
    deadline_s=180,
    address_space=16 << 30,
)
