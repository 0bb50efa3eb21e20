"""A commit that is killed before any step: what was there, or what is new, and the rest is done by
whoever holds the work folder next."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import examples, tree, write
from dying import dies_before_change
from hypothesis import given
from hypothesis import strategies as st

from shardkit.commit.records import write_record
from shardkit.commit.work_folder import Change, WorkFolder, is_under_way
from shardkit.errors import DestinationError, ResumeError

LAST = "index.json"
NAMES = st.lists(st.sampled_from([f"file{i}" for i in range(6)]), unique=True)


def is_own(name: str) -> bool:
    return name.startswith("file")


def commit(dest: Path, change: Change) -> None:
    """Make what comes, and commit it."""
    with WorkFolder(dest) as folder:
        for path, name in change.moves:
            write(folder.path / path, f"new {name}")
        folder.commit(change)


def go_on(dest: Path) -> Change | None:
    with WorkFolder(dest) as folder:
        change = folder.pending(LAST, is_own)
        if change is None:
            folder.clear()
        else:
            folder.end(change)
        return change


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commit")


@given(old=NAMES, new=NAMES, removed=NAMES, replaces=st.booleans(), has_moves=st.booleans())
@examples(0.3)
def test_killed_before_any_step(
    old: list[str], new: list[str], removed: list[str], replaces: bool, has_moves: bool, root: Path
) -> None:
    dest, at = root / "dest", ("new", "added")
    removes = [*[LAST] * replaces, *(name for name in removed if not has_moves or name not in new)]
    moves = [[f"{at[len(name) % 2]}/from-{name}", name] for name in (*new, LAST)] * has_moves
    change = Change({"do": 1}, {"made": 2}, removes, moves)
    before = {name: f"old {name}".encode() for name in (*old, LAST)}
    after = {name: data for name, data in before.items() if name not in removes}
    after |= {name: f"new {name}".encode() for _, name in moves}
    number, died = 0, True
    while died:
        shutil.rmtree(dest, ignore_errors=True)
        for name, data in before.items():
            write(dest / name, data)
        died = dies_before_change(number, lambda: commit(dest, change))
        found = {name: data for name, data in tree(dest).items() if not name.startswith(".packing")}
        if has_moves and found.get(LAST) == after[LAST]:
            assert found == after, "the last file comes when all others have"
        ended = go_on(dest)
        assert ended in (change, None)
        assert tree(dest) in ([after] if ended or not died else [before, after])
        assert not is_under_way(dest) and not (dest / ".packing").exists()
        number += 1
    assert tree(dest) == after and number > 3


def test_what_is_not_ready_is_given_up(tmp_path: Path) -> None:
    with WorkFolder(tmp_path / "dest") as folder:
        write(folder.stage / "file1", "new")
        assert is_under_way(tmp_path / "dest")
        assert folder.pending(LAST, is_own) is None
    assert is_under_way(tmp_path / "dest"), "a later call may go on from it"
    with WorkFolder(tmp_path / "dest") as folder:
        folder.clear()
    assert not (tmp_path / "dest" / ".packing").exists()


def test_a_lock_that_was_left_is_nothing_under_way(tmp_path: Path) -> None:
    write(tmp_path / ".packing" / "lock", "1")
    assert not is_under_way(tmp_path) and not (tmp_path / ".packing").exists()
    with WorkFolder(tmp_path):
        assert not is_under_way(tmp_path) and (tmp_path / ".packing" / "lock").exists()
        with pytest.raises(DestinationError, match="is being written by another process"):
            WorkFolder(tmp_path)


def test_a_last_file_that_is_lost_is_said(tmp_path: Path) -> None:
    change = Change({}, {}, (), [(f"new/{LAST}", LAST)])
    with (
        WorkFolder(tmp_path) as folder,
        pytest.raises(ResumeError, match=r"held a whole dataset, but its index\.json is gone"),
    ):
        folder.end(change)


@pytest.mark.parametrize(
    "forged",
    [
        {"moves": [["new/index.json", "../../outside/made"]]},
        {"moves": [["../../../outside/thesis", "file1"], ["new/index.json", LAST]]},
        {"moves": [["new/../../../outside/thesis", "file1"], ["new/index.json", LAST]]},
        {"moves": [["../thesis", "file1"], ["new/index.json", LAST]]},
        {"moves": [["thesis", "file1"], ["new/index.json", LAST]]},
        {"moves": [["new/file1", "thesis"], ["new/index.json", LAST]]},
        {"moves": [["new/index.json", LAST], ["new/file1", "file1"]]},
        {"removes": ["../../outside/thesis"]},
        {"removes": ["thesis"]},
        {"removes": "file1"},
        {"moves": 1},
        {"result": None},
        {"recipe": []},
        {"more": 1},
    ],
    ids=str,
)
def test_a_forged_record(forged: dict[str, Any], tmp_path: Path) -> None:
    """A folder may be anybody's: only files of its own are moved or removed."""
    good = {"recipe": {}, "result": {}, "removes": ["file1"], "moves": [["new/x", LAST]]}
    with WorkFolder(tmp_path) as folder:
        write_record(folder.path / "change.json", good)
        assert folder.pending(LAST, is_own) is not None
        write_record(folder.path / "change.json", good | forged)
        with pytest.raises(ResumeError, match=r"change\.json, the record of a change, is damaged"):
            folder.pending(LAST, is_own)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside" / "file1", "keep").parent
    write(outside / LAST, "keep")
    dest = tmp_path / "dest"
    change = Change({}, {}, (), [("new/file1", "file1"), (f"new/{LAST}", LAST)])
    with WorkFolder(dest) as folder:
        folder.stage.symlink_to(outside)
        with pytest.raises(DestinationError, match="new is a symbolic link"):
            folder.commit(change)
        with pytest.raises(DestinationError, match="new is a"):
            folder.end(change)
        os.unlink(folder.stage)
    assert tree(outside) == {"file1": b"keep", LAST: b"keep"}
