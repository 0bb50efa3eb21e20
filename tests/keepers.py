"""Keepers that a test started: found, and ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import settle

from shardkit.remote import connection, storage

LINGER_S = 0.1


def keepers(within: Path) -> list[int]:
    """Processes that keep a cache in a folder."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"shardkit.remote.server" in words and os.fsencode(within) in b" ".join(words):
            found.append(int(name))
    return found


def kill_keepers(within: Path) -> int:
    """How many there were."""
    found = keepers(within)
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    settle(lambda: not keepers(within))
    return len(found)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for a cache, whose keeper ends soon after the test's last reader, or it fails."""
    monkeypatch.setattr(connection, "LINGER_S", LINGER_S)
    monkeypatch.setattr(storage, "RETRY_S", 10.0)
    yield tmp_path / "cache"
    connection._connections.__init__()  # type: ignore[misc]
    is_ended = settle(lambda: not keepers(tmp_path), 5)
    kill_keepers(tmp_path)
    assert is_ended, "a keeper went on without readers"
