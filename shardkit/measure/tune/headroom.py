"""How much faster a training script would be if its loader cost nothing."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import IO, Any

from shardkit.arguments import positive
from shardkit.errors import DataError
from shardkit.loading.headroom import NUM_KEPT, read
from shardkit.measure.tune.script import command_of, running

SKIPPED = NUM_KEPT + 8
"""Steps that are not counted: batches that are still made, and a model that warms up."""

STEPS = 200

PATIENCE_S = 600.0
"""For the first batch: imports, compilation."""

POLL_S = 0.1


@dataclass(frozen=True)
class Headroom:
    """What :func:`headroom` found; means of the steps counted, from one batch to the next.

    Attributes:
        step_ms: with loading as it is. free_ms: with loading that costs nothing.
        settings: of the script's loader, in words. work: see :func:`shardkit.loading.tuned.work`.
    """

    step_ms: float
    free_ms: float
    batch_size: int
    settings: str
    work: dict[str, Any]

    @property
    def share(self) -> float:
        """Of the loop's time that loading costs, from 0 to 1."""
        return max(0.0, 1 - self.free_ms / self.step_ms)


def headroom(
    script: str, seconds: float = 30.0, tell: Callable[[str], None] = lambda words: None
) -> Headroom:
    """Run a training script twice, for some steps each: with its first batches replayed, see
    :mod:`shardkit.loading.headroom`, and as it is. It is then ended, with all that it started.

    Args:
        script: a command line; ``train.py ...`` is run by this Python. seconds: to measure, in
            each run, after the first batch; less if the script makes 200 steps before.

    Raises:
        UsageError: there is no such program. DataError: it ended, or took ten minutes, before it
            had made some steps with a :class:`shardkit.Loader`.
    """
    positive("seconds", seconds)
    command = command_of(script)
    tell(f"{script}, loading free")
    free = _run(command, "replay", seconds)
    tell(f"{script}, as it is")
    usual = _run(command, "watch", seconds)
    work = usual["work"]
    return Headroom(_mean_ms(usual), _mean_ms(free), work["batch_size"], usual["settings"], work)


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """What a script's loader does otherwise than the one that was tuned; empty if nothing."""
    return "; ".join(
        f"{name} {_in_words(theirs.get(name))} there, {_in_words(ours.get(name))} here"
        for name in ours
        if theirs.get(name) != ours.get(name)
    )


def _in_words(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _mean_ms(found: dict[str, Any]) -> float:
    waits, steps = found["waits"][SKIPPED:], found["steps"][SKIPPED:]
    return 1e3 * (fmean(waits) + fmean(steps))


def _run(command: Sequence[str], kind: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out:
        with running(command, kind, out) as (process, folder):
            _wait(process, folder, seconds)
            ended, found = process.poll(), read(folder)
        if len(found.get("steps", ())) <= SKIPPED:
            raise DataError(_too_few(command, found, ended, out))
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


def _too_few(
    command: Sequence[str], found: dict[str, Any], ended: int | None, out: IO[bytes]
) -> str:
    """Why nothing can be said, and what to do."""
    out.seek(0)
    lines = out.read().decode(errors="replace").strip().splitlines()
    said = f"; it said: {lines[-1].strip()[:200]}" if lines else ""
    how = "it was still running" if ended is None else f"exit code {ended}"
    if not found:
        return (
            f"{shlex.join(command)} made no shardkit.Loader ({how}): --headroom looks at loops over"
            f" a shardkit.Loader; else time a step, and give --step-ms{said}"
        )
    return (
        f"{shlex.join(command)} made {len(found['steps'])} steps with batches of shardkit.Loader,"
        f" more than {SKIPPED} are needed ({how}): let it run longer, by more epochs or"
        f" --seconds{said}"
    )
