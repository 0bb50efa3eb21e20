"""Files: reads that go on where a call of the system ended, and locks."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
from conftest import nothing_left_open, write

from shardkit.errors import StorageError
from shardkit.inputs.tables.tabular import ClosedFile
from shardkit.operations.unpack import _in_order
from shardkit.system.full_reads import pread, pread_full
from shardkit.system.locks import Lock

# --- one call is not enough ---------------------------------------------------------------


def test_reads_go_on_where_a_call_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux ends one after 0x7ffff000 bytes."""
    read, read_into = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 7), at))
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: read_into(fd, [to[0][:7]], at))
    data = os.urandom(100)
    path = write(tmp_path / "file", data)
    with path.open("rb") as file:
        assert pread(file.fileno(), 50, 25) == data[25:75]
        assert pread(file.fileno(), 50, 75) == data[75:]
        out = memoryview(bytearray(50))
        assert pread_full(file.fileno(), out, 25) == 50 and bytes(out) == data[25:75]
        assert pread_full(file.fileno(), out, 75) == 25
    table = ClosedFile(path)
    assert table.read(30) == data[:30] and table.read() == data[30:] and table.read(5) == b""
    with path.open("rb") as file:
        pieces = [*_in_order(file.fileno(), np.array([40, 60]), np.array([1, 0]))]
    assert pieces == [data[40:], data[:40]]


# --- locks --------------------------------------------------------------------------------


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        nothing_left_open(),
        pytest.raises(StorageError, match=r"lock cannot be locked.*No locks available; choose"),
    ):
        Lock(tmp_path / "work" / "lock")


def test_a_lock_that_cannot_be_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with nothing_left_open(), pytest.raises(OSError, match="No space"):
        Lock(tmp_path / "work" / "lock")
