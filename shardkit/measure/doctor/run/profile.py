"""Where the time goes in Python: py-spy beside a running script, which it does not stop."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from shardkit.system.paths import show_path

RATE = 50
"""Looks a second: enough for lines that take 2 % of some seconds. py-spy 0.4.3 took 4 % of a core
for each process that it looked at, so it is not for the steps whose rate is measured; half as many
looks take two thirds of that."""

MOST_SECONDS = 3600
"""py-spy ends by itself then, whatever became of us: it keeps every sample in memory."""

PATIENCE_S = 10.0
"""For py-spy to write its file once it was told to end."""


@dataclass(frozen=True)
class Profile:
    """``path``: of a speedscope file; None if there is none, and ``why`` says why."""

    path: Path | None
    why: str = ""


class Profiler:
    """A sampled profile of a process and all that it starts, taken until :meth:`stop`.

    It must start when Python runs there already: py-spy gives up on a process that is none yet.
    Leaving the block stops it, too.
    """

    def __init__(self, pid: int, output: str | Path, seconds: int = MOST_SECONDS) -> None:
        """``output``: the file to write, for speedscope. It ends by itself after ``seconds``."""
        self._output = Path(output)
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._profile: Profile | None = None
        program = find_py_spy()
        why = why_not(pid, program)
        if program is None or why is not None:
            self._profile = Profile(None, why or "")
            return
        # A file, not a pipe: py-spy complains for as long as the machine is busy. `stop` closes it.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                command(program, pid, self._output, seconds),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                start_new_session=True,  # Ctrl-C is for the script
            )
        except OSError as error:
            self._said.close()
            self._profile = Profile(None, f"py-spy did not start: {error}")

    def __enter__(self) -> Profiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> Profile:
        """End py-spy and say what came of it. It ends by itself with the script. What is called
        again gives the same."""
        if self._profile is None and self._process is not None and self._said is not None:
            code = _end(self._process)
            with self._said as said:
                self._profile = outcome(code, _complaint(said), self._output)
        return self._profile or Profile(None, "py-spy was not started")


def outcome(code: int, complaint: str, output: Path) -> Profile:
    """What came of a py-spy that ended with this code."""
    if code == 0 and output.is_file() and output.stat().st_size:
        return Profile(output)
    if code == -signal.SIGINT:
        complaint = "it was stopped before it had looked"
    return Profile(None, f"py-spy wrote no profile: {complaint or f'it ended with code {code}'}")


def find_py_spy() -> str | None:
    """The program: on the path, or in the environment of this Python."""
    beside = Path(sys.executable).with_name("py-spy")
    return shutil.which("py-spy") or shutil.which(str(beside))


def command(program: str, pid: int, output: Path, seconds: int) -> list[str]:
    """What is run. Not blocking: a process that is stopped 50 times a second would be slower."""
    options = ["--subprocesses", "--full-filenames", "--nonblocking", "--format", "speedscope"]
    limits = ["--rate", str(RATE), "--duration", str(seconds)]
    return [program, "record", "--pid", str(pid), *options, *limits, "--output", str(output)]


def why_not(pid: int, program: str | None) -> str | None:
    """Why no profile can be taken of a process, in a sentence; None if it can.

    py-spy needs the kernel's leave to read the memory of another process, which is the one to open
    ``/proc/PID/mem``: https://docs.kernel.org/admin-guide/LSM/Yama.html
    """
    if program is None:
        return "no profile was taken: py-spy is not installed (pip install py-spy)"
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except PermissionError:
        return (
            "no profile was taken: the kernel lets py-spy not look into the script; run the doctor "
            "as root, set kernel.yama.ptrace_scope to 0, or give the container SYS_PTRACE"
        )
    except OSError:
        return f"no profile was taken: process {pid} had ended"
    return None


def _end(process: subprocess.Popen[bytes]) -> int:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _complaint(said: IO[bytes]) -> str:
    """The line in which py-spy says what went wrong."""
    said.seek(0)
    text = said.read(1 << 16).decode("utf-8", "replace")
    found = [line.strip() for line in text.splitlines() if "rror" in line]
    return show_path(found[0]) if found else ""
