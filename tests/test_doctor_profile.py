"""A sampled profile of a running script: py-spy's file read, and the lines it says cost most."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import children, settle
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit.errors import FormatError, StorageError
from shardkit.measure.doctor.run import profile
from shardkit.measure.doctor.run.profile import Profile, Profiler, command, find_py_spy, outcome
from shardkit.measure.doctor.run.speedscope import (
    LEAST_SHARE,
    Frame,
    Stack,
    hot_lines,
    is_user_file,
    read_speedscope,
)

WORKER = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"

FRAMES = [
    ("process 7:python train.py", "", 0),
    ("<module>", "/home/me/train.py", 20),
    ("train", "/home/me/train.py", 12),
    ("__next__", LOADER, 725),
    ("_worker_loop", WORKER, 374),
    ("fetch", "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 57),
    ("__getitem__", "/home/me/data.py", 30),
    ("resize", "/venv/lib/python3.11/site-packages/PIL/Image.py", 99),
    ("__getitem__", "/home/me/data.py", 31),
    ("_bootstrap", "/usr/lib/python3.11/threading.py", 1002),
    ("process 8:python train.py", "", 0),
]


def speedscope() -> dict[str, Any]:
    """A profile as https://www.speedscope.app/file-format-schema.json has it and py-spy writes it:
    a loop, a worker that was forked from it, and a thread that is neither."""

    def thread(name: str, samples: list[list[int]], weights: list[float]) -> dict[str, Any]:
        end = {"startValue": 0.0, "endValue": sum(weights)}
        return {
            **{"type": "sampled", "name": name, "unit": "seconds", **end},
            **{"samples": samples, "weights": weights},
        }

    frames = [
        {"name": name, "file": file, "line": line, "col": None} for name, file, line in FRAMES
    ]
    forked = [0, 10, 1, 2, 3, 4]
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "profiles": [
            thread(
                'Process 7 Thread 7 "MainThread"', [[0, 1, 2, 3], [0, 1, 2], [0, 1, 2]], [2, 1, 1]
            ),
            thread(
                'Process 8 Thread 8 "MainThread"',
                [[*forked, 5, 6, 7], [*forked, 5, 8], [*forked, 5]],
                [0.6, 0.3, 0.1],
            ),
            thread('Process 7 Thread 9 "QueueFeederThread"', [[0, 9]], [0.5]),
            thread("Process 7 Thread 10", [[0, 1]], [0.25]),
        ],
        "shared": {"frames": frames},
        "activeProfileIndex": None,
        "exporter": "py-spy@0.4.3",
        "name": "py-spy profile",
    }


def written(folder: Path, value: Any) -> Path:
    path = folder / "profile.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# --- reading ------------------------------------------------------------------------------


def test_a_profile_is_read(tmp_path: Path) -> None:
    stacks = read_speedscope(written(tmp_path, speedscope()))
    assert [(one.process, one.thread, one.seconds) for one in stacks] == [
        (7, "MainThread", 2.0),
        (7, "MainThread", 2.0),  # two of the samples are one stack
        (8, "MainThread", 0.6),
        (8, "MainThread", 0.3),
        (8, "MainThread", 0.1),
        (7, "QueueFeederThread", 0.5),
        (7, "10", 0.25),
    ]
    assert stacks[0].frames == tuple(Frame(*FRAMES[n]) for n in (1, 2, 3))
    assert [one.is_loop for one in stacks] == [True, True, *[False] * 5]
    assert stacks[2].work_of_worker == tuple(Frame(*FRAMES[n]) for n in (5, 6, 7))
    assert stacks[5].work_of_worker is None


def test_the_lines_that_cost_most(tmp_path: Path) -> None:
    loop, first, second = hot_lines(read_speedscope(written(tmp_path, speedscope())))
    assert (loop.file, loop.line, loop.kind) == ("/home/me/train.py", 12, "profile")
    assert loop.share == pytest.approx(1.0) and loop.what == "train calls __next__"
    assert (first.file, first.line, first.kind) == ("/home/me/data.py", 30, "profile-worker")
    assert first.share == pytest.approx(0.6) and first.what == "__getitem__ calls resize"
    assert (second.line, second.what) == (31, "__getitem__")
    assert second.share == pytest.approx(0.3), "of the workers' time alone"


def broken(**changes: Any) -> dict[str, Any]:
    value = speedscope()
    value["profiles"][0] |= changes
    return value


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        "{}",
        "3",
        {**speedscope(), "shared": {}},
        {**speedscope(), "shared": {"frames": [{"file": "a.py"}]}},
        {**speedscope(), "shared": {"frames": [{"name": "f", "line": "x"}] * 20}},
        {**speedscope(), "profiles": [3]},
        broken(type="evented"),
        broken(unit="bytes"),
        broken(samples=[[99]], weights=[1]),
        broken(samples=[[-1]], weights=[1]),
        broken(samples=[["a"]], weights=[1]),
        broken(samples=[[1]], weights=[1, 2]),
        broken(samples=[[1]], weights=["x"]),
        broken(samples=[[1]], weights=[-1]),
        broken(samples=[[1]], weights=[float("nan")]),
    ],
)
def test_what_is_no_profile(tmp_path: Path, value: Any) -> None:
    path = written(tmp_path, value)
    with pytest.raises(FormatError, match=r"profile\.json is no profile of py-spy for speedscope"):
        read_speedscope(path)


def test_a_profile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="reading"):
        read_speedscope(tmp_path / "none.json")


# --- the script's own lines ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "is_mine"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("/home/me/bin/train.py", True),
        ("/home/me/lib/data.py", True),
        ("/home/me/python3/x.py", True),
        ("/tmp/ipykernel_1/1.py", True),
        ("", False),
        ("<string>", False),
        ("<frozen runpy>", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/usr/lib/python3/dist-packages/x.py", False),
        ("/v/lib64/python3.13t/json/x.py", False),
        ("/v/lib/python3.11/site-packages/torch/x.py", False),
        ("/venv/bin/torchrun", False),
        (str(Path(shardkit.__file__).parent / "loading" / "loader.py"), False),
    ],
)
def test_which_files_are_the_scripts(file: str, is_mine: bool) -> None:
    assert is_user_file(file) is is_mine


def test_what_watches_the_script_is_left_out(tmp_path: Path) -> None:
    value = speedscope()
    ours = str(Path(shardkit.__file__).parent / "watching" / "loop.py")
    value["shared"]["frames"].append({"name": "Loop.next", "file": ours, "line": 3})
    value["profiles"][0]["samples"][0] = [0, 1, 2, len(FRAMES), 3]
    stacks = read_speedscope(written(tmp_path, value))
    assert stacks[0].frames == tuple(Frame(*FRAMES[n]) for n in (1, 2, 3))
    assert stacks == read_speedscope(written(tmp_path, speedscope()))


def test_a_method_that_is_called_is_named_without_its_class() -> None:
    frames = (Frame("train", "/t.py", 3), Frame("_BaseDataLoaderIter.__next__", LOADER, 1))
    (line,) = hot_lines([Stack(1, "MainThread", frames, 1.0)])
    assert line.what == "train calls __next__"


FILES = ["/home/me/a.py", "/usr/lib/python3.11/x.py"]

frames_ = st.builds(Frame, st.sampled_from("fg"), st.sampled_from(FILES), st.integers(0, 3))

stacks_ = st.lists(
    st.builds(
        Stack,
        st.just(1),
        st.sampled_from(["MainThread", "other"]),
        st.lists(frames_, max_size=4).map(tuple),
        st.floats(0, 10),
    )
)


@given(stacks_)
def test_shares_are_of_the_loops_time(stacks: list[Stack]) -> None:
    found = hot_lines(stacks)
    assert sum(one.share for one in found) <= 1 + 1e-9
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    assert all(one.share >= LEAST_SHARE and is_user_file(one.file) for one in found)
    assert len({(one.file, one.line) for one in found}) == len(found)


# --- py-spy itself ------------------------------------------------------------------------

SCRIPT = """
import sys, time
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 10**9

    def __getitem__(self, row):
        found = 0
        for number in range(40_000): found += number * number  # line 11
        return found

def train():
    for batch in DataLoader(Numbers(), batch_size=4, num_workers=1):
        print("step", flush=True)
        until = time.perf_counter() + 0.02
        while time.perf_counter() < until: pass  # line 18

train()
"""

PLAIN = """
import multiprocessing, os

def work(parent):
    while os.getppid() == parent: sum(range(100_000))

multiprocessing.get_context("fork").Process(target=work, args=[os.getpid()]).start()
while print("step", flush=True) is None: sum(range(1_000_000))
"""
"""A loop with a worker, too, that need not wait for torch."""


@pytest.fixture
def py_spy() -> str:
    found = find_py_spy()
    if found is None:
        pytest.skip("py-spy is not installed")
    return found


@pytest.fixture
def text() -> str:
    return SCRIPT


@pytest.fixture
def script(tmp_path: Path, text: str) -> Any:
    """A loop with a worker, which runs already."""
    path = tmp_path / "train.py"
    path.write_text(text)
    command = [sys.executable, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"step\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the worker, too


def test_a_running_script_is_profiled(
    py_spy: str, script: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    file = tmp_path / "profile.json"
    before = children()
    with Profiler(script.pid, file) as profiler:
        time.sleep(2.5)
        got = profiler.stop()
    if "kernel lets py-spy not" in got.why:
        pytest.skip(got.why)
    assert got == Profile(file), got.why
    assert profiler.stop() == got, "to stop it again changes nothing"
    assert script.poll() is None, "the script runs on"
    assert str(script.pid) in children() <= before, "py-spy does not"
    lines = hot_lines(read_speedscope(file))
    dearest = {one.kind: one for one in reversed(lines)}
    assert dearest["profile"].line == 18 and dearest["profile-worker"].line == 11
    assert dearest["profile"].file == str(tmp_path / "train.py")
    assert dearest["profile-worker"].share > 0.5


@pytest.mark.parametrize("text", [PLAIN], ids=["plain"])
def test_it_ends_by_itself(py_spy: str, script: subprocess.Popen[bytes], tmp_path: Path) -> None:
    profiler = Profiler(script.pid, tmp_path / "profile.json", seconds=1)
    assert profiler._process is None or settle(lambda: profiler._process.poll() is not None)
    got = profiler.stop()
    assert (got.path is None) == ("kernel lets py-spy not" in got.why)
    assert script.poll() is None


@pytest.mark.parametrize("text", [PLAIN], ids=["plain"])
def test_py_spy_ends_with_the_script(
    py_spy: str, script: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    profiler = Profiler(script.pid, tmp_path / "profile.json")
    time.sleep(1.5)
    script.kill()
    assert profiler._process is None or settle(lambda: profiler._process.poll() is not None)
    got = profiler.stop()
    assert (got.path is None) == bool(got.why)
    if got.path is not None:
        assert read_speedscope(got.path)


def test_a_process_that_is_no_python(py_spy: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with Profiler(process.pid, tmp_path / "profile.json") as profiler:
                assert settle(lambda: profiler._process.poll() is not None)
            got = profiler.stop()
        finally:
            process.kill()
    assert got.path is None
    assert got.why.startswith("py-spy wrote no profile: Error: No python processes found")
    assert "\n" not in got.why


def test_py_spy_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile, "find_py_spy", lambda: None)
    got = Profiler(1, tmp_path / "profile.json").stop()
    assert got.path is None and "pip install py-spy" in got.why


def test_the_program_beside_this_python_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert find_py_spy() is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "py-spy").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "py-spy").chmod(0o755)
    assert find_py_spy() == str(tmp_path / "bin" / "py-spy")


def fake(folder: Path, text: str) -> str:
    """A program in py-spy's place."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 0", "py-spy wrote no profile: it ended with code 0"),
        ("exit 3", "py-spy wrote no profile: it ended with code 3"),
        ("echo 'Error: Permission denied' >&2; exit 1", "no profile: Error: Permission denied"),
        ("echo well >&2; exit 1", "it ended with code 1"),
    ],
)
def test_a_py_spy_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, why: str
) -> None:
    program = fake(tmp_path, text)
    monkeypatch.setattr(profile, "find_py_spy", lambda: program)
    monkeypatch.setattr(profile, "why_not", lambda pid, program: None)
    with Profiler(1, tmp_path / "profile.json") as profiler:
        assert settle(lambda: profiler._process.poll() is not None)
    got = profiler.stop()
    assert got.path is None and why in got.why


def test_a_py_spy_that_does_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = fake(tmp_path, "trap '' INT; echo ready >&2; exec sleep 60")
    monkeypatch.setattr(profile, "find_py_spy", lambda: program)
    monkeypatch.setattr(profile, "why_not", lambda pid, program: None)
    monkeypatch.setattr(profile, "PATIENCE_S", 0.2)
    before = children()
    profiler = Profiler(1, tmp_path / "profile.json")
    time.sleep(0.3)
    got = profiler.stop()
    assert got.path is None and got.why == "py-spy wrote no profile: it ended with code -9"
    assert children() <= before


def test_a_py_spy_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile, "find_py_spy", lambda: str(tmp_path))
    monkeypatch.setattr(profile, "why_not", lambda pid, program: None)
    got = Profiler(1, tmp_path / "profile.json").stop()
    assert got.path is None and got.why.startswith("py-spy did not start: ")


def test_a_process_that_has_ended_cannot_be_profiled() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert profile.why_not(process.pid, "py-spy") == (
        f"no profile was taken: process {process.pid} had ended"
    )
    assert profile.why_not(process.pid, None) is not None


def test_a_process_that_the_kernel_does_not_let_us_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(profile.os, "open", refused)
    why = profile.why_not(1, "py-spy")
    assert why is not None and "ptrace_scope" in why and "SYS_PTRACE" in why


def test_what_py_spy_is_told(tmp_path: Path) -> None:
    words = command("py-spy", 7, tmp_path / "a b.json", 20)
    assert words[:4] == ["py-spy", "record", "--pid", "7"]
    assert words[-1] == str(tmp_path / "a b.json")
    assert {"--subprocesses", "--nonblocking", "--full-filenames"} <= {*words}
    assert words[words.index("--duration") + 1] == "20"


def test_it_was_stopped_too_early(tmp_path: Path) -> None:
    got = outcome(-signal.SIGINT, "", tmp_path / "none.json")
    assert got.why == "py-spy wrote no profile: it was stopped before it had looked"
