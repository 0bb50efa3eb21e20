"""Whatever is done at a destination, in any order: the old dataset whole, the new one whole, or a
clear refusal; never a part of one that looks whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import tree, write
from dying import dies_before_change
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import shardkit
from shardkit.errors import (
    DatasetMissingError,
    DestinationError,
    IndexFileError,
    ResumeError,
)
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.manifest import CHANGED_VERSION, VERSION

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "one": ("one", {"to": "npy", "shard_size": "600B"}),
    "its shards smaller": ("one", {"to": "npy", "shard_size": "200B", "val_fraction": 0.3}),
    "its tars": ("one", {"to": "webdataset", "shard_size": "600B"}),
    "other input": ("other", {"to": "npy", "shard_size": "600B"}),
}
NAMES = st.sampled_from([*CALLS])
PHASES = set(Phase) - {Phase.shrink, Phase.explain}
"""A dozen steps are read more quickly than they are made fewer."""

MOST_CHANGES = 70
"""A pack of these changes no more names of files."""


@dataclass(frozen=True)
class Call:
    """A pack of one input with some options, and the files that it makes, undisturbed."""

    source: Path
    options: dict[str, Any]
    makes: dict[str, bytes]

    def __call__(self, dest: Path, overwrite: bool = False) -> shardkit.PackResult:
        return shardkit.pack(self.source, dest, overwrite=overwrite, **self.options)


@pytest.fixture
def calls(tmp_path: Path) -> dict[str, Call]:
    for source, count in (("one", 6), ("other", 9)):
        for i in range(count):
            write(tmp_path / source / f"{i}.txt", f"{source} {i} " * (10 + i))
    made = {}
    for name, (source, own) in CALLS.items():
        options = {**own, "workers": 0, "progress": False}
        shardkit.pack(tmp_path / source, tmp_path / "made" / name, **options)
        made[name] = Call(tmp_path / source, options, tree(tmp_path / "made" / name))
    return made


class Destination(RuleBasedStateMachine):
    """The model: ``files`` lie there, those of packs under way apart, and ``may_go_on`` names the
    calls of which one may lie there half done."""

    def __init__(self, calls: dict[str, Call], dest: Path) -> None:
        super().__init__()
        self.calls = calls
        self.dest = dest
        self.remove_all()

    # --- what lies there ------------------------------------------------------------------

    @property
    def holds(self) -> str | None:
        """The call whose dataset ``files`` are, whole."""
        return next((name for name, call in self.calls.items() if call.makes == self.files), None)

    @property
    def is_ours(self) -> bool:
        return INDEX_NAME in self.files or self.is_under_way or not self.files

    @property
    def is_under_way(self) -> bool:
        return self.dest.exists() and any(self.dest.glob(".packing*"))

    def came_to(self, *calls: str) -> None:
        """The dataset there is as it was, or that of one of these; or there is none for now."""
        found = {n: data for n, data in tree(self.dest).items() if not n.startswith(".packing")}
        if INDEX_NAME in found:
            assert found in [self.files, *(self.calls[name].makes for name in calls)]
        else:
            assert self.is_under_way or found == self.files
        self.files = found

    # --- what is done ---------------------------------------------------------------------

    @rule()
    def remove_all(self) -> None:
        shutil.rmtree(self.dest, ignore_errors=True)
        self.files: dict[str, bytes] = {}
        self.may_go_on: set[str] = set()

    @precondition(lambda self: self.is_ours)
    @rule(name=NAMES)
    def pack(self, name: str) -> None:
        has_index, was_under_way = INDEX_NAME in self.files, self.is_under_way
        result = self.packed(name)
        if isinstance(result, str):
            assert "\n" not in result and "pass --overwrite" in result
            assert was_under_way or (self.files and self.holds != name)
            assert has_index or self.may_go_on != {name}, "what was killed goes on"
            self.came_to(*self.may_go_on)
            if not self.is_under_way:
                self.may_go_on = set()
        else:
            assert tree(self.dest) == self.calls[name].makes
            assert not self.files or self.holds == name or name in self.may_go_on
            assert result.was_complete or self.holds != name or was_under_way
            self.files, self.may_go_on = tree(self.dest), set()

    def packed(self, name: str) -> shardkit.PackResult | str:
        """What came of it, or why it was refused."""
        try:
            return self.calls[name](self.dest)
        except (DestinationError, ResumeError) as refusal:
            return str(refusal)

    @precondition(lambda self: self.is_ours)
    @rule(name=NAMES)
    def overwrite(self, name: str) -> None:
        """It takes the place of whatever is ours: whole, damaged, half done."""
        result = self.calls[name](self.dest, overwrite=True)
        assert tree(self.dest) == self.calls[name].makes and not result.was_complete
        self.files, self.may_go_on = tree(self.dest), set()

    @precondition(lambda self: not self.is_ours)
    @rule(name=NAMES, overwrite=st.booleans())
    def pack_over_what_is_not_ours(self, name: str, overwrite: bool) -> None:
        with pytest.raises(DestinationError, match="is no shardkit dataset, so nothing in it"):
            self.calls[name](self.dest, overwrite=overwrite)
        assert tree(self.dest) == self.files

    @rule(name=NAMES, overwrite=st.booleans(), number=st.integers(0, MOST_CHANGES))
    def kill(self, name: str, overwrite: bool, number: int) -> None:
        """Before the nth change of a name, if there are so many."""
        with suppress(DestinationError, ResumeError):
            dies_before_change(number, lambda: self.calls[name](self.dest, overwrite=overwrite))
        self.came_to(name, *self.may_go_on)
        self.may_go_on = {*self.may_go_on, name} if self.is_under_way else set()

    @precondition(lambda self: self.holds and not self.is_under_way)
    @rule(choice=st.integers(0, 99))
    def lose_a_file(self, choice: int) -> None:
        names = sorted(self.files)
        (self.dest / names[choice % len(names)]).unlink()
        self.files = tree(self.dest)

    @precondition(lambda self: INDEX_NAME in self.files and not self.is_under_way)
    @rule(version=st.sampled_from([VERSION - 1, CHANGED_VERSION + 1]))
    def change_the_version(self, version: int) -> None:
        index = json.loads(self.files[INDEX_NAME]) | {"version": version}
        write(self.dest / INDEX_NAME, json.dumps(index, indent=1))
        self.files = tree(self.dest)
        for refused in (shardkit.open, shardkit.verify):
            with pytest.raises(IndexFileError, match=f"has version {version}, "):
                refused(self.dest)

    # --- what holds after each of them ----------------------------------------------------

    @invariant()
    def only_what_is_whole_looks_whole(self) -> None:
        if INDEX_NAME not in self.files:
            with pytest.raises(DatasetMissingError):
                shardkit.open(self.dest)
        else:
            assert self.is_sound() == (self.holds is not None)

    def is_sound(self) -> bool:
        try:
            return shardkit.verify(self.dest, progress=False).ok
        except IndexFileError:
            return False


def machine(calls: dict[str, Call], dest: Path) -> Callable[[], Destination]:
    return lambda: Destination(calls, dest)


@pytest.mark.thorough
def test_any_order(calls: dict[str, Call], tmp_path: Path) -> None:
    run_state_machine_as_test(
        machine(calls, tmp_path / "dest"),
        settings=settings(max_examples=30, stateful_step_count=12, deadline=None, phases=PHASES),
    )


@pytest.mark.thorough
def test_what_was_started_with_overwrite_is_no_leave_for_another_source(
    calls: dict[str, Call], tmp_path: Path
) -> None:
    """Also before anything of it was listed."""
    dest, number = tmp_path / "dest", 0
    before, after = calls["its tars"].makes[INDEX_NAME], calls["one"].makes[INDEX_NAME]
    calls["its tars"](dest)
    while dies_before_change(number, lambda: calls["one"](dest, overwrite=True)):
        if (dest / INDEX_NAME).exists():
            with pytest.raises((DestinationError, ResumeError), match="pass --overwrite"):
                calls["other input"](dest)
            assert (dest / INDEX_NAME).read_bytes() in (before, after)  # what was ready is ended
        shutil.rmtree(dest)
        calls["its tars"](dest)
        number += 1
    assert tree(dest) == calls["one"].makes
