"""What has its name is on the disk: it was synced before it was renamed, and its folder after."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from conftest import make_images

import shardkit
from shardkit.commit.durable_files import write_output
from shardkit.errors import StorageError

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


def test_output_goes_where_a_person_said(tmp_path: Path) -> None:
    """A device or a pipe stays one, a link too, and a file is there when it is whole."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("pipe", "link"):
        write_output(tmp_path / name, b"report")
    assert os.read(reader, 100) == b"report" == (tmp_path / "file").read_bytes()
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "pipe"]
    with pytest.raises(StorageError, match=r"writing .*none/file: No such file or directory"):
        write_output(tmp_path / "none" / "file", b"report")
