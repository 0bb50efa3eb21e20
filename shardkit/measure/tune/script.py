"""A training script that is run for a while, and leaves nothing behind however that ends."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from shardkit.errors import UsageError
from shardkit.loading.headroom import ENVIRONMENT
from shardkit.measure.tune import keeper

PATIENCE_TO_END_S = 5.0
"""For processes that were asked to end; then they are killed."""


def command_of(script: str) -> list[str]:
    """A command line's words; ``train.py ...`` is run by this Python.

    Raises:
        UsageError: it is none, or there is no such file.
    """
    try:
        command = shlex.split(script)
    except ValueError as error:
        raise UsageError(f"headroom: {script!r} is no command line: {error}") from error
    if not command:
        raise UsageError("headroom: give a script to run, as in 'train.py --epochs 1'")
    if command[0].endswith(".py"):
        if not Path(command[0]).is_file():
            raise UsageError(f"headroom: {command[0]}: no such file")
        command.insert(0, sys.executable)
    return command


@contextmanager
def running(
    command: Sequence[str], kind: str, out: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The process, and the folder that its loaders write into; both are gone after the block, with
    all processes that it started. Should we be killed, a process of its own sees to that.

    Raises:
        UsageError: it cannot be started.
    """
    folder = tempfile.mkdtemp(prefix="shardkit-")
    value = f"{kind}:{folder}"
    program = [sys.executable, "-I", keeper.__file__, f"{ENVIRONMENT}={value}", folder]
    with subprocess.Popen(
        [*program, str(PATIENCE_TO_END_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as kept:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, ENVIRONMENT: value},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            _tell(kept, process.pid)
            yield process, Path(folder)
        finally:
            kept.communicate()
            process.wait()


def _tell(kept: subprocess.Popen[bytes], group: int) -> None:
    if kept.stdin is not None:
        kept.stdin.write(f"{group}\n".encode())
        kept.stdin.flush()
