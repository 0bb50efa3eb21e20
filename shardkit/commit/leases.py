"""Leases: who works in a folder that several machines share, where a lock may hold on one alone.

``flock`` reaches other machines on NFS 4 and on some cluster file systems, not on all, and not with
all ways to mount them. A lease needs three things of the file system only: that a file which is
created exclusively is created once, that whoever opens a file sees what was written and closed
before, and that opening one that another machine has removed fails. NFS since version 3 has them.
"""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from shardkit.commit.own_files import MAX_LINE_BYTES, read_own
from shardkit.errors import DestinationError, StorageError
from shardkit.system.file_io import write_full
from shardkit.system.paths import show_path
from shardkit.system.resources import usage_of

BEAT_S = 5.0
"""How often a holder shows that it lives."""

PATIENCE_S = 30.0
"""A holder on another machine that did not for so long has died."""

_NAME = re.compile(r"lease-([0-9]+)")


def is_lease(name: str) -> bool:
    """Whether a file of this name is one; it stays while the folder is emptied."""
    return _NAME.fullmatch(name) is not None


class Lease:
    """Held from when it is made until it is closed, lost, or its process dies. A context manager.

    Law: the files ``lease-1``, ``lease-2``, ... are created exclusively, and the highest counts. So
    of two that find a dead holder's file one takes the next number. It then removes those before
    its own: a holder that was thought dead, and comes back, finds its own gone, and stops.

    No clocks are compared: a holder rewrites its file, and others look whether it changes. On the
    holder's own machine they ask the kernel instead whether its process lives.
    """

    def __init__(self, folder: Path) -> None:
        """Raises DestinationError if another holds it; waits for one that may have died."""
        # The number of the one that is looked at: whoever takes over meanwhile has the next.
        before = _highest(folder)
        if holder := _living_holder(folder, before):
            raise _taken(folder, holder)
        self._path = folder / f"lease-{before + 1}"
        self._me = {"token": uuid.uuid4().hex, **_this_process()}
        self._beats = 0
        try:
            # Open as long as it is held: nothing is written into one of the same name, made later.
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            raise _taken(folder, _read(self._path) or {}) from None
        self._beat()
        if (number := _highest(folder)) > before + 1:  # two have been faster, and one is gone
            os.close(self._fd)
            self._path.unlink(missing_ok=True)
            raise _taken(folder, _read(folder / f"lease-{number}") or {})
        for name in filter(is_lease, os.listdir(folder)):
            if int(name.removeprefix("lease-")) <= before:
                (folder / name).unlink(missing_ok=True)
        self._closed = threading.Event()
        self._heart = threading.Thread(target=self._run, name="shardkit-lease", daemon=True)
        self._heart.start()

    def check(self) -> None:
        """Raises StorageError if another has taken over meanwhile."""
        if not self._is_mine():
            raise StorageError(
                f"{show_path(self._path.parent.parent)} was taken over by another process while"
                f" this one did not answer for {PATIENCE_S:.0f} s; it goes on there"
            )

    def _run(self) -> None:
        while not self._closed.wait(BEAT_S):
            try:
                self._beat()
            except OSError:
                continue  # lost, which ``check`` tells, or a server that may answer again

    def _beat(self) -> None:
        self._beats += 1
        line = json.dumps({**self._me, "beat": f"{self._beats:09d}"}).encode()
        write_full(self._fd, [line], 0)  # always as long as before: nobody reads the half of one
        os.fsync(self._fd)  # others see it now

    def _is_mine(self) -> bool:
        found = _read(self._path)
        return found is not None and found.get("token") == self._me["token"]

    def close(self) -> None:
        """Let go. The next one need not wait, wherever it is."""
        self._closed.set()
        self._heart.join()
        if self._is_mine():
            self._path.unlink(missing_ok=True)
        os.close(self._fd)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def refuse_leased(folder: Path) -> None:
    """Raises DestinationError if somebody holds the lease, maybe on another machine; waits for one
    that may have died."""
    if holder := _living_holder(folder, _highest(folder)):
        raise _taken(folder, holder)


def _living_holder(folder: Path, number: int) -> dict[str, Any] | None:
    """What the holder of the lease of this number says of itself; None if there is none, or if it
    has died."""
    if not number:
        return None
    path = folder / f"lease-{number}"
    first = _read(path)
    if first and _is_of_this_machine(first):
        return first if _lives_here(first) else None
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(min(BEAT_S / 5, PATIENCE_S / 5))
        now = _read(path)
        if now is None:
            return None  # it has let go
        if now != first:
            return now
    return None


def _highest(folder: Path) -> int:
    found = [_NAME.fullmatch(name) for name in os.listdir(folder)]
    return max((int(one[1]) for one in found if one), default=0)


def _read(path: Path) -> dict[str, Any] | None:
    """What a lease says, or nothing where it has just been made; None if it is gone."""
    try:
        data = read_own(path, MAX_LINE_BYTES) or b""
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        return None
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _this_process() -> dict[str, Any]:
    usage = usage_of(os.getpid())
    return {
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "started": 0 if usage is None else usage.started,
        "machine": _machine(),
    }


def _machine() -> str:
    """This start of this machine, and whose process ids are meant, as containers have their own;
    ``""`` where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _is_of_this_machine(holder: dict[str, Any]) -> bool:
    return bool(holder.get("machine")) and holder["machine"] == _machine()


def _lives_here(holder: dict[str, Any]) -> bool:
    pid = holder.get("pid")
    usage = usage_of(pid) if type(pid) is int else None
    return usage is not None and usage.started == holder.get("started")


def _taken(folder: Path, holder: dict[str, Any]) -> DestinationError:
    pid, host = holder.get("pid"), show_path(str(holder.get("host")))
    who = f" (process {pid} on {host})" if type(pid) is int else ""
    return DestinationError(
        f"{show_path(folder.parent)} is being written by another process{who}; wait for it, or"
        " choose another destination"
    )
