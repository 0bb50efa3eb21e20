"""Jobs as processes of their own: training scripts and others, of which none is left behind."""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from multiprocessing import forkserver, get_context, parent_process, set_start_method
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Thread
from types import ModuleType
from unittest import mock

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "scripts" / "examples"
MARK = "SHARDKIT_TEST_JOB"
JOB_S = 120
"""Seconds that a job has at most."""


@contextmanager
def imported(name: str) -> Iterator[ModuleType]:
    """An example in this process: no two seconds of importing torch."""
    sys.path.insert(0, str(EXAMPLES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield import_module(name)
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(str(EXAMPLES))


@contextmanager
def launched(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process, and what marks it and all that it starts; none of them is left behind."""
    mark = uuid.uuid4().hex
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", MARK: mark}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process, mark
    finally:
        for pid in [process.pid, *members(mark)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.communicate()


def torchrun(ranks: int, script: Path, *args: object) -> list[str]:
    """The command that starts a script on so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*command, f"--nproc_per_node={ranks}", str(script), *map(str, args)]


def finished(command: Sequence[str]) -> str:
    """What a command that goes well prints."""
    with launched([*command]) as (process, _):
        out, _ = process.communicate(timeout=JOB_S)
    assert process.returncode == 0, out
    return out


# --- ranks without torchrun, which import nothing anew ------------------------------------


def on_ranks(count: int, work: Callable[..., None], *args: object) -> str:
    """What so many ranks print that do this and end well. If they are several, they are told who
    they are as by torchrun. They are forked from a process that has imported torch, which takes 6 s
    of CPU, and has no threads."""
    have_torch_imported()
    start = get_context("forkserver").Process
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if count > 1:
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        env |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    with NamedTemporaryFile() as out:
        ranks = []
        try:
            for rank in map(str, range(count)):
                of_rank = env | ({"RANK": rank, "LOCAL_RANK": rank} if count > 1 else {})
                ranks.append(start(target=run_rank, args=(of_rank, out.name, work, *args)))
                ranks[-1].start()
            end = time.monotonic() + JOB_S
            while any(process.exitcode is None for process in ranks) and time.monotonic() < end:
                if any(process.exitcode for process in ranks):
                    break  # the others may wait for it
                wait([process.sentinel for process in ranks if process.exitcode is None], 1)
            said = Path(out.name).read_text()
            assert [process.exitcode for process in ranks] == [0] * count, said
        finally:
            for process in ranks:
                process.kill()
                process.join()
                process.close()
    return said


@cache
def have_torch_imported() -> None:
    """By multiprocessing's forkserver, until the tests end."""
    forkserver._forkserver._stop()  # another test's may have nothing imported
    forkserver.set_forkserver_preload(["torch.distributed", "torch._dynamo", "shardkit", "jobs"])
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with mock.patch.dict(os.environ, {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}):
        forkserver.ensure_running()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_rank(env: dict[str, str], out: str, work: Callable[..., None], *args: object) -> None:
    """In the rank itself, which ends with the test process, though that is not its parent."""
    Thread(target=_end_with, args=[parent_process()], daemon=True).start()
    file = os.open(out, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # Whole lines, even with PYTHONUNBUFFERED: other ranks write into the same file.
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    os.environ.clear()  # the server's are those of the first test that had it started
    os.environ.update(env)
    set_start_method(None, force=True)  # as in a process started anew
    work(*args)


def _end_with(process: BaseProcess) -> None:
    process.join()
    os._exit(1)


def run_script(script: Path, *args: object) -> None:
    """As ``python SCRIPT ARGS`` does."""
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *map(str, args)]
    runpy.run_path(str(script), run_name="__main__")


# --- what a job says, and which processes it has ------------------------------------------


def members(mark: str) -> dict[int, int]:
    """pid -> parent of all processes of a job. One that has ended but was not waited for has no
    environment any more."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            if (
                path.name.isdigit()
                and f"{MARK}={mark}\0".encode() in (path / "environ").read_bytes()
            ):
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(path.name)] = int(parent)
        except OSError:  # it ended while we looked, or is not ours to look at
            pass
    return found


def losses(out: str) -> dict[int, float]:
    """step -> loss."""
    lines = re.findall(r"step (\d+): loss (\S+),", out)
    found = {int(step): float(loss) for step, loss in lines}
    assert len(found) == len(lines)
    return found


def assert_close(ours: dict[int, float], theirs: dict[int, float]) -> None:
    assert list(ours) == list(theirs)
    np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-4)
