"""Keepers that a test started: found, and ended."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import settle

from shardkit.remote import cached_storage, connection

LINGER_S = 0.1
KEEPER = re.compile(rb"shardkit\.remote\.server|keeper_forks\.py")
"""Of its command line."""


def keepers(within: Path) -> list[int]:
    """Processes that keep a cache in a folder, which they work in."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes()
            folder = os.readlink(f"/proc/{name}/cwd") if KEEPER.search(words) else ""
        except (FileNotFoundError, ProcessLookupError):
            continue
        if Path(folder.removesuffix(" (deleted)")).is_relative_to(within):
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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_keepers: None) -> Iterator[Path]:
    """A folder for a cache, whose keeper ends soon after the test's last reader, or it fails."""
    monkeypatch.setattr(connection, "LINGER_S", LINGER_S)
    monkeypatch.setattr(cached_storage, "RETRY_S", 10.0)
    yield tmp_path / "cache"
    connection._connections.__init__()  # type: ignore[misc]
    is_ended = settle(lambda: not keepers(tmp_path), 5)
    kill_keepers(tmp_path)
    assert is_ended, "a keeper went on without readers"
