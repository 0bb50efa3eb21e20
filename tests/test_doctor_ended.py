"""A script under watch is ended with all that it started; a line says how far it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write

from shardkit.measure.doctor import keeper, script
from shardkit.measure.doctor import script as script_module
from shardkit.measure.doctor.examine import RunOptions, examine
from shardkit.measure.doctor.script import StatusLine
from shardkit.watching.session import Plan

PLAN = Plan(steps=15)

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
    with tempfile.TemporaryFile() as out:
        ended = examine([str(path)], PLAN, RunOptions(seconds=5), out).evidence.ended
    assert "stopped by the doctor" in ended
    (run,) = pids.read_text().splitlines()
    assert not left_of(run)


EXAMINE = """
import sys, tempfile
from shardkit.measure.doctor import script
from shardkit.measure.doctor.examine import RunOptions, examine
from shardkit.watching.session import Plan
script.PATIENCE_TO_END_S = 0.3
plan = Plan(steps=15)
with tempfile.TemporaryFile() as out:
    examine(sys.argv[1:], plan, RunOptions(seconds=30), out)
"""


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.thorough), signal.SIGKILL],
)
def test_nothing_is_left_running_if_we_are_ended(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    path = write(tmp_path / "train.py", STUBBORN.format(pids=str(pids), over="not-over"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ours = subprocess.Popen([sys.executable, "-c", EXAMINE, path], env=env)
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


# --- how far it is, on a simulated clock ---------------------------------------------------


def test_how_far_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, when a stage begins, and every ten seconds."""
    now, told = [100.0], []
    monkeypatch.setattr(script.time, "monotonic", lambda: now[0])
    line = StatusLine(tmp_path, told.append, every_s=10)

    def after(seconds: float, stage: str = "") -> list[str]:
        now[0] += seconds
        line.look(stage)
        said = [text.removeprefix("shardkit doctor: ") for text in told]
        told.clear()
        return said

    assert after(0) == ["0 s: no training loop was seen yet"]
    assert after(9) == [] and after(1) == ["10 s: no training loop was seen yet"]
    (tmp_path / "7.begun").touch()
    steps = [{"is": "step"}] * 5
    events = [*steps, {"is": "session", "steps": 1200}, *steps[:3]]
    (tmp_path / "7.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    assert after(1) == ["11 s: 3 of 1,200 steps were looked at"] and after(5) == []
    assert after(1, "a profile is taken") == ["17 s: a profile is taken"]
