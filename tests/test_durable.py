"""What has its name is on the disk: it was synced before it was renamed, and its folder after."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import make_images

import shardkit

Event = tuple[str, object]


class Watch:
    """What is synced and renamed while a block runs, in order: files by inode, folders by path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[Event] = []
        self.is_on = False
        monkeypatch.setattr(os, "fsync", self._synced)
        sys.addaudithook(self._heard)  # there is no way to take it off

    def _synced(self, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        self.events.append(("synced", path if os.path.isdir(path) else os.fstat(fd).st_ino))

    def _heard(self, event: str, args: tuple[object, ...]) -> None:
        if self.is_on and event == "os.rename":
            source, dest = str(args[0]), str(args[1])
            if os.path.isfile(source):
                self.events.append(("renamed", (os.stat(source).st_ino, os.path.dirname(dest))))


def test_every_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    watch = Watch(monkeypatch)
    watch.is_on = True
    shardkit.pack(source, dest, to=container, shard_size="3kB", workers=0, progress=False)
    watch.is_on = False
    renamed = [number for number, (what, _) in enumerate(watch.events) if what == "renamed"]
    assert len(renamed) > 20
    for number in renamed:
        inode, folder = watch.events[number][1]  # type: ignore[misc]
        assert ("synced", inode) in watch.events[:number]
        assert ("synced", folder) in watch.events[number:]
    names = {path.stat().st_ino for path in dest.iterdir()}
    assert names <= {told for what, told in watch.events if what == "synced"}
