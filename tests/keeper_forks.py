"""Keepers forked off a process that has imported all of theirs, which takes 0.6 s of CPU.

Run as a program, it is that process: who connects says what is to be started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from ctypes import CDLL
from typing import Any

from shardkit.errors import StorageError
from shardkit.remote import connection, server

PR_SET_PDEATHSIG = 1


class Forks:
    """The process. What we fork reaches it, too."""

    def __init__(self) -> None:
        self._address = f"shardkit-keepers-{os.getpid()}"
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._address, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd="/",
            env={**connection.HEAP, **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self._process.stdout is not None and self._process.stdout.readline()

    def start(self, folder: str) -> None:
        """In place of ``connection._start``. What the keeper has from the start of the tests is its
        path of modules, its settings of memory and what /proc shows of its environment."""
        said = {"folder": folder, "linger_s": connection.LINGER_S, "env": dict(os.environ)}
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(f"\0{self._address}")
            asking.sendall(json.dumps(said).encode() + b"\n")
            with asking.makefile() as answers:
                status, stderr = json.loads(answers.readline())
        if status > 0:
            raise StorageError(f"the keeper of the cache {folder} cannot start:\n{stderr}")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


# --- the process --------------------------------------------------------------------------


def main(name: str, parent: str) -> None:
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{name}")
    listening.listen(64)
    print("ready", flush=True)
    while True:
        asked, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(asked)
            os._exit(0)
        asked.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _answer(asked: socket.socket) -> None:
    with asked.makefile() as lines:
        said = json.loads(lines.readline())
    with asked, tempfile.TemporaryFile() as stderr:
        pid = os.fork()
        if pid == 0:
            os._exit(_become_keeper(said, asked, stderr.fileno()))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        stderr.seek(0)
        asked.sendall(json.dumps([status, stderr.read().decode()]).encode() + b"\n")


def _become_keeper(said: dict[str, Any], asked: socket.socket, stderr: int) -> int:
    asked.close()
    for fd, stream in ((os.open(os.devnull, os.O_RDWR), 0), (stderr, 1), (stderr, 2)):
        os.dup2(fd, stream)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(said["env"])
    return server.main([said["folder"], str(said["linger_s"])])


if __name__ == "__main__":
    main(*sys.argv[1:])
