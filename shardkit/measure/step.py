"""A training loop whose steps take so long: how fast it is with a loader, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass

from shardkit.measure.trial import feed, num_ahead
from shardkit.measure.tune_space import Candidate
from shardkit.measure.workload import Workload

SPARE = 1.5
"""How many times as fast as a step batches should come, so that a slow one now and then is no
matter."""

LEAST_STEPS = 20
"""And some for each batch that may have been made before the loop begins."""


@dataclass(frozen=True)
class Step:
    """Whether a loop of such a step is fed.

    Attributes:
        margin: how many times as fast as needed batches come. predicted_wait: share of the loop's
            time spent waiting, by the rate. wait: as measured. starting: the share spent waiting
            for the first batch of each epoch, as measured. All shares are from 0 to 1.
    """

    step_ms: float
    margin: float
    predicted_wait: float
    wait: float
    starting: float

    @property
    def is_fed(self) -> bool:
        return self.predicted_wait < 0.01


def wait_s(load_s: float, step_s: float, workers: int) -> float:
    """A step's wait for a batch that takes ``load_s``, made meanwhile if there are workers."""
    return max(0.0, load_s - step_s) if workers else load_s


def loops_per_s(load_s: float, step_s: float, workers: int) -> float:
    """What settings are judged by: steps a second of a loop, where workers are as good as idle
    once they are fast enough with something to spare. With no step it is the loader's rate."""
    return 1 / (step_s + wait_s(load_s, step_s / SPARE, workers))


def try_step(
    work: Workload, best: Candidate, samples_per_s: float, step_s: float, seconds: float
) -> Step:
    """Reckon what a loop of such a step has of these settings, and run one."""
    load_s = work.batch_size / samples_per_s
    waits = wait_s(load_s, step_s, best.settings.workers)
    least = LEAST_STEPS + 5 * num_ahead(best.settings)
    got = feed(work.loader(best), step_s, max(seconds, least * (step_s + waits)))
    share = waits / (step_s + waits)
    return Step(1e3 * step_s, step_s / load_s, share, got.wait, got.starting)
