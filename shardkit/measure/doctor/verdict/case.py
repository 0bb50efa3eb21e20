"""One rank seen as a case: what the rules look at."""

from __future__ import annotations

from dataclasses import dataclass

from shardkit.measure.doctor.evidence import Evidence, RankEvidence
from shardkit.measure.doctor.verdict.predict import Loop, loop_of, made_in, share
from shardkit.measure.doctor.verdict.thresholds import FLOOR


@dataclass(frozen=True)
class Case:
    """The evidence, one of its ranks, and that rank's loop."""

    evidence: Evidence
    rank: RankEvidence
    loop: Loop

    def share(self, part: str) -> float:
        """Return the share of a step that a part takes, by its name."""
        return share(self.rank.step, part)

    def seconds(self, part: str) -> float:
        """Return seconds of a step within an epoch, as the rate has it: the parts' means may
        differ a little."""
        return self.loop.steady * self.share(part)

    def made(self, *parts: str) -> float:
        """Return the share of making a batch that some parts of it take."""
        work, made = self.loop.work, made_in(self.loop.work)
        return sum(getattr(work, part) for part in parts) / made if made > 0 else 0.0

    @property
    def is_served(self) -> bool:
        """Return True if the loop hardly waits for batches but to take them: what it would gain
        with loading free is that, and what workers beside it slow it by."""
        late = self.seconds("wait") - self.loop.taking
        return self.loop.workers > 0 and late < (FLOOR - 1) * self.loop.step

    @property
    def workers(self) -> str:
        """The number of workers, in a sentence."""
        return workers(self.loop.workers)


def workers(num: int) -> str:
    """Return ``2 workers`` and the like."""
    if num == 0:
        return "the loop's own process"
    return "1 worker" if num == 1 else f"{num} workers"


def cases(evidence: Evidence) -> list[Case]:
    """Return a case for each rank that was timed."""
    loops = [(rank, loop_of(evidence, rank)) for rank in evidence.ranks]
    return [Case(evidence, rank, loop) for rank, loop in loops if loop is not None]
