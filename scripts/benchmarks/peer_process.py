"""Peers as processes: the environment that each gets, and talking to it in lines of JSON."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

GRACE_S = 5.0
"""How long a peer may take to end by itself, so that it can give shared memory back."""


class PeerError(Exception):
    """A peer that cannot take part, or no longer; says why in a line."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


def make_environment(name: str, folder: Path, packages: Sequence[str]) -> Path:
    """The Python of a virtual environment with these packages, kept for the next run.

    Raises:
        PeerError: they cannot be installed.
    """
    python, marker = folder / "bin" / "python", folder / "installed.json"
    if marker.exists() and json.loads(marker.read_text()) == list(packages):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {', '.join(packages)} into {folder} ...", flush=True)
    log = folder.with_suffix(".log")
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *packages]
    with open(log, "wb") as out:
        for command in ([sys.executable, "-m", "venv", str(folder)], pip):
            process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
            try:
                code = process.wait()
            finally:
                process.terminate()
                end_group(process)
            if code:
                raise PeerError(name, f"cannot be installed: {reason(log)}")
    marker.write_text(json.dumps(list(packages)))
    return python


class PeerProcess:
    """A peer at work, idle between two questions. What it prints goes to ``log``."""

    def __init__(self, name: str, command: Sequence[object], log: Path, timeout_s: float) -> None:
        self.name, self.log, self.timeout_s = name, log, timeout_s
        self.command = [str(word) for word in command]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with open(self.log, "ab") as log:
            # A group of its own: Ctrl-C is for the driver, which then ends all of the group.
            return subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def ask(self, what: str) -> dict[str, Any]:
        """Raises PeerError if it ends, or does not answer in time."""
        stdin, stdout = self.process.stdin, self.process.stdout
        if stdin is None or stdout is None:
            raise PeerError(self.name, "has no pipes")
        with suppress(BrokenPipeError):  # it has ended: the empty answer says so
            print(json.dumps(what), file=stdin, flush=True)
        if not select.select([stdout], [], [], self.timeout_s)[0]:
            raise PeerError(self.name, f"{what}: no answer in {self.timeout_s:g} s")
        line = stdout.readline()
        if not line:
            raise PeerError(self.name, f"{what}: {reason(self.log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End the peer and its workers, in any state."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        end_group(self.process)


def end_group(process: subprocess.Popen[Any]) -> None:
    """Wait until nothing of the process's group is left; ask it to end, then kill it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if is_gone(process, GRACE_S):
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    process.wait()


def is_gone(process: subprocess.Popen[Any], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def reason(log: Path) -> str:
    """The last line that names an error, else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or ["ended without a word"])[-1]
