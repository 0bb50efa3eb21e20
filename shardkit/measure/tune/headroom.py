"""How much faster a training script would be if its loader cost nothing."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from shardkit.arguments import positive
from shardkit.errors import DataError
from shardkit.measure.doctor.evidence import RankEvidence
from shardkit.measure.doctor.run.examine import RunLimits, examine
from shardkit.measure.doctor.run.script import command_of
from shardkit.measure.doctor.verdict.thresholds import CONTRADICTS
from shardkit.watching.schedule import Plan

PLAN = Plan(steps=90, rounds=15, rereads=False, counts=False)
"""Short blocks: however early time is up, both kinds of steps were measured."""


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

    @property
    def is_contradictory(self) -> bool:
        """Return True if steps with free loading were slower than as they are."""
        return self.free_ms > (1 + CONTRADICTS) * self.step_ms


def headroom(
    script: str, seconds: float = 30.0, tell: Callable[[str], None] = lambda words: None
) -> Headroom:
    """Run a training script for some steps: as it is, and with its first batches replayed, in
    blocks by turns; see :mod:`shardkit.watching.schedule`. It is then ended, with all that it
    started.

    Args:
        script: a command line; ``train.py ...`` is run by this Python. seconds: to measure, after
            the first steps; less if the script makes 90 steps each way before.

    Raises:
        UsageError: there is no such program. DataError: it ended before it had made some steps
            with a loader.
    """
    positive("seconds", seconds)
    command = command_of(script, "headroom")
    tell(f"{script}, as it is and with loading free")
    with tempfile.TemporaryFile() as out:
        found = examine(command, PLAN, RunLimits(seconds=seconds), out).evidence
        rank = found.ranks[0] if found.ranks else None
        if rank is None or rank.rates.replay is None:
            raise DataError(_too_few(command, rank, found.ended, out))
    return Headroom(
        step_ms=1e3 / rank.rates.own.steps_per_s,
        free_ms=1e3 / rank.rates.replay.steps_per_s,
        batch_size=rank.loader.batch_size or 1,
        settings=rank.loader.settings,
        work=rank.loader.work,
    )


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


def _too_few(command: Sequence[str], rank: RankEvidence | None, ended: str, out: IO[bytes]) -> str:
    """Why nothing can be said, and what to do."""
    out.seek(0)
    lines = out.read().decode(errors="replace").strip().splitlines()
    said = f"; it said: {lines[-1].strip()[:200]}" if lines else ""
    if rank is None:
        return (
            f"{shlex.join(command)} made no steps with a shardkit.Loader or torch's DataLoader"
            f" ({ended}): --headroom looks at loops over these; else time a step, and give"
            f" --step-ms{said}"
        )
    return (
        f"{shlex.join(command)} made {rank.rates.own.num_steps} steps, too few to replay any"
        f" ({ended}): let it run longer, by more epochs or --seconds{said}"
    )
