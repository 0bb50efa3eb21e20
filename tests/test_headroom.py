"""What a script would gain if loading cost nothing: replayed batches, and scripts run both ways."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write

from shardkit import Loader
from shardkit.errors import DataError, UsageError
from shardkit.loading.headroom import ENVIRONMENT, NUM_KEPT, read
from shardkit.measure import headroom as measured
from shardkit.measure.headroom import headroom

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
    assert found["batch_size"] == 4
    assert len(found["steps"]) == len(found["waits"]) == NUM_BATCHES
    assert 0.01 <= np.median(found["steps"]) < 0.02 <= np.median(found["waits"]) < 0.04


def test_no_loader_was_there(tmp_path: Path) -> None:
    assert read(tmp_path) == {}


@pytest.mark.parametrize("text", ["replay", "replay:/no/such/folder", "again:/tmp", "1"])
def test_an_environment_that_makes_no_sense(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(ENVIRONMENT, text)
    with pytest.raises(UsageError, match="SHARDKIT_HEADROOM must be replay:FOLDER or watch:FOLDER"):
        Loader(Numbers(), 4)


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
    assert found.batch_size == 16
    assert [words.rpartition(", ")[2] for words in told] == ["loading free", "as it is"]


def test_a_script_that_does_not_wait(tmp_path: Path) -> None:
    found = headroom(f"'{script(tmp_path, load_s=0.001, step_s=0.02)}'", seconds=1.5)
    assert found.share < 0.2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise SystemExit('no data here')", r"made 0 steps .*exit code 1\); it said: no data"),
        ("print('done')", r"made 0 steps .*16 are needed \(exit code 0\); it said: done"),
        ("", r"\(exit code 0\)$"),
    ],
)
def test_a_script_that_ends_too_soon(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "train.py", text)
    with pytest.raises(DataError, match=message):
        headroom(str(path), seconds=1)


@pytest.mark.parametrize("command", ["", "  ", "no-such-program train.py"])
def test_no_script(command: str) -> None:
    with pytest.raises(UsageError, match=r"headroom: give a script|cannot run no-such-program"):
        headroom(command)


STUBBORN = """
import json, os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
folder = os.environ["SHARDKIT_HEADROOM"].partition(":")[2]
open({pids!r}, "a").write(f"{{os.getpid()}} {{child.pid}} ")
found = {{"batch_size": 1, "waits": [0.1] * 500, "steps": [0.2] * 500}}
open(folder + "/1.json", "w").write(json.dumps(found))
time.sleep(1000)
"""


def test_nothing_of_it_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "PATIENCE_TO_END_S", 0.3)
    pids = tmp_path / "pids"
    path = write(tmp_path / "train.py", STUBBORN.format(pids=str(pids)))
    found = headroom(str(path), seconds=5)
    assert found.step_ms == found.free_ms == pytest.approx(300)
    numbers = [int(text) for text in pids.read_text().split()]
    assert len(numbers) == 4
    assert not any(lives(number) for number in numbers)


def lives(number: int) -> bool:
    """Not gone, and no zombie that its new parent has not fetched yet."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_half_written_file_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "watch", tmp_path)
    monkeypatch.setattr("shardkit.loading.headroom.WRITE_EVERY_S", 0.0)
    for _ in Loader(Numbers(), 4):
        for path in tmp_path.glob("*.json"):
            json.loads(path.read_text())
    assert os.listdir(tmp_path) == [path.name for path in tmp_path.glob("*.json")]
