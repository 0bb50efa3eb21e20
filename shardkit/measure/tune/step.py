"""A training loop whose steps take so long: how fast it is with a loader, and how long it waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from shardkit.images.augment import Transform
from shardkit.measure.tune.space import Candidate
from shardkit.measure.tune.workload import Workload, num_ahead, run_loop

SPARE = 1.5
"""How many times as fast as a step batches should come, so that a slow one now and then is no
matter."""

LEAST_STEPS = 5
"""Steps that a loop has at least, beside one for each batch that may lie ready when it begins."""

FED_BY_RATE = 0.01
"""A loop that should wait for less of its time is fed, ..."""

FED_AS_MEASURED = 0.05
"""... if it did wait for less than that: of a few steps, one slow batch is 1 or 2 %."""

HANDOVER_S = 1e-4
"""Seconds that a batch takes from a worker to the loop, which nothing hides."""

Verdict = Literal["fed", "not fed", "unclear"]


@dataclass(frozen=True)
class Step:
    """Whether a loop of such a step is fed.

    Attributes:
        margin: how many times as fast as needed batches come. predicted_wait: share of the loop's
            time spent waiting, by the rate. wait: as measured. starting: the share spent waiting
            for the first batch of each epoch, as measured. All shares are from 0 to 1.
        verdict: of both; ``unclear`` where they contradict each other: the machine was busier with
            other things at one time than at the other. advice: what to do if it is not fed.
    """

    step_ms: float
    margin: float
    predicted_wait: float
    wait: float
    starting: float
    verdict: Verdict
    advice: str


def verdict(predicted_wait: float, wait: float, starting: float) -> Verdict:
    """Judge a share by the rates, which has an epoch's start in it, and the shares measured."""
    if predicted_wait < FED_BY_RATE:
        return "fed" if wait < FED_AS_MEASURED else "unclear"
    return "not fed" if wait + starting >= FED_BY_RATE else "unclear"


def advice(work_s: Mapping[str, float], is_of_pictures: bool) -> str:
    """One thing to do about what takes workers the longest."""
    if max(work_s, key=lambda kind: work_s[kind]) == "read":
        return (
            "reading takes the longest: a faster medium may help, see `shardkit bench --also"
            " /dev/shm` and `shardkit stage`"
        )
    if is_of_pictures:
        return (
            "decoding takes the longest: smaller pictures are decoded faster, see `shardkit pack"
            " --estimate`"
        )
    return "work on the samples takes the longest: more cores would help, or a lighter transform"


def wait_s(load_s: float, step_s: float, workers: int) -> float:
    """A step's wait for a batch that takes ``load_s``, made meanwhile if there are workers."""
    return max(0.0, load_s - step_s) if workers else load_s


def loops_per_s(load_s: float, step_s: float, workers: int) -> float:
    """The steps a second of a loop, by which settings are judged: in it workers are as good as idle
    once they are fast enough with something to spare. With no step it is the loader's rate."""
    return 1 / (step_s + wait_s(load_s, step_s / SPARE, workers))


def try_step(
    work: Workload, best: Candidate, samples_per_s: float, step_s: float, seconds: float
) -> Step:
    """Reckon what a loop of such a step has of these settings, and run one."""
    load_s = work.batch_size / samples_per_s
    waits = wait_s(load_s, step_s, best.settings.workers)
    least = LEAST_STEPS + num_ahead(best.settings)
    got = run_loop(work.loader(best), step_s, max(seconds, least * (step_s + waits)))
    share = waits / (step_s + waits)
    found = verdict(share, got.wait - HANDOVER_S / step_s, got.starting)
    is_of_pictures = isinstance(work.options.get("transform"), Transform)
    return Step(
        step_ms=1e3 * step_s,
        margin=step_s / load_s,
        predicted_wait=share,
        wait=got.wait,
        starting=got.starting,
        verdict=found,
        advice=advice(got.work_s, is_of_pictures) if found == "not fed" else "",
    )
