"""Running a script under watch, until enough was seen of it."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO

from shardkit.errors import ShardkitError
from shardkit.measure.doctor.evidence import (
    Evidence,
    RankEvidence,
    SystemEvidence,
    TraceFacts,
    Utilisation,
)
from shardkit.measure.doctor.monitor import Monitor
from shardkit.measure.doctor.run import collect
from shardkit.measure.doctor.run.kernel_trial import kernel_trial
from shardkit.measure.doctor.run.profile import Profile, Profiler
from shardkit.measure.doctor.run.script import PATIENCE_TO_END_S, Script, command_of, running
from shardkit.measure.doctor.run.speedscope import Stack, hot_lines, read_speedscope
from shardkit.measure.doctor.run.status_line import SAME_S, StatusLine, Tell
from shardkit.measure.doctor.trace import read_trace, trace_facts
from shardkit.measure.doctor.utilisation import utilisation
from shardkit.measure.doctor.verdict.diagnose import replay_contradicts
from shardkit.watching.records import read_records
from shardkit.watching.schedule import Plan

POLL_S = 0.1

ENOUGH, LATE = "which had seen enough", "since --seconds was over, before it had seen enough"

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask a program to end. A script may take its time; after a second one it has some
seconds."""

OF_TERMINALS = (signal.SIGINT, signal.SIGQUIT)
"""Those that a terminal sends to all of its foreground, the script included."""


NO_LOOP_S = 6.0
"""Seconds without a loop after which a profile is taken all the same: if none comes, it says where
the script is."""

START_S = 120.0
"""Seconds in which a loop may begin before ``--seconds`` are counted: imports and preparations."""

PROFILE_S = 4.0
"""A profile is taken after all else, so that it slows nothing that is measured."""


@dataclass(frozen=True)
class RunLimits:
    """When a script is ended, and who is told how far it is.

    Attributes:
        to_end: never. seconds: at the latest, after its first steps. tell: takes a line now and
            then, of the same stage every ``tell_every_s`` seconds.
    """

    to_end: bool = False
    seconds: float = 300.0
    tell: Tell | None = None
    tell_every_s: float = SAME_S


@dataclass(frozen=True)
class Keep:
    """What is kept of a run, besides the evidence.

    Attributes:
        trace: where rank 0's trace goes. profile: where the profile goes; it is taken without
            that, too. peak_tflops: of the device, in teraFLOPs a second. reference: samples a
            second that the user wants.
    """

    trace: Path | None = None
    profile: Path | None = None
    peak_tflops: float | None = None
    reference: float | None = None


@dataclass(frozen=True)
class Examined:
    """What came of it.

    Attributes:
        exit_code: the script's own, 128 + a signal's number as shells have it; 0 where it was
            ended because enough was seen. is_profiled: a profile was written.
    """

    evidence: Evidence
    exit_code: int
    is_profiled: bool = False


def examine(
    words: str | Sequence[str],
    plan: Plan,
    limits: RunLimits,
    out: IO[bytes] | None = None,
    keep: Keep | None = None,
) -> Examined:
    """Run a script under watch.

    Args:
        words: its command line. out: where what it says goes; by default, to the terminal. keep:
            by default no profile is taken.

    Raises:
        UsageError: it cannot be run.
    """
    command = command_of(words)
    started = time.perf_counter()
    with running(command, plan, out) as script, _forwarding(script, out) as told:
        monitor = Monitor(script.processes)
        with monitor:
            over, profile = _wait(script, limits, told, keep)
            code = script.process.poll()
        seconds = time.perf_counter() - started
        found = collect.processes(read_records(script.folder))
        stacks = read_speedscope(profile.path) if profile and profile.path else ()
        seen = _ranks(found, stacks)
        trace, why = _trace(script.folder, seen, keep)
    system = monitor.result()
    of_replays = [e["note"] for one in found for e in one.of("session over") if e.get("note")]
    if plan.replays and any(rank.loader.is_iterable for rank in seen):
        of_replays.append(
            "no batch was replayed: nobody knows how many batches an iterable has, so that an epoch"
            " would be longer than usual"
        )
    of_gpus = monitor.notes if any(rank.device == "cuda" for rank in seen) else ()
    unpatched = [e for one in found for e in one.of("unpatched")]
    notes = (
        *of_gpus,
        *dict.fromkeys(f"{e['module']} was not watched: {e['why']}" for e in unpatched),
        *dict.fromkeys(of_replays),
        *([profile.why] if profile and profile.why else []),
        *_no_profile(profile, keep),
        *why,
    )
    cut_s = limits.seconds if over == LATE else None
    failed = not over and not told and code != 0
    loops = [len(one.of("step")) for one in found if one.of("loop")]
    decodes = keep is not None and seen and seen[0].worker.decoding > 0
    evidence = Evidence(
        command=tuple(command),
        folder=os.getcwd(),
        seconds=seconds,
        ended=_ended(code, over, told) + ("" if over else _error(found)),
        python=_first(found, "process", "python"),
        torch=_first(found, "loop", "torch"),
        ranks=seen,
        system=system,
        trace=trace,
        kernel=kernel_trial(seen[0]) if decodes else None,
        utilisation=_utilisation(seen, system, keep or Keep()),
        notes=notes,
        cut_s=cut_s,
        failed=failed,
        short_loop=max(loops) if loops and not seen else None,
        lines=() if seen else hot_lines(stacks),
    )
    return Examined(evidence, _exit_code(code, told), bool(profile and profile.path))


def _ranks(found: Sequence[collect.Process], stacks: tuple[Stack, ...]) -> tuple[RankEvidence, ...]:
    """What was seen of each, with the costly lines of a profile in rank 0's."""
    seen = collect.ranks(found, platform.node())
    if not seen:
        return seen
    lines = hot_lines(stacks)
    return (replace(seen[0], lines=(*seen[0].lines, *lines)), *seen[1:])


def _trace(
    folder: Path, seen: Sequence[RankEvidence], keep: Keep | None
) -> tuple[TraceFacts | None, tuple[str, ...]]:
    """What rank 0's trace says; and why there is none, if one was asked for."""
    path = folder / f"{seen[0].pid}.trace.json.gz" if seen else None
    if path is None or not path.exists():
        asked = keep is not None and keep.trace is not None
        why = "no trace was taken: the script ended before, or has a profiler of its own"
        return None, (why,) if asked else ()
    if keep is not None and keep.trace is not None:
        shutil.copyfile(path, keep.trace)
    if seen[0].device != "cuda":
        return None, ()
    try:
        return trace_facts(read_trace(path)), ()
    except ShardkitError as error:  # the script was ended while it was written
        return None, (f"the trace was not read: {error}",)


def _no_profile(profile: Profile | None, keep: Keep | None) -> tuple[str, ...]:
    is_missing = keep is not None and profile is None
    return ("no profile was taken: the script ended before",) if is_missing else ()


def _utilisation(seen: Sequence[RankEvidence], system: SystemEvidence, keep: Keep) -> Utilisation:
    if not seen:
        return Utilisation()
    rank = seen[0]
    replay = None if replay_contradicts(rank) else rank.rates.replay
    free_rate = replay.steps_per_s if replay else None
    return utilisation(rank, system, free_rate, keep.peak_tflops, keep.reference)


def _exit_code(code: int | None, told: list[int]) -> int:
    if code is None:
        return 128 + told[0] if told else 0
    return code if code >= 0 else 128 - code


def _first(found: Sequence[collect.Process], kind: str, name: str) -> str:
    return next((str(event[name]) for one in found for event in one.of(kind)), "")


def _ended(code: int | None, over: str, told: list[int]) -> str:
    if code is None and told:
        return f"killed: it did not end after {signal.Signals(told[0]).name}"
    if over or code is None:
        return f"stopped by the doctor, {over or ENOUGH}"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _error(found: Sequence[collect.Process]) -> str:
    """The first error that ended a process, to go on in a sentence; one that trains, if one did:
    who started them tells of it in words of its own."""
    trainers = [one for one in found if one.of("loop")]
    errors = [event for one in trainers or found for event in one.of("error")]
    if not errors:
        return ""
    first = min(errors, key=lambda event: float(event["t"]))
    place = f" at {first['file']}:{first['line']}" if first["file"] else ""
    return f" ({first['what']}{place})"


def _wait(
    script: Script, limits: RunLimits, told: list[int], keep: Keep | None
) -> tuple[str, Profile | None]:
    """Wait until it has ended, or is to be ended; return why, empty if it ended by itself, and the
    profile if one was taken.

    Args:
        told: signals that were sent to it.
    """
    waiting, line = Waiting(limits), StatusLine(script.folder, limits.tell, limits.tell_every_s)
    profile, is_early = None, False
    while script.process.poll() is None:
        time.sleep(POLL_S)
        line.look()
        if told:
            if len(told) > 1 and waiting.has_had_time_to_end():
                return "", profile
            continue
        over = waiting.why_over(script.folder)
        if keep is not None and ((over and (profile is None or is_early)) or waiting.sees_no_loop):
            is_early = not over
            line.look("a profile is taken")
            profile = _profile(script, keep)
        if over and not limits.to_end:
            return over if script.process.poll() is None else "", profile
    return "", profile


def _profile(script: Script, keep: Keep) -> Profile:
    with Profiler(script.process.pid, keep.profile or script.folder / "profile.json") as profiler:
        until = time.monotonic() + PROFILE_S
        while time.monotonic() < until and script.process.poll() is None:
            time.sleep(POLL_S)
        return profiler.stop()


class Waiting:
    """How long a script has run since things happened to it."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._begun: float | None = None
        self._started = time.monotonic()
        self._is_profiled = False
        self._told: float | None = None

    def has_had_time_to_end(self) -> bool:
        """Asked again and again since it was told to end for the second time."""
        self._told = self._told or time.monotonic()
        return time.monotonic() - self._told > PATIENCE_TO_END_S

    @property
    def sees_no_loop(self) -> bool:
        """Return True once, if no loop has begun after some seconds."""
        is_short = time.monotonic() - self._started < NO_LOOP_S
        if self._begun or self._is_profiled or is_short:
            return False
        self._is_profiled = True
        return True

    def why_over(self, folder: Path) -> str:
        """Return :data:`ENOUGH` if all ranks that began a session have ended it, :data:`LATE` if
        time is up; else nothing."""
        begun, over = (len(list(folder.glob(f"*.{kind}"))) for kind in ("begun", "over"))
        if begun and begun == over:
            return ENOUGH
        self._begun = self._begun or (time.monotonic() if begun else None)
        since = self._begun or self._started + START_S
        is_late = time.monotonic() - since > self._limits.seconds
        return LATE if is_late and not self._limits.to_end else ""


@contextmanager
def _forwarding(script: Script, out: IO[bytes] | None) -> Iterator[list[int]]:
    """Where a script runs as by hand, signals are its own: they end it, and what was seen up to
    then is told. Yields those that came."""
    told: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if number in ENDING:
            told.append(number)
        if number not in OF_TERMINALS or not _is_terminals():
            script.process.send_signal(number)

    numbers = () if out is not None else (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
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
