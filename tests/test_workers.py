"""Worker processes: nothing they make is lost, none hangs, and each end is said in one line."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from trained import Rows

import shardkit
from shardkit import Loader
from shardkit.errors import DataError, SampleError, UsageError


class Large(Rows):
    """12 MB a batch of 4."""

    def read(self, rows: Any) -> dict[str, Any]:
        return {"row": rows, "x": np.repeat(rows[:, None], 3 << 20, 1).astype(np.uint8)}


def loader(transform: Any = None, source: Any = None, **options: Any) -> Loader:
    options = {"workers": 2, "worker_type": "process", **options}
    return Loader(source or Rows(), 4, transform=transform, **options)


def workers() -> list[Any]:
    children = multiprocessing.active_children()
    return [child for child in children if child.name.startswith("shardkit-worker")]


def started(code: str, *args: object, prefix: tuple[str, ...] = (), **options: Any) -> Any:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [*prefix, sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, **options)


def ran(code: str, *args: object, prefix: tuple[str, ...] = ()) -> str:
    process = started(code, *args, prefix=prefix, stderr=subprocess.STDOUT)
    out: str = process.communicate(timeout=60)[0]
    assert process.returncode == 0, out
    return out


# --- memory -------------------------------------------------------------------------------

SMALL_SHM = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs /dev/shm && exec "$@"')

IN_SMALL_SHM = """
import test_workers, shardkit
from torch.utils.data import DataLoader
source = test_workers.Large()
ours = shardkit.Loader(source, 4, workers=2, worker_type="process")
torchs = DataLoader(shardkit.Stream(source, 4), batch_size=None, num_workers=2)
for batches in (ours, torchs):
    print([[int(batch["row"][0]), int(batch["x"].max())] for batch in batches])
"""


def test_a_small_shm_is_enough() -> None:
    """Of batches larger than /dev/shm torch lost all, and ended normally; ours hung."""
    try:
        done = subprocess.run([*SMALL_SHM, "sh", "true"], capture_output=True, timeout=20)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if done.returncode:
        pytest.skip(f"no mount of one's own here: {done.stderr!r}")
    out = ran(IN_SMALL_SHM, prefix=(*SMALL_SHM, "sh"))
    assert list(map(json.loads, out.splitlines())) == [[[0, 3], [4, 7], [8, 11]]] * 2


LIMITS = {"memory": (resource.RLIMIT_FSIZE, 1 << 20), "files": (resource.RLIMIT_NOFILE, 64)}


class Tight(Large):
    """The worker that reads the last batch may write no large file, or open none at all."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.held: list[int] = []

    def read(self, rows: Any) -> dict[str, Any]:
        assert multiprocessing.parent_process(), "only workers read"
        if rows[0] == 8:
            kind, most = LIMITS[self.what]
            resource.setrlimit(kind, (most, most))
            self.held = all_files() if self.what == "files" else []
        return super().read(rows)


def all_files() -> list[Any]:
    """Every descriptor that is left."""
    held = []
    try:
        while True:
            held.append(os.dup(1))
    except OSError:
        return held


@pytest.mark.parametrize("whose", ["ours", "torch's"])
@pytest.mark.parametrize(
    ("what", "said"), [("memory", "memory ran out: OSError"), ("files", "Too many open files")]
)
def test_what_has_no_room_is_an_error_in_its_turn(whose: str, what: str, said: str) -> None:
    batches: Any = loader(source=Tight(what), workers=1)
    if whose != "ours":
        batches = DataLoader(shardkit.Stream(Tight(what), 4), batch_size=None, num_workers=1)
    rows: list[int] = []
    started = time.monotonic()
    error = None
    try:
        rows.extend(int(batch["row"][0]) for batch in batches)
    except DataError as raised:
        error = str(raised)
    if whose == "ours":
        assert rows == [0, 4]
    else:  # pickled in a thread, batches made before the limit may meet it; or there is room again
        assert rows == [0, 4, 8][: len(rows)]
    if rows != [0, 4, 8] or what == "memory":
        assert re.search(rf"{said}.*worker_type='thread'", str(error))
    assert time.monotonic() - started < 10


def test_too_many_open_files_where_batches_arrive() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    batches = iter(loader(source=Large(), workers=1))
    next(batches)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held = all_files()
    try:
        with pytest.raises(DataError, match=r"ulimit -n") as caught:
            list(batches)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert not workers()


def odd_batch(sample: dict[str, Any]) -> dict[str, Any]:
    return {"row": sample["row"]}


def values() -> dict[str, Any]:
    whole = torch.arange(100_000)
    small = torch.arange(10)
    return {
        "inputs": whole[:-1],
        "labels": whole[1:],
        "small": [small[:5], small[5:]],
        "ragged": [torch.full((n * 20_000,), n) for n in range(5)],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(3.5),
        "turned": torch.arange(60_000.0).reshape(200, 300).T,
        "sparse": torch.eye(200).to_sparse(),
        "half": torch.ones(50_000, dtype=torch.bfloat16),
        "array": np.arange(30_000),
        "frozen": np.frombuffer(bytes(100_000), np.uint8),
        "bytes": [b"a" * 100_000, b"", None],
        "nested": {"deep": (torch.ones(40_000), "text")},
    }


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and bool(torch.equal(one.to_dense(), two.to_dense()))
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and bool((one == two).all())
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, two, strict=True)
        return type(one) is type(two) and all(same(a, b) for a, b in pairs)
    return bool(one == two)


class Odd(Rows):
    """Batches with all that may be in one; unlike tensors of one batch after another."""

    def finish(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, **values()}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", ["ours", DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_odd_batches_of_workers(kind: Any, strategy: str) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        batches: Any = loader(source=Odd())
        if kind != "ours":
            stream = shardkit.Stream(Odd(), 4)
            batches = kind(stream, batch_size=None, num_workers=2, collate_fn=unchanged)
        got = list(batches)
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert [batch.pop("row").tolist() for batch in got] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert all(type(batch) is dict and same(batch, values()) for batch in got)
    for batch in got:  # views of one tensor still are, and may be written to
        batch["inputs"][1] = 77
        assert batch["labels"][0] == 77


def unchanged(batch: Any) -> Any:
    return batch


def test_more_descriptors_than_a_message_carries() -> None:
    class Many(Rows):
        def finish(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {**batch, "x": [torch.full((9000,), float(n)) for n in range(450)]}

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        num = 0
        for batch in loader(source=Many()):
            assert [int(x[-1]) for x in batch["x"]] == list(range(450))
            num += 1
        assert num == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# --- what goes wrong in a worker ----------------------------------------------------------


class NeedyError(Exception):
    """Cannot be made from its message alone, nor be pickled."""

    def __init__(self, one: str, two: Any) -> None:
        super().__init__(f"{one}\nand {two}")


class NeedyUsageError(UsageError):
    def __init__(self, one: str, two: Any) -> None:
        super().__init__(f"{one}\nand {two}")
        self.lock = threading.Lock()


def fails(how: str, sample: dict[str, Any]) -> dict[str, Any]:
    if sample["row"] < 4 or (
        threading.current_thread() is threading.main_thread()
        and not (multiprocessing.parent_process())
    ):  # the first batch is good; nor here, where the transform is tried
        return {"row": sample["row"]}
    faulthandler.disable()  # else what pytest turned on tells of the crash, at length
    actions: dict[str, Any] = {
        "exit": lambda: sys.exit(3),
        "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
        "os._exit": lambda: os._exit(7),
        "segfault": lambda: ctypes.string_at(0),
        "abort": os.abort,
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "needy": lambda: (_ for _ in ()).throw(NeedyError("a", torch.ones(2))),
        "needy usage": lambda: (_ for _ in ()).throw(NeedyUsageError("a", torch.ones(2))),
        "unsendable": lambda: {"row": sample["row"], "odd": threading.Lock()},
        "unsendable error": lambda: (_ for _ in ()).throw(OSError(threading.Lock())),
    }
    return actions[how]()  # type: ignore[no-any-return]


SAID = {
    "exit": (SampleError, r"raised SystemExit\(3\) \(batch 1 after .* epoch 0, worker process 1\)"),
    "interrupt": (SampleError, r"raised KeyboardInterrupt\(\) \(batch 1 .*, worker process 1\)"),
    "os._exit": (DataError, r"worker process 1 ended with exit status 7 while it made batch 1 "),
    "segfault": (DataError, r"was killed by signal 11 \(SIGSEGV\) while it made batch 1 .*crashed"),
    "abort": (DataError, r"was killed by signal 6 \(SIGABRT\) while it made batch 1 after"),
    "kill": (DataError, r"was killed by signal 9 \(SIGKILL\) .* If memory ran out, use fewer"),
    "needy": (SampleError, r"row 4: the transform failed: NeedyError: a and tensor.* \(batch 1 "),
    "needy usage": (UsageError, r"^a and tensor\(\[1., 1.\]\) \(batch 1 .*, worker process 1\)"),
    "unsendable": (UsageError, r"field 'odd' cannot be sent from a worker process: TypeErr"),
    "unsendable error": (SampleError, r"row 4: the transform failed: OSError: .* \(batch 1 "),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", SAID)
def test_what_goes_wrong_is_one_line(how: str) -> None:
    started = time.monotonic()
    batches = iter(loader(functools.partial(fails, how)))
    assert next(batches)["row"].tolist() == [0, 1, 2, 3]
    kind, said = SAID[how]
    with pytest.raises(kind, match=said) as caught:
        list(batches)
    assert "\n" not in str(caught.value)
    assert ("memory" in str(caught.value)) == (how == "kill")
    assert not workers()
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_threads_do_not_end_the_training(how: str) -> None:
    with pytest.raises(SampleError, match=SAID[how][1].replace("process 1", r"thread \d")):
        list(loader(functools.partial(fails, how), worker_type="thread"))


class Ungiven(Rows):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not\nthis one")


class Untaken(Rows):
    """Pickles, but cannot be made again."""

    def __reduce__(self) -> Any:
        return refuses, ()


def refuses() -> Any:
    raise RuntimeError("nor\nthat one")


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"], indirect=True)
def test_what_cannot_be_given_to_a_worker(start_method: str) -> None:
    unlike = [(lambda sample: sample, None, r"<lambda>"), (None, Ungiven(), "not this one")]
    if start_method == "spawn":
        unlike.append((None, Untaken(), "nor that one"))
    for transform, source, said in unlike:
        with pytest.raises(UsageError, match=said) as caught:
            list(loader(transform, source, workers=1))
        assert "cannot be given this dataset or transform" in str(caught.value)
        assert "\n" not in str(caught.value)
    if start_method == "forkserver":
        got = [batch["row"].tolist() for batch in loader(odd_batch, workers=1)]
        assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_processes_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start = multiprocessing.Process.start
    begun = []

    def second_fails(process: Any) -> None:
        if begun:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        begun.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.Process, "start", second_fails)
    with pytest.raises(DataError, match=r"cannot be started: .*temporarily unavailable; use fewer"):
        list(loader())
    assert not workers()


# --- where they start, and end ------------------------------------------------------------

forked_in: list[str] = []
os.register_at_fork(before=lambda: forked_in.append(threading.current_thread().name))


@pytest.mark.parametrize("device", [None, "cpu"])
def test_they_are_started_by_the_thread_that_asks(device: str | None) -> None:
    """Forked by another, they would inherit for ever whatever lock this one held just then."""
    forked_in.clear()
    assert len(list(loader(device=device))) == 3
    assert forked_in == [threading.current_thread().name] * 2


def hangs(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["row"] >= 8 and multiprocessing.parent_process():
        time.sleep(1000)
    return {"row": sample["row"]}


@pytest.mark.parametrize("device", [None, "cpu"])
def test_one_that_hangs_is_ended_at_once(device: str | None) -> None:
    batches = iter(loader(hangs, device=device))
    next(batches)
    time.sleep(0.3)
    started = time.monotonic()
    batches.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 5
    assert not workers()


ORPHANS = """
import os, sys, time
import test_workers
batches = iter(test_workers.loader(test_workers.hangs))
next(batches)
import multiprocessing
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
time.sleep(60)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_they_end_when_their_parent_is_killed() -> None:
    """Idle or not: one of the two hangs in the transform."""
    process = started(ORPHANS)
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(alive, pids))
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))
