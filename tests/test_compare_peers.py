"""scripts/benchmarks/compare_peers.py: peers that work, and peers that fail in every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images, write
from jobs import on_ranks, run_script

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "scripts" / "benchmarks"

RESTARTS = "shardkit_restarts"

NO_PEER = """
import sys
sys.path.insert(0, {peers!r})
from serve import files_of, read, serve

def prepare(folder, store, work):
    (store / "copy").write_bytes(b"".join(read(path) for path, _ in files_of(folder)))

def load(folder, store, work):
    files = files_of(folder)
    epochs = 0
    def epoch():
        nonlocal epochs
        epochs += 1
        {fault}
        yield [read(path) for path, _ in files], [label for _, label in files]
    return epoch

serve(["numpy"], prepare, load)
"""
"""A peer that reads the folder, and has a fault."""

FAULTS = {
    "good": "",
    "missing": "import no_such_library",
    "short": "files.pop()",
    "relabels": "files[0] = (files[0][0], 1)",
    "mixes": "files[0] = (files[1][0], files[0][1])",
    "breaks": "if epochs == 3: raise ValueError('worn out')",
    "shrinks": "if epochs == 3: files.pop()",
    "dies": "if epochs == 2: import os; os._exit(3)",
    "hangs": "if epochs == 2: import time; time.sleep(60)",
    "chatters": "print('{', flush=True)",
}


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with the peers above in place of the real ones."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = import_module("peer_timing")
    monkeypatch.setattr(module, "PROGRAMS", tmp_path)
    for name, fault in FAULTS.items():
        code = NO_PEER.format(peers=str(SCRIPTS / "peers"), fault=fault or "pass")
        write(tmp_path / f"{name}_peer.py", code)
    return module


def race(timing: Any, folder: Path, names: list[str], is_cold: bool = False) -> Any:
    timeout_s = 5 if "hangs" in names else 60
    settings = timing.Race(make_images(folder / "pictures"), folder, 2, is_cold, timeout_s)
    raced = timing.race(settings, "raw", dict.fromkeys(names, Path(sys.executable)))
    assert not (folder / "stores").exists()
    return raced


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "check: ModuleNotFoundError: No module named 'no_such_library'"),
        ("short", "returned labels {'0': 12, '1': 12, '2': 11}, expected"),
        ("relabels", "returned labels {'1': 13, '0': 11, '2': 12}, expected"),
        ("mixes", "returned files "),
        ("breaks", "epoch: ValueError: worn out"),
        ("shrinks", "an epoch had 35 samples of 36"),
        ("dies", "epoch: ended without a word"),
        ("hangs", "epoch: no answer in 5 s"),
    ],
)
def test_a_peer_that_fails_says_why_and_stops_no_other(
    timing: Any, tmp_path: Path, name: str, why: str
) -> None:
    raced = race(timing, tmp_path, ["good", name, "chatters"])
    assert list(raced.failed) == [name]
    assert raced.failed[name].startswith(why)
    assert list(raced.result.measurements) == ["good", "chatters"]
    for measured in raced.result.measurements.values():
        assert [work.samples for work in measured.works] == [5 * 36] * 2
    assert raced.versions["good"].keys() == {"numpy"}


def test_pictures_of_other_colours_are_refused(timing: Any) -> None:
    expected = {"labels": {"0": 1}, "shapes": ["uint8 (224, 224, 3)"]}
    timing.refuse_wrong("first", {**expected, "mean": 120.0}, expected)
    timing.refuse_wrong("second", {**expected, "mean": 125.0}, expected)
    with pytest.raises(timing.PeerError, match="pixels are 0 of 255 on average, others' 120"):
        timing.refuse_wrong("third", {**expected, "mean": 0.0}, expected)
    with pytest.raises(timing.PeerError, match="returned shapes"):
        timing.refuse_wrong("fourth", {"shapes": ["float32 (224, 224, 3)"]}, expected)


# --- the whole program --------------------------------------------------------------------


PROGRAM = SCRIPTS / "compare_peers.py"


def words(folder: Path, *options: object) -> list[object]:
    return ["--here", "--count", 20, "--small", 1024, "--workdir", folder, *options]


def compare(*options: object) -> None:
    sys.path.insert(0, str(SCRIPTS))
    run_script(PROGRAM, *options)


def test_compares_shardkit_and_a_dataloader(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--jpegs", make_images(tmp_path / "pictures"), "--rounds", 1, "--json", report]
    options += ["--only", "shardkit", RESTARTS, "dataloader", "ffcv"]
    said = on_ranks(1, compare, *words(tmp_path / "work", *options))
    works = json.loads(report.read_text())["works"]
    assert [*works] == ["crop", "raw", "tiny", "small", "small-threads"]
    for work, rows in works.items():
        others = {"crop": [RESTARTS, "dataloader"], "raw": ["dataloader"]}.get(work, [])
        assert [row["peer"] for row in rows] == ["shardkit", *others, "ffcv"]
        assert rows[0]["ratio"] == 1
        assert {"torch", "shardkit"} <= rows[0]["versions"].keys()
        for row in rows[:-1]:
            assert row["ratio"] > 0 and row["samples_per_s"]["median"] > 0
        assert rows[-1]["why_not"].endswith("No module named 'ffcv'")
    lines = said.splitlines()
    assert sum(line.startswith("| ffcv ") and line.endswith("'ffcv' |") for line in lines) == 5
    assert "- dataloader: plain folder, Pillow" in said


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_all_children(tmp_path: Path, number: signal.Signals, code: int) -> None:
    work = tmp_path / "work"
    options = ["--jpegs", make_images(tmp_path / "pictures"), "--only", "dataloader"]
    command = [sys.executable, PROGRAM, *words(work, *options, "--rounds", 1000)]
    with subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line.startswith("timing "):
                break
        time.sleep(0.5)
        assert len(processes(work)) >= 4  # the driver, the peer and its two workers
        driver.send_signal(number)
        _, said = driver.communicate()
    assert driver.returncode == code, said
    assert processes(work) == []
    assert not (work / "stores").exists()


def processes(folder: Path) -> list[str]:
    """Those whose command names a path in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if os.fsencode(folder) in words:
            found.append(words.decode())
    return found
