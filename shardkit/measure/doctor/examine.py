"""Running a script under watch, until enough was seen of it."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import IO

from shardkit.measure.doctor import collect
from shardkit.measure.doctor.evidence import Evidence, SystemEvidence, Utilisation
from shardkit.measure.doctor.script import PATIENCE_TO_END_S, Script, command_of, running
from shardkit.watching.records import read_records
from shardkit.watching.schedule import Plan

POLL_S = 0.1


@dataclass(frozen=True)
class Limits:
    """When a script is ended.

    Attributes:
        to_end: never. seconds: at the latest, after its first step.
    """

    to_end: bool = False
    seconds: float = 300.0


@dataclass(frozen=True)
class Examined:
    """What came of it.

    Attributes:
        exit_code: the script's own, 128 + a signal's number as shells have it; 0 where it was
            ended because enough was seen.
    """

    evidence: Evidence
    exit_code: int


def examine(
    words: str | Sequence[str],
    plan: Plan,
    limits: Limits,
    out: IO[bytes] | None = None,
) -> Examined:
    """Run a script under watch.

    Args:
        words: its command line. out: where what it says goes; by default, to the terminal.

    Raises:
        UsageError: it cannot be run.
    """
    command = command_of(words)
    started = time.perf_counter()
    with running(command, plan, out) as script, _forwarding(script, out) as told:
        stopped = _wait(script, limits, told)
        code = script.process.poll()
        seconds = time.perf_counter() - started
        records = read_records(script.folder)
    found = collect.processes(records)
    evidence = Evidence(
        command=tuple(command),
        folder=os.getcwd(),
        seconds=seconds,
        ended=_ended(code, stopped),
        python=_first(found, "process", "python"),
        torch=_first(found, "loop", "torch"),
        ranks=collect.ranks(found, platform.node()),
        system=SystemEvidence(seconds, 0, 0.0, 0.0, (), None, {}, 0.0, 0.0, 0.0, 0, None, None),
        utilisation=Utilisation(),
    )
    return Examined(evidence, _exit_code(code, told))


def _exit_code(code: int | None, told: list[int]) -> int:
    if code is None:
        return 128 + told[0] if told else 0
    return code if code >= 0 else 128 - code


def _first(found: Sequence[collect.Process], kind: str, name: str) -> str:
    return next((str(event[name]) for one in found for event in one.of(kind)), "")


def _ended(code: int | None, stopped: bool) -> str:
    if stopped or code is None:
        return "stopped by the doctor, which had seen enough"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _wait(script: Script, limits: Limits, told: list[int]) -> bool:
    """Until it has ended, or enough was seen; whether it was. ``told``: signals it was sent."""
    first = asked = None
    while script.process.poll() is None:
        time.sleep(POLL_S)
        if told:
            asked = asked or time.monotonic()
            if time.monotonic() - asked > PATIENCE_TO_END_S:
                return False
            continue
        if limits.to_end:
            continue
        begun, over = (set(script.folder.glob(f"*.{kind}")) for kind in ("begun", "over"))
        if begun and first is None:
            first = time.monotonic()
        if begun and len(begun) == len(over):
            return True
        if first is not None and time.monotonic() - first > limits.seconds:
            return True
    return False


@contextmanager
def _forwarding(script: Script, out: IO[bytes] | None) -> Iterator[list[int]]:
    """Where a script runs as by hand, signals are its own: they end it, and what was seen up to
    then is told. Yields those that came."""
    told: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if number != signal.SIGINT or not _is_terminals():
            script.process.send_signal(number)

    numbers = () if out is not None else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield told
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _is_terminals() -> bool:
    """Whether Ctrl-C reaches the script by itself: it is in the terminal's foreground group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False
