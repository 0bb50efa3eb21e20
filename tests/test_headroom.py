"""What a script would gain if loading cost nothing: replayed batches, and scripts run both ways."""

from __future__ import annotations

import json
import os
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
import pytest
from conftest import write

from shardkit import Loader
from shardkit.errors import DataError, UsageError
from shardkit.loading.headroom import ENVIRONMENT, NUM_KEPT, read
from shardkit.measure.tune import keeper
from shardkit.measure.tune import script as script_module
from shardkit.measure.tune.headroom import headroom

NUM_BATCHES = 20


class Numbers:
    """A source that counts what is read of it."""

    def __init__(self) -> None:
        self.num_read = 0

    def __len__(self) -> int:
        return 4 * NUM_BATCHES

    def read(self, rows: Any) -> dict[str, Any]:
        self.num_read += 1
        return {"row": rows}


def ask(monkeypatch: pytest.MonkeyPatch, kind: str, folder: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT, f"{kind}:{folder}")


def rows(batches: Any) -> list[list[int]]:
    return [batch["row"].tolist() for batch in batches]


# --- replay -------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "worker_type"), [(0, "thread"), (2, "thread"), (1, "process")])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_the_first_batches_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, worker_type: Any, device: Any
) -> None:
    options: dict[str, Any] = {"workers": workers, "worker_type": worker_type, "device": device}
    usual = rows(Loader(Numbers(), 4, shuffle="full", **options))
    ask(monkeypatch, "replay", tmp_path)
    loader = Loader(Numbers(), 4, shuffle="full", **options)
    kept = usual[:NUM_KEPT]
    assert rows(loader) == [kept[number % NUM_KEPT] for number in range(NUM_BATCHES)]
    assert rows(loader)[:NUM_KEPT] == kept
    assert loader.epoch == 2


def test_nothing_more_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "replay", tmp_path)
    source = Numbers()
    loader = Loader(source, 4, workers=0)
    list(loader), list(loader)
    assert source.num_read == NUM_KEPT


@pytest.mark.parametrize("kind", ["replay", "watch"])
def test_loaders_of_the_same_work_count_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A script may make one each epoch, and have few batches an epoch."""
    ask(monkeypatch, kind, tmp_path)
    source = Numbers()
    for _ in range(30):
        assert len(rows(Loader(source, 30, workers=0))) == 2
    list(Loader(source, 4, workers=0))
    found = read(tmp_path)
    assert found["work"]["batch_size"] == 30
    assert len(found["steps"]) == len(found["waits"]) == 60
    if kind == "replay":
        assert source.num_read == NUM_KEPT + NUM_KEPT


def test_what_is_not_replayed_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "replay", tmp_path)
    source = Numbers()
    list(Loader(source, 4, workers=0))
    assert "valid" in next(iter(Loader(source, 4, workers=0, last="pad")))
    (first,) = rows(Loader(source, 4, workers=0, rank=1, world_size=NUM_BATCHES))
    assert first != [0, 1, 2, 3]


def test_a_loop_left_early_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.loading.headroom.WRITE_EVERY_S", 1000.0)
    ask(monkeypatch, "watch", tmp_path)
    batches = iter(Loader(Numbers(), 4, workers=0))
    assert read(tmp_path)["steps"] == []
    for _ in range(5):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(read(tmp_path)["steps"]) == 4


def test_a_state_is_where_the_loop_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "replay", tmp_path)
    loader = Loader(Numbers(), 4)
    positions = [loader.state_dict()["position"] for _ in loader]
    assert positions == [4 * n for n in range(1, NUM_BATCHES + 1)]


def test_a_loop_left_early_ends_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(monkeypatch, "replay", tmp_path)
    batches = iter(Loader(Numbers(), 4, workers=2))
    assert next(batches)["row"].tolist() == [0, 1, 2, 3]
    batches.close()  # type: ignore[attr-defined]
    assert not any("shardkit" in thread.name for thread in threading.enumerate())


def test_watching_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = rows(Loader(Numbers(), 4, shuffle="full"))
    ask(monkeypatch, "watch", tmp_path)
    assert rows(Loader(Numbers(), 4, shuffle="full")) == usual


def test_steps_and_waits_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "watch", tmp_path)

    class Slow(Numbers):
        def read(self, rows: Any) -> dict[str, Any]:
            time.sleep(0.02)
            return super().read(rows)

    other, loader = Loader(Numbers(), 4), Loader(Slow(), 4, workers=0)
    next(iter(other))
    for _ in loader:
        time.sleep(0.01)
    found = read(tmp_path)
    assert found["work"]["batch_size"] == 4 and found["settings"] == "no worker"
    assert len(found["steps"]) == len(found["waits"]) == NUM_BATCHES
    assert 0.01 <= np.median(found["steps"]) < 0.02 <= np.median(found["waits"]) < 0.04


def test_no_loader_was_there(tmp_path: Path) -> None:
    assert read(tmp_path) == {}


@pytest.mark.parametrize("text", ["replay", "replay:/no/such/folder", "again:/tmp", "1"])
def test_an_environment_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, text)
    with pytest.raises(UsageError, match="SHARDKIT_HEADROOM must be replay:FOLDER or watch:FOLDER"):
        Loader(Numbers(), 4)


def test_a_folder_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, "watch:/proc")
    with pytest.raises(UsageError, match="SHARDKIT_HEADROOM: cannot write to /proc: "):
        Loader(Numbers(), 4)
    (tmp_path / "folder").mkdir()
    ask(monkeypatch, "watch", tmp_path / "folder")
    loader = Loader(Numbers(), 4)
    shutil.rmtree(tmp_path / "folder")
    with pytest.raises(UsageError, match=r"cannot write to .*folder: No such file"):
        list(loader)


# --- scripts ------------------------------------------------------------------------------

SCRIPT = """
import sys, time
sys.path[:0] = {path!r}
import numpy as np
from shardkit import Loader

class Source:
    def __len__(self): return 10**6
    def read(self, rows):
        time.sleep({load_s})
        return {{"row": rows}}

for batch in Loader(Source(), 16, workers={workers}):
    time.sleep({step_s})
"""


def script(folder: Path, text: str = SCRIPT, **numbers: Any) -> str:
    numbers = {"load_s": 0.0, "step_s": 0.0, "workers": 1, **numbers}
    return str(write(folder / "my train.py", text.format(path=sys.path, **numbers)))


def test_a_script_that_waits_for_its_loader(tmp_path: Path) -> None:
    told: list[str] = []
    path = script(tmp_path, load_s=0.03, step_s=0.01)
    found = headroom(f"'{path}' --some-option", seconds=1.5, tell=told.append)
    assert 9 < found.free_ms < 20 < found.step_ms < 45
    assert found.share == pytest.approx(1 - found.free_ms / found.step_ms)
    assert found.batch_size == 16 and found.settings == "1 thread, prefetch 2"
    assert [words.rpartition(", ")[2] for words in told] == ["loading free", "as it is"]


def test_a_script_that_does_not_wait(tmp_path: Path) -> None:
    found = headroom(f"'{script(tmp_path, load_s=0.001, step_s=0.02)}'", seconds=1.5)
    assert found.share < 0.2


FEW = """
import sys
sys.path[:0] = {path!r}
import time
from shardkit import Loader

class Source:
    def __len__(self): return 40
    def read(self, rows): return {{"row": rows}}

for batch in Loader(Source(), 4):
    pass
time.sleep({more_s})
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "raise SystemExit('no data here')",
            r"no shardkit\.Loader \(exit code 1\): .*; it said: no",
        ),
        ("print('done')", r"no shardkit\.Loader \(exit code 0\): .*--step-ms; it said: done$"),
        (
            "",
            r"--headroom looks at loops over a shardkit\.Loader; else time a step, and give --step",
        ),
        (
            FEW.format(path=sys.path, more_s=0),
            r"made 10 steps .*16 are needed \(exit code 0\): let",
        ),
        (
            FEW.format(path=sys.path, more_s=99),
            r"made 10 steps .* \(it was still running\): let it",
        ),
    ],
)
def test_a_script_that_makes_too_few_steps(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "train.py", text)
    with pytest.raises(DataError, match=message):  # some machines take seconds to end a process
        headroom(str(path), seconds=0.5 if "running" in message else 30)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "headroom: give a script"),
        ("  ", "headroom: give a script"),
        ("no-such-program train.py", "cannot run no-such-program: No such file"),
        ("no-such-script.py -x", r"headroom: no-such-script\.py: no such file"),
        ("'unclosed", r'headroom: "\'unclosed" is no command line: No closing quotation'),
    ],
)
def test_no_script(command: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        headroom(command)


def test_seconds_without_end() -> None:
    with pytest.raises(UsageError, match="seconds must be more than 0, and finite, got inf"):
        headroom("train.py", seconds=float("inf"))


STUBBORN = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
command = [sys.executable, "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(command)
worker = subprocess.Popen(command, start_new_session=True)  # as torchrun's are
hidden = subprocess.Popen(command, env={{}})  # as with setproctitle
folder = os.environ["SHARDKIT_HEADROOM"].partition(":")[2]
pids = os.getpid(), child.pid, worker.pid, hidden.pid
found = {{"waits": [0.1] * {num}, "steps": [0.2] * {num}}}
found |= {{"settings": "", "work": {{"batch_size": 1}}}}
open(folder + "/1.json", "w").write(json.dumps(found))
with open({pids!r}, "a") as file:
    file.write(" ".join(map(str, pids)) + f" {{folder}}\\n")
time.sleep(1000)
"""


def test_nothing_of_it_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_module, "PATIENCE_TO_END_S", 0.3)
    pids = tmp_path / "pids"
    path = write(tmp_path / "train.py", STUBBORN.format(pids=str(pids), num=500))
    found = headroom(str(path), seconds=5)
    assert found.step_ms == found.free_ms == pytest.approx(300)
    runs = pids.read_text().splitlines()
    assert len(runs) == 2
    assert not any(left_of(run) for run in runs)


TUNE = """
import sys
from shardkit.measure.tune import script
from shardkit.measure.tune.headroom import headroom
script.PATIENCE_TO_END_S = 0.3
headroom(sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_running_if_we_are_ended(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    path = write(tmp_path / "train.py", STUBBORN.format(pids=str(pids), num=1))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ours = subprocess.Popen([sys.executable, "-c", TUNE, path], env=env)
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"))
    run = pids.read_text()
    assert len(left_of(run)) == 5
    ours.send_signal(number)
    assert ours.wait() == -number  # 128 more than that, where a shell says it
    wait_until(lambda: not left_of(run))


def test_the_keeper_is_not_told_to_go_before_its_time(tmp_path: Path) -> None:
    """A terminal that closes, or a container, tells everybody."""
    (tmp_path / "folder").mkdir()
    program = [sys.executable, "-I", keeper.__file__, "SOME=value", str(tmp_path / "folder"), "1"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as kept:
        status = Path(f"/proc/{kept.pid}/status")
        wait_until(lambda: "SigIgn:\t0000000000000000" not in status.read_text())
        time.sleep(0.1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            kept.send_signal(number)
        time.sleep(0.1)
        assert kept.poll() is None and (tmp_path / "folder").exists()
    assert not (tmp_path / "folder").exists()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def left_of(run: str) -> list[str]:
    """Processes and the folder, of a line that the script wrote."""
    *numbers, folder = run.split()
    left = [number for number in numbers if lives(int(number))]
    return left + [folder] * os.path.exists(folder)


def lives(number: int) -> bool:
    """Not gone, and no zombie that its new parent has not fetched yet."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_half_written_file_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "watch", tmp_path)
    monkeypatch.setattr("shardkit.loading.headroom.WRITE_EVERY_S", 0.0)
    for _ in Loader(Numbers(), 4):
        for path in tmp_path.glob("*.json"):
            json.loads(path.read_text())
    assert os.listdir(tmp_path) == [path.name for path in tmp_path.glob("*.json")]
