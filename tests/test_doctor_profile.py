"""A sampled profile of a running script: py-spy's file read, and the lines it says cost most."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import children

import shardkit
from shardkit.errors import FormatError, StorageError
from shardkit.measure.doctor import profile
from shardkit.measure.doctor.profile import (
    Frame,
    Stack,
    hot_lines,
    is_user_file,
    read_speedscope,
    take_profile,
)

WORKER = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"

FRAMES = [
    ("process 7:python train.py", "", 0),
    ("<module>", "/home/me/train.py", 20),
    ("train", "/home/me/train.py", 12),
    ("_BaseDataLoaderIter.__next__", LOADER, 725),
    ("_worker_loop", WORKER, 374),
    ("fetch", "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", 57),
    ("__getitem__", "/home/me/data.py", 30),
    ("resize", "/venv/lib/python3.11/site-packages/PIL/Image.py", 99),
    ("__getitem__", "/home/me/data.py", 31),
    ("Loop.next", str(Path(shardkit.__file__).parent / "watching" / "loop.py"), 3),
    ("process 8:python train.py", "", 0),
]


def speedscope() -> dict[str, Any]:
    """A profile as https://www.speedscope.app/file-format-schema.json has it and py-spy writes it:
    a loop, a worker that was forked from it, and a thread that is neither."""

    def thread(name: str, samples: list[list[int]], weights: list[float]) -> dict[str, Any]:
        plain = {"type": "sampled", "name": name, "unit": "seconds"}
        return {**plain, "samples": samples, "weights": weights}

    frames = [
        {"name": name, "file": file, "line": line, "col": None} for name, file, line in FRAMES
    ]
    loop, forked = [0, 1, 2], [0, 10, 1, 2, 3, 4]
    return {
        "profiles": [
            thread('Process 7 Thread 7 ""', [[*loop, 9, 3], loop, loop], [2, 1, 1]),
            thread(
                'Process 8 Thread 8 "MainThread"',
                [[*forked, 5, 6, 7], [*forked, 5, 8], [*forked, 5]],
                [0.6, 0.3, 0.1],
            ),
            thread('Process 7 Thread 9 "QueueFeederThread"', [[0, 2]], [0.5]),
        ],
        "shared": {"frames": frames},
    }


def written(folder: Path, value: Any) -> Path:
    path = folder / "profile.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_profile_is_read(tmp_path: Path) -> None:
    """Without py-spy's frame of the process, and what watches the script."""
    stacks = read_speedscope(written(tmp_path, speedscope()))
    assert [(one.is_main, one.seconds) for one in stacks] == [
        *((True, seconds) for seconds in (2.0, 1.0, 1.0, 0.6, 0.3, 0.1)),
        (False, 0.5),
    ]
    assert stacks[0].frames == tuple(Frame(*FRAMES[n]) for n in (1, 2, 3))
    assert stacks[0].work_of_worker is None
    assert stacks[3].work_of_worker == tuple(Frame(*FRAMES[n]) for n in (5, 6, 7))


def test_the_lines_that_cost_most(tmp_path: Path) -> None:
    loop, first, second = hot_lines(read_speedscope(written(tmp_path, speedscope())))
    assert (loop.file, loop.line, loop.kind) == ("/home/me/train.py", 12, "profile")
    assert loop.share == pytest.approx(1.0) and loop.what == "train calls __next__"
    assert (first.file, first.line, first.kind) == ("/home/me/data.py", 30, "profile-worker")
    assert first.share == pytest.approx(0.6) and first.what == "__getitem__ calls resize"
    assert (second.line, second.what) == (31, "__getitem__")
    assert second.share == pytest.approx(0.3), "of the workers' time alone"
    rare = Stack(True, (Frame("f", "/a.py", 1),), 0.01)
    often = Stack(True, (Frame("g", "/a.py", 2),), 1.0)
    assert [line.line for line in hot_lines([rare, often])] == [2]


def broken(**changes: Any) -> dict[str, Any]:
    value = speedscope()
    value["profiles"][0] |= changes
    return value


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[]",
        {**speedscope(), "shared": {"frames": [{"file": "a.py"}]}},
        {**speedscope(), "profiles": [3]},
        broken(samples=[[99]], weights=[1]),
        broken(samples=[[1]], weights=[1, 2]),
    ],
)
def test_what_is_no_profile(tmp_path: Path, value: Any) -> None:
    with pytest.raises(FormatError, match=r"profile\.json is no profile of py-spy for speedscope"):
        read_speedscope(written(tmp_path, value))
    with pytest.raises(StorageError, match="reading"):
        read_speedscope(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("file", "is_mine"),
    [
        ("train.py", True),
        ("/home/me/bin/train.py", True),
        ("/home/me/lib/data.py", True),
        ("/tmp/ipykernel_1/1.py", True),
        ("", False),
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


# --- py-spy itself ------------------------------------------------------------------------

SCRIPT = """
def busy():
    sum(range(100_000))

print("runs", flush=True)
while True: busy()
"""


def test_a_running_script_is_profiled(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    file, before = tmp_path / "profile.json", children()
    command = [sys.executable, tmp_path / "train.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"runs\n"
            for _ in range(10):  # beside others it may not be on a core in any look
                why = take_profile(process.pid, file, 1)
                lines = hot_lines(read_speedscope(file)) if not why else ()
                if why or lines:
                    break
            assert process.poll() is None, "the script runs on"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    if "not installed" in why or "kernel lets py-spy not" in why:
        pytest.skip(why)
    assert why == "" and children() <= before
    assert (lines[0].file, lines[0].line) == (str(tmp_path / "train.py"), 3)
    assert lines[0].kind == "profile"


def test_py_spy_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    assert "pip install py-spy" in take_profile(1, tmp_path / "profile.json", 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("exit 0", "py-spy wrote no profile: it ended with code 0"),
        ("exit 3", "py-spy wrote no profile: it ended with code 3"),
        ("echo 'Error: Permission denied' >&2; exit 1", "no profile: Error: Permission denied"),
        ("exec sleep 60", "timed out"),
    ],
)
def test_a_py_spy_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "py-spy").write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / "py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(profile, "why_not", lambda pid: "")
    monkeypatch.setattr(profile, "PATIENCE_S", 0.2)
    before = children()
    assert why in take_profile(1, tmp_path / "profile.json", 0 if "sleep" in text else 9)
    assert children() <= before


def test_a_process_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert profile.why_not(process.pid).endswith(f"process {process.pid} had ended")

    def refused(path: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(profile.os, "open", refused)
    assert "ptrace_scope" in profile.why_not(1) and "SYS_PTRACE" in profile.why_not(1)
