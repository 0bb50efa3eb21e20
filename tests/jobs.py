"""The training scripts as processes of their own: started, marked, and none left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import torch

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "scripts" / "examples"
MARK = "SHARDKIT_TEST_JOB"


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
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    return out


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
