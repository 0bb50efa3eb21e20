"""One rank seen as a case: what the rules look at, and what they find."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from shardkit.measure.doctor.diagnosis import Applicable, Cause, Diagnosis, Gain
from shardkit.measure.doctor.evidence import Evidence, RankEvidence
from shardkit.measure.doctor.verdict.predict import Loop, loop_of, share
from shardkit.measure.doctor.verdict.thresholds import FLOOR
from shardkit.measure.report.words import amount, milliseconds


@dataclass(frozen=True)
class Case:
    """The evidence, one of its ranks, and that rank's loop."""

    evidence: Evidence
    rank: RankEvidence
    loop: Loop

    def share(self, part: str) -> float:
        """Of a step, by the name of the part."""
        return share(self.rank.step, part)

    def seconds(self, part: str) -> float:
        """Of a step within an epoch, as the rate has it: the parts' means may differ a little."""
        return self.loop.steady * self.share(part)

    @property
    def is_served(self) -> bool:
        """Return True if the loop hardly waits for batches but to take them: what it would gain
        with loading free is that, and what workers beside it slow it by."""
        late = self.seconds("wait") - self.loop.taking
        return self.loop.workers > 0 and late < (FLOOR - 1) * self.loop.step


@dataclass(frozen=True)
class Suspect:
    """A cause that may be the one, and the factor of the rate if it were wholly removed; its
    ``diagnosis.gain`` is of the change that is proposed."""

    diagnosis: Diagnosis
    removal: float


def candidate(
    cause: Cause,
    because: tuple[str, ...],
    sentence: str,
    change: str,
    gain: Gain,
    *,
    removal: Gain | None = None,
    apply: Applicable | None = None,
    then: tuple[str, ...] = (),
) -> Suspect:
    """A cause, and its change; ``removal`` where that does not remove the whole of it."""
    found = Diagnosis(cause, sentence, because, change, gain, apply, then=then)
    return Suspect(found, (removal or gain).factor)


def cases(evidence: Evidence) -> list[Case]:
    """A case for each rank that was timed."""
    loops = [(rank, loop_of(evidence, rank)) for rank in evidence.ranks]
    return [Case(evidence, rank, loop) for rank, loop in loops if loop is not None]


def typical(found: list[Case]) -> Case:
    """The rank that waits for batches as long as ranks usually do; of two the one that waits less,
    as the other may be slow alone."""
    waits = statistics.median_low(case.share("wait") for case in found)
    return next(case for case in found if case.share("wait") == waits)


def rates(case: Case) -> str:
    """The measured rates, in a sentence."""
    measured = case.rank.rates
    text = f"The loop makes {amount(measured.own.steps_per_s)} steps/s as it is"
    how = ("its first batches replayed", "the files in memory")
    others = zip((measured.replay, measured.warm), how, strict=True)
    return text + "".join(f", {amount(r.steps_per_s)} with {what}" for r, what in others if r) + "."


def step_parts(case: Case) -> str:
    """The parts of the step that take most of it, in a sentence."""
    names = ("wait", "copy", "backward", "optimizer", "collective", "sync", "logging")
    shares = {name: case.share(name) for name in (*names, "checkpoint", "other")}
    most = sorted(shares, key=lambda name: -shares[name])[:3]
    parts = ", ".join(f"{name} {shares[name]:.0%}" for name in most if shares[name] > 0)
    return f"A step takes {milliseconds(case.loop.step)}: {parts or 'nothing that was timed'}."
