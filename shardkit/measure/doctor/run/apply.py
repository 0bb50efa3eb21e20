"""A change that needs no edit, made for one more run of the script, and what it really brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from shardkit.errors import DataError
from shardkit.measure.doctor.diagnosis import Applied, Diagnosis
from shardkit.measure.doctor.evidence import Evidence, RankEvidence
from shardkit.measure.doctor.run.examine import RunLimits, examine
from shardkit.watching.schedule import Plan

SIGNALLED = 128
"""Larger exit codes are a signal's: whoever sent it wants no further run either."""


def apply(
    evidence: Evidence,
    diagnosis: Diagnosis,
    plan: Plan,
    limits: RunLimits,
    out: IO[bytes] | None = None,
) -> Applied | None:
    """Run the script once more with the change of a diagnosis, as long and with nothing replayed or
    read again; None where the change needs an edit.

    Raises:
        DataError: with the change the script did not get as far, or was interrupted.
    """
    change = diagnosis.apply
    if change is None or not evidence.ranks:
        return None
    before = evidence.ranks[0]
    changed = replace(
        plan,
        rounds=1,
        replays=False,
        rereads=False,
        counts=False,
        traces="no",
        dataset=before.loader.dataset,
        loader=change,
    )
    found = examine(evidence.command, changed, limits, out)
    seen = found.evidence
    if seen.failed or not seen.ranks or found.exit_code > SIGNALLED:
        raise DataError(f"with the change the script failed or made no steps: {seen.ended}")
    size = before.samples_per_step
    return Applied(
        "steps/s" if size is None else "samples/s",
        (size or 1) * _rate(evidence.ranks),
        (size or 1) * _rate(seen.ranks),
        diagnosis.gain.factor if diagnosis.gain else None,
    )


def _rate(ranks: Sequence[RankEvidence]) -> float:
    """Return steps a second of the run: its slowest rank's, since they keep step."""
    return min(one.rates.own.steps_per_s for one in ranks)
