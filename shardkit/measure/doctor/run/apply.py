"""A change that needs no edit, made for one more run of the script, and what it really brought."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from shardkit.errors import DataError
from shardkit.measure.doctor.diagnosis import Applicable, Applied, Arguments, Diagnosis
from shardkit.measure.doctor.evidence import Evidence, RankEvidence
from shardkit.measure.doctor.run.examine import RunLimits, examine
from shardkit.system.resources import allowance
from shardkit.watching.schedule import Plan

CHUNK_BYTES = 1 << 20

SIGNALLED = 128
"""Larger exit codes are a signal's."""


class InterruptedScriptError(DataError):
    """By a signal: whoever sent it wants no further run either."""


def apply(
    evidence: Evidence,
    diagnosis: Diagnosis,
    plan: Plan,
    limits: RunLimits,
    out: IO[bytes] | None = None,
) -> Applied | None:
    """Run the script once more with the change of a diagnosis, and where other settings may be
    better, once with each; None where it needs an edit.

    Raises:
        DataError: with the change it did not get as far, or was interrupted.
    """
    change = diagnosis.apply
    if change is None or not evidence.ranks:
        return None
    before = evidence.ranks[0]
    if change.warm and before.files is not None:
        read_into_memory(Path(before.files.folder))
    size = before.samples_per_step
    what = "steps/s" if size is None else "samples/s"
    predicted = diagnosis.gain.factor if diagnosis.gain else None
    scale = size or 1
    rate = scale * _measured(evidence.command, changed(plan, change, before), limits, out)
    tried = [(_in_words(change.loader), rate)]
    for loader in change.others:
        other = changed(plan, replace(change, loader=loader), before)
        try:
            rate = scale * _measured(evidence.command, other, limits, out)
        except InterruptedScriptError:
            break
        except DataError:  # as of a /dev/shm that is too small for so many
            rate = 0.0
        tried.append((_in_words(loader), rate))
    best = max(rate for _, rate in tried)
    return Applied(
        what,
        scale * _rate(evidence.ranks),
        best,
        predicted,
        tuple(tried) if len(tried) > 1 else (),
    )


def _in_words(loader: Arguments) -> str:
    return ", ".join(f"{name}={value}" for name, value in loader.items())


def _measured(
    command: Sequence[str], plan: Plan, limits: RunLimits, out: IO[bytes] | None
) -> float:
    """Steps a second of a run."""
    found = examine(command, plan, limits, out)
    seen = found.evidence
    if found.exit_code > SIGNALLED:
        raise InterruptedScriptError(f"with the change it was interrupted: {seen.ended}")
    if seen.failed or not seen.ranks:
        raise DataError(f"with the change the script failed or made no steps: {seen.ended}")
    return _rate(seen.ranks)


def changed(plan: Plan, change: Applicable, rank: RankEvidence) -> Plan:
    """The plan of such a run: as long, with nothing replayed or read again."""
    return replace(
        plan,
        rounds=1,
        replays=False,
        rereads=False,
        counts=False,
        traces="no",
        dataset=rank.loader.dataset,
        loader=dict(change.loader),
    )


def _rate(ranks: Sequence[RankEvidence]) -> float:
    """Steps a second of the run: its slowest rank's, since they keep step."""
    return min(one.rates.own.steps_per_s for one in ranks)


def read_into_memory(folder: Path) -> None:
    """Read all files of a folder, as far as they fit in half of the memory that is free."""
    left = allowance().memory_bytes // 2
    for place, _, names in os.walk(folder):
        for name in names:
            left -= _read(os.path.join(place, name))
            if left < 0:
                return


def _read(path: str) -> int:
    size = 0
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                size += len(chunk)
    except OSError:  # what cannot be read is the script's to complain of
        return size
    return size
