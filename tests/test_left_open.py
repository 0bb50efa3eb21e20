"""A test that leaves a file open fails, and only that one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import write

TESTS = """
import os
import pytest

kept = []

@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared") / "file"

def test_closes(tmp_path):
    with (tmp_path / "file").open("w"):
        pass

def test_leaves_a_file_and_a_pipe(tmp_path):
    kept.append([(tmp_path / "file").open("w"), os.pipe()])

def test_leaves_garbage(tmp_path):
    circle = [(tmp_path / "file").open("w")]
    circle.append(circle)

def test_uses_what_its_module_keeps(shared):
    kept.append(shared.open("w"))

@pytest.fixture
def opened(tmp_path):
    return (tmp_path / "file").open("w")

def test_is_given_what_is_open(opened):
    pass

def test_fails(tmp_path):
    kept.append((tmp_path / "file").open("w"))
    raise ValueError
"""


@pytest.mark.thorough
def test_what_is_left_open_fails_its_test(tmp_path: Path) -> None:
    write(tmp_path / "test_these.py", TESTS)
    write(tmp_path / "pytest.ini", "[pytest]\n")
    plugins = ["-p", "conftest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    run = [sys.executable, "-m", "pytest", "-v", *plugins, f"--basetemp={tmp_path / 'tmp'}", "."]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert re.findall(r"::test_(\w+) ERROR", done.stdout) == ["leaves_a_file_and_a_pipe"]
    assert re.findall(r"::test_(\w+) FAILED", done.stdout) == ["fails"]
    left = r"left open: \d+ \S+/file, \d+ pipe:\S+, \d+ pipe:\S+\n"
    assert re.search(left, done.stdout), done.stdout
    assert "1 failed, 5 passed, 1 error" in done.stdout
