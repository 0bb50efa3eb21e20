"""The way from a reader to the server of a cache, which it starts if there is none.

A message is a JSON object, and maybe (B,) int64 numbers behind it. Each thread has a connection of
its own, so that nobody waits for another; a forked child begins anew. An answer that does not come
because the server was killed is asked for again, of the next.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shardkit import errors
from shardkit.arrays import Integers
from shardkit.errors import DataError, StorageError
from shardkit.remote.private_folder import open_own
from shardkit.system.paths import show_path

SOCKET = "keeper.sock"
LOCK = "keeper.lock"
LOG = "keeper.log"
"""Files of the server in the folder of a cache. They keep the names that they had first, so that
servers of two versions lock each other out."""

CLAIM = "shardkit-claim.json"
"""The object behind a URL that says who is writing a dataset there."""

ORIGIN = "origin"
"""In the folder of a dataset: the URL that it was last opened by."""

HEAD = struct.Struct("<II")
"""Bytes of the JSON, and of the numbers."""

MOST_BYTES = 64 << 20
"""The most of a message: 8 million blocks, which no batch has."""

NO_NUMBERS: Integers = np.empty(0, np.int64)

BEAT_S = 5.0
"""A server that works on an answer says so this often."""

BEAT = {"beat": True}

UNANSWERED = ("soon", "follow", "at")
"""Requests that nobody waits for."""


def pack(said: dict[str, Any], numbers: Integers = NO_NUMBERS) -> bytes:
    """Return one message as bytes."""
    text = json.dumps(said).encode()
    return HEAD.pack(len(text), 8 * len(numbers)) + text + numbers.tobytes()


def receive(sock: socket.socket) -> dict[str, Any]:
    """Wait for an answer, which has no numbers. Raises ConnectionError if the other side has
    ended."""
    size, _ = HEAD.unpack(_exactly(sock, HEAD.size))
    answer: dict[str, Any] = json.loads(_exactly(sock, size))
    return answer


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = sock.recv(count - len(data))
        if not got:
            raise ConnectionError("the server of the cache has ended")
        data += got
    return data


# --- connecting ---------------------------------------------------------------------------

START_S = 30
"""How long a server may take to begin."""

LINGER_S = 10.0
"""How long a server that this process starts waits for the next reader."""

SILENT_S = 60.0
"""A server that says nothing for so long is stopped, or its disk is stuck."""

HEAP = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}
"""For the C library, glibc, of a server: to use what bodies had for the next ones. It would give
each of some MB back to the kernel, which clears all pages of the next: a sixth of all that a server
does."""

_CREDENTIALS = struct.Struct("3i")
"""``struct ucred``: process, user, group."""

TRIES = 5
"""Servers that may end while one question is asked of them."""


class _Sockets(dict[str, socket.socket]):
    """By cache; closed when their thread ends."""

    def __del__(self) -> None:
        for connection in self.values():
            connection.close()


class Connections(threading.local):
    """Of this thread, by cache. Made anew after a fork."""

    def __init__(self) -> None:
        self.to = _Sockets()

    def take(self, folder: str) -> socket.socket:
        if folder not in self.to:
            self.to[folder] = _connected(folder)
        return self.to[folder]

    def drop(self, folder: str) -> None:
        with contextlib.suppress(KeyError):
            self.to.pop(folder).close()


_connections = Connections()


@cache
def _close_in_children() -> None:
    """Close in forked children what would hide from the server that the parent has ended."""
    os.register_at_fork(after_in_child=lambda: _connections.__init__())  # type: ignore[misc]


def ask(folder: str, said: dict[str, Any], numbers: Integers = NO_NUMBERS) -> dict[str, Any]:
    """Ask the server of a cache, and wait for its answer.

    Raises:
        ShardkitError: what it answers. StorageError: there is none, and none can be started.
    """
    message = pack(said, numbers)
    for tried in range(TRIES):
        try:
            connection = _connections.take(folder)
            connection.sendall(message)
            answer: dict[str, Any] = BEAT
            while answer == BEAT:
                answer = receive(connection)
            break
        except TimeoutError:
            process, _ = _who(_connections.take(folder))
            _connections.drop(folder)
            raise StorageError(
                f"the server of the cache {show_path(folder)} has said nothing for {SILENT_S:.0f}"
                f" s: it is stopped, or its disk is stuck; `kill -9 {process}` ends it, and the"
                " next reader starts another"
            ) from None
        except StorageError:  # is an OSError, too
            raise
        except OSError as error:
            _connections.drop(folder)
            if tried == TRIES - 1:
                raise StorageError(
                    f"the server of the cache {show_path(folder)} ended {TRIES} times; its last"
                    f" words may be in {show_path(Path(folder, LOG))}"
                ) from error
        except BaseException:  # Ctrl-C: the answer would be taken for that to another question
            _connections.drop(folder)
            raise
    if "error" in answer:
        kind = getattr(errors, answer["error"], DataError)
        raise kind(answer["message"])
    return answer


def tell(folder: str, said: dict[str, Any], numbers: Integers = NO_NUMBERS) -> socket.socket | None:
    """Say what has no answer; if the server has ended, nobody hears it.

    Returns:
        By which connection it went. What was told by another one, the server may have forgotten.
    """
    try:
        connection = _connections.take(folder)
        connection.sendall(pack(said, numbers))
        return connection
    except BaseException as error:  # part of a message may have been sent
        _connections.drop(folder)
        if not isinstance(error, OSError):
            raise
        return None


def _connected(folder: str) -> socket.socket:
    """Connect, and start a server if there is none. Raises StorageError if none can be."""
    _close_in_children()
    end = time.monotonic() + START_S
    while True:
        try:
            return _connect(folder)
        except StorageError:  # is an OSError, too
            raise
        except OSError as error:
            if time.monotonic() > end:
                raise StorageError(
                    f"the server of the cache {show_path(folder)} does not answer: {error}"
                ) from error
        _start(folder)


def _connect(folder: str) -> socket.socket:
    """Connect by a short name: that of a socket has at most 107 bytes."""
    at = open_own(folder)
    try:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(SILENT_S)
            connection.connect(f"/proc/self/fd/{at}/{SOCKET}")
            user = _who(connection)[1]
            if user != os.geteuid():  # it would be told this user's credentials
                raise StorageError(
                    f"the server of the cache {show_path(folder)} runs as another user ({user}, and"
                    f" not {os.geteuid()}): give a cache_dir of your own"
                )
        except BaseException:
            connection.close()
            raise
        return connection
    finally:
        os.close(at)


def _who(connection: socket.socket) -> tuple[int, int]:
    """Return (process, user) at the other end."""
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return process, user


def _start(folder: str) -> None:
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    command = [sys.executable, "-m", "shardkit.remote.server", folder, str(LINGER_S)]
    try:
        started = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            env={**HEAP, **os.environ, "PYTHONPATH": paths},
            check=False,
        )
    except OSError as error:
        raise StorageError(
            f"the server of the cache {show_path(folder)} cannot start: {error}"
        ) from error
    if started.returncode > 0:  # else it was killed, and another is started
        last = started.stderr.strip().rpartition("\n")[2]
        raise StorageError(f"the server of the cache {show_path(folder)} cannot start: {last}")
    time.sleep(0.02)
