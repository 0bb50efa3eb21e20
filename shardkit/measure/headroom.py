"""How much faster a training script would be if its loader cost nothing."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from shardkit.errors import DataError, UsageError
from shardkit.loading.headroom import ENVIRONMENT, NUM_KEPT, read

SKIPPED = NUM_KEPT + 8
"""Steps that are not counted: batches that are still made, and a model that warms up."""

STEPS = 200

PATIENCE_S = 600.0
"""For the first batch: imports, compilation."""

PATIENCE_TO_END_S = 5.0

POLL_S = 0.1


@dataclass(frozen=True)
class Headroom:
    """What :func:`headroom` found; means of the steps counted, from one batch to the next.

    Attributes:
        step_ms: with loading as it is. free_ms: with loading that costs nothing.
    """

    step_ms: float
    free_ms: float
    batch_size: int

    @property
    def share(self) -> float:
        """Of the loop's time that loading costs, from 0 to 1."""
        return max(0.0, 1 - self.free_ms / self.step_ms)


def headroom(
    script: str, seconds: float = 30.0, tell: Callable[[str], None] = lambda words: None
) -> Headroom:
    """Run a training script twice, for some steps each: with its first batches replayed, see
    :mod:`shardkit.loading.headroom`, and as it is. It is then ended, with its child processes.

    Args:
        script: a command line; ``train.py ...`` is run by this Python. seconds: to measure, in
            each run, after the first batch; less if the script makes 200 steps before.

    Raises:
        UsageError: there is no such program. DataError: it ended, or took ten minutes, before it
            had made some steps with a :class:`shardkit.Loader`.
    """
    command = shlex.split(script)
    if not command:
        raise UsageError("headroom: give a script to run, as in 'train.py --epochs 1'")
    if command[0].endswith(".py"):
        command.insert(0, sys.executable)
    tell(f"{script}, loading free")
    free = _run(command, "replay", seconds)
    tell(f"{script}, as it is")
    usual = _run(command, "watch", seconds)
    return Headroom(_mean_ms(usual), _mean_ms(free), int(usual["batch_size"]))


def _mean_ms(found: dict[str, Any]) -> float:
    waits, steps = found["waits"][SKIPPED:], found["steps"][SKIPPED:]
    return 1e3 * (fmean(waits) + fmean(steps))


def _run(command: list[str], kind: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="shardkit-") as folder, tempfile.TemporaryFile() as out:
        environment = {**os.environ, ENVIRONMENT: f"{kind}:{folder}"}
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # all that it starts can be ended with it
            )
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            _wait(process, Path(folder), seconds)
        finally:
            _end(process)
        found = read(Path(folder))
        if len(found.get("steps", ())) <= SKIPPED:
            raise DataError(_too_few(command, len(found.get("steps", ())), process, out))
        return found


def _wait(process: subprocess.Popen[bytes], folder: Path, seconds: float) -> None:
    """Until it has made enough steps, or has ended."""
    deadline, is_first = time.monotonic() + PATIENCE_S, True
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
        num = len(read(folder).get("steps", ()))
        if num and is_first:
            deadline, is_first = time.monotonic() + seconds, False
        if num >= SKIPPED + STEPS:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(PATIENCE_TO_END_S)
        except subprocess.TimeoutExpired:
            pass
    process.wait()


def _too_few(command: list[str], num: int, process: subprocess.Popen[bytes], out: IO[bytes]) -> str:
    out.seek(0)
    lines = out.read().decode(errors="replace").strip().splitlines()
    said = f"; it said: {lines[-1].strip()[:200]}" if lines else ""
    return (
        f"{shlex.join(command)} made {num} steps with batches of shardkit.Loader, more than"
        f" {SKIPPED} are needed (exit code {process.returncode}){said}"
    )
