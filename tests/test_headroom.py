"""What a script would gain if loading cost nothing: some of its steps get their batches free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import write

from shardkit.errors import DataError, UsageError
from shardkit.measure.doctor.run import keeper
from shardkit.measure.doctor.run import script as script_module
from shardkit.measure.tune import headroom as headroom_module
from shardkit.measure.tune.headroom import headroom
from shardkit.watching.schedule import Plan


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(steps=15, rereads=False, counts=False)
    monkeypatch.setattr(headroom_module, "PLAN", plan)


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
    assert len(told) == 1 and told[0].endswith("as it is and with loading free")


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
            r"made no steps .* \(exit code 1\): .*; it said: no data here$",
        ),
        ("print('done')", r"made no steps .* \(exit code 0\): .*--step-ms; it said: done$"),
        ("", r"--headroom looks at loops over these; else time a step, and give --step"),
        (
            FEW.format(path=sys.path, more_s=0),
            r"made 7 steps, too few to replay any \(exit code 0\): let",
        ),
    ],
)
def test_a_script_that_makes_too_few_steps(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "train.py", text)
    with pytest.raises(DataError, match=message):
        headroom(str(path))


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
folder = os.environ["SHARDKIT_WATCH"]
pids = os.getpid(), child.pid, worker.pid, hidden.pid
open(folder + "/1.begun", "w"), open(folder + "/1.{over}", "w")
with open({pids!r}, "a") as file:
    file.write(" ".join(map(str, pids)) + f" {{folder}}\\n")
time.sleep(1000)
"""


def test_nothing_of_it_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_module, "PATIENCE_TO_END_S", 0.3)
    pids = tmp_path / "pids"
    path = write(tmp_path / "train.py", STUBBORN.format(pids=str(pids), over="over"))
    with pytest.raises(DataError, match="stopped by the doctor"):
        headroom(str(path), seconds=5)
    (run,) = pids.read_text().splitlines()
    assert not left_of(run)


TUNE = """
import sys
from shardkit.measure.doctor.run import script
from shardkit.measure.tune.headroom import headroom
script.PATIENCE_TO_END_S = 0.3
headroom(sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_is_left_running_if_we_are_ended(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    path = write(tmp_path / "train.py", STUBBORN.format(pids=str(pids), over="not-over"))
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
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        mask = sum(1 << (number - 1) for number in numbers)
        wait_until(lambda: ignored(kept.pid) & mask == mask)
        for number in numbers:
            kept.send_signal(number)
        time.sleep(0.1)
        assert kept.poll() is None and (tmp_path / "folder").exists()
    assert not (tmp_path / "folder").exists()


def ignored(pid: int) -> int:
    """Signals that a process ignores, as a mask."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("SigIgn:")[2].split()[0], 16)


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
