"""Lists of tars, and patterns for their names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, tree, write
from test_inputs_tars import plain

import shardkit
from shardkit.errors import UsageError
from shardkit.tars.patterns import expand, in_one_folder, is_pattern

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """``a-000000.tar`` to ``a-000003.tar``."""
    for number in range(4):
        write(tmp_path / "tars" / f"a-{number:06d}.tar", plain(number))
    return tmp_path / "tars"


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("a-{000000..000002}.tar", [0, 1, 2]),
        ("a-{000001,000003}.tar", [1, 3]),
        ("a-*.tar", [0, 1, 2, 3]),
        ("a-00000[12].tar", [1, 2]),
        ("{a-000000,a-00000[23]}.tar", [0, 2, 3]),
    ],
)
def test_patterns_and_lists(tars: Path, pattern: str, numbers: list[int], tmp_path: Path) -> None:
    names = [f"a-{number:06d}.tar" for number in numbers]
    assert is_pattern(tars / pattern) and expand(tars / pattern) == (tars, names)
    keys = [f"{number}{i}" for number in numbers for i in range(3)]
    assert shardkit.open(tars / pattern).keys() == keys
    shardkit.convert(str(tars / pattern), tmp_path / "one", to="npy", **OPTIONS)
    listed = [str(tars / name) for name in reversed(names)]
    shardkit.convert(listed, tmp_path / "two", to="npy", workers=2)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert shardkit.convert(listed, tmp_path / "two", to="npy", **OPTIONS).was_complete


def test_the_shell_writes_patterns_out(tars: Path, run: Run) -> None:
    words = [f"tars/a-{number:06d}.tar" for number in range(3)]
    to_npy = ("--to", "npy", "--workers", 0)
    got = run("convert", *words, *to_npy)
    assert got.code == 0 and got.out.splitlines()[0].endswith("/a-npy")
    code, _, err = run("convert", *words[:2], "x", "y", "--to", "npy")
    assert code == 2 and "Got unexpected extra argument" in err
    code, _, err = run("convert", words[0], "gone.tar", "out", "--to", "npy")
    assert code == 2 and "gone.tar is not there" in err


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("a-{000002..000005}.tar", r"a-000004\.tar is not there; .*names it"),
        ("b-*.tar", r"b-\*\.tar is not there"),
        ("a-{000000..000002.tar", "its braces do not match|is not there"),
        ("a-{0..99999999}.tar", "stands for over 100,000 names"),
        ("a-{0..999}{0..999}.tar", "stands for over 100,000 names"),
        ("a-{000000,000000}.tar", r"names a-000000\.tar twice"),
        ("no/such{1,2}.tar", r"there is no folder .*no; patterns may stand in the names of tars"),
    ],
)
def test_patterns_that_are_refused(tars: Path, pattern: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        shardkit.open(tars / pattern)


def test_lists_that_are_refused(tars: Path, tmp_path: Path) -> None:
    write(tmp_path / "other" / "b.tar", plain(9))
    for paths, what in (
        ([tars / "a-000000.tar", tmp_path / "other" / "b.tar"], "a list of tars of one folder is"),
        ([tars / "b.tar"], r"b\.tar is no file; a list may hold tars alone"),
        ([tars / "a-000000.tar", tars / "a-*.tar"], r"the list names a-000000\.tar twice"),
    ):
        with pytest.raises(UsageError, match=what):
            in_one_folder(paths)
    with pytest.raises(UsageError, match="got nothing"):
        shardkit.convert([], tmp_path / "out", to="npy")
    path = write(tmp_path / "x[1]{2}.tar", plain(1))
    assert not is_pattern(path) and len(shardkit.open(path)) == 3


@pytest.mark.parametrize("how", ["nothing", "a FIFO", "a device"])
def test_a_tar_that_is_no_file_is_not_passed_over(
    how: str, tars: Path, tmp_path: Path, run: Run
) -> None:
    """As of a link to what was not fetched: the others alone would be a shorter dataset."""
    path = tars / "a-000001.tar"
    path.unlink()
    if how == "a FIFO":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "gone" if how == "nothing" else "/dev/zero")
    signal.alarm(60)
    for line in (["info"], ["verify"], ["convert", "--to", "npy", "--workers", "0"]):
        ran = run(line[0], tars, *(["out"] if line[0] == "convert" else []), *line[1:])
        assert ran.code in (1, 2) and path.name in ran.err and ran.err.count("\n") == 1
    signal.alarm(0)
