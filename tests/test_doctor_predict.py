"""Predictions of the doctor: against a simulated pipeline, and what must hold of any of them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest
from doctor_evidence import evidence, rank, rate
from hypothesis import assume, given
from hypothesis import strategies as st

from shardkit.measure.doctor import predict
from shardkit.measure.doctor.evidence import Epochs, Gain, Rates, StepTimes, WorkerTimes
from shardkit.measure.doctor.predict import Loop

SIMULATED = 0.15
"""How far a prediction may be from the simulated pipeline, as a share."""


@dataclass(frozen=True)
class Pipeline:
    """What is simulated: seconds a step, or a batch. A worker waits for files, then computes; the
    trainer computes, then waits for its device."""

    waiting: float
    computing: float
    workers: int
    cores: int
    trainer_cpu: float
    device: float

    @property
    def free(self) -> float:
        return self.trainer_cpu + self.device


@dataclass
class Task:
    """Somebody at work: first ``idle`` seconds without a core, then ``cpu`` seconds on one, or the
    other way round for the trainer."""

    idle: float
    cpu: float
    is_cpu_first: bool = False

    @property
    def is_running(self) -> bool:
        return self.cpu > 0 and (self.is_cpu_first or self.idle <= 0)

    @property
    def is_done(self) -> bool:
        return self.cpu <= 0 and self.idle <= 0

    def left(self, speed: float) -> float:
        return self.cpu / speed if self.is_running else self.idle

    def advance(self, seconds: float, speed: float) -> None:
        if self.is_running:
            self.cpu -= seconds * speed
            self.cpu = 0.0 if self.cpu < 1e-12 else self.cpu
        else:
            self.idle -= seconds
            self.idle = 0.0 if self.idle < 1e-12 else self.idle


def simulate(pipe: Pipeline, steps: int = 400) -> float:
    """Mean seconds of a step. Cores are shared fairly; a worker makes two batches ahead; times
    vary by a fifth."""
    dice = random.Random(7)

    def vary(seconds: float) -> float:
        return seconds * max(0.1, dice.gauss(1, 0.2))

    def batch() -> Task:
        return Task(vary(pipe.waiting), vary(pipe.computing))

    def step() -> Task:
        return Task(vary(pipe.device), vary(pipe.trainer_cpu), is_cpu_first=True)

    if pipe.workers == 0:
        tasks = [each for _ in range(steps) for each in (batch(), step())]
        return sum(task.idle + task.cpu for task in tasks) / steps
    now, ready, done = 0.0, 0, 0
    making: list[Task | None] = [None] * pipe.workers
    training: Task | None = None
    while done < steps:
        in_work = sum(task is not None for task in making)
        for i, task in enumerate(making):
            if task is None and ready + in_work < 2 * pipe.workers:
                making[i], in_work = batch(), in_work + 1
        if training is None and ready:
            training, ready = step(), ready - 1
        active = [task for task in (*making, training) if task is not None]
        running = sum(task.is_running for task in active)
        speed = min(1.0, pipe.cores / running) if running else 1.0
        shortest = min(task.left(speed) for task in active)
        for task in active:
            task.advance(shortest, speed)
        now += shortest
        for i, task in enumerate(making):
            if task is not None and task.is_done:
                making[i], ready = None, ready + 1
        if training is not None and training.is_done:
            training, done = None, done + 1
    return now / steps


def seen(pipe: Pipeline) -> Loop:
    """The loop as the doctor sees a simulated one."""
    return Loop(
        step=max(simulate(pipe), pipe.free),
        free=pipe.free,
        gap=0.0,
        work=WorkerTimes(reading=pipe.waiting, transform=pipe.computing, cpu=pipe.computing),
        workers=pipe.workers,
        cores=pipe.cores,
        trainer_cpu=pipe.trainer_cpu,
        noise=0.0,
    )


PIPES = [
    Pipeline(0.000, 0.100, 0, 4, 0.005, 0.020),  # no workers
    Pipeline(0.000, 0.100, 1, 4, 0.005, 0.020),  # too few
    Pipeline(0.000, 0.100, 2, 2, 0.010, 0.010),  # as many as cores
    Pipeline(0.000, 0.060, 8, 2, 0.010, 0.010),  # more than cores
    Pipeline(0.090, 0.010, 2, 4, 0.005, 0.020),  # slow files
    Pipeline(0.050, 0.050, 3, 2, 0.020, 0.000),  # a bit of everything, training on the cores, too
    Pipeline(0.000, 0.040, 2, 2, 0.000, 0.030),  # nothing to gain
]


@pytest.mark.parametrize("pipe", PIPES)
@pytest.mark.parametrize("workers", [1, 4])
def test_more_workers_bring_what_a_simulation_says(pipe: Pipeline, workers: int) -> None:
    gain = predict.with_workers(seen(pipe), workers)
    truth = simulate(pipe) / simulate(replace(pipe, workers=workers))
    assume_is_no_loss(truth, gain)


@pytest.mark.parametrize("pipe", PIPES)
def test_work_left_out_brings_what_a_simulation_says(pipe: Pipeline) -> None:
    loop = seen(pipe)
    no_reading = simulate(pipe) / simulate(replace(pipe, waiting=0.0))
    assume_is_no_loss(no_reading, predict.without(loop, "reading"))
    no_transform = simulate(pipe) / simulate(replace(pipe, computing=0.0))
    assume_is_no_loss(no_transform, predict.without(loop, "transform"))
    half = simulate(pipe) / simulate(replace(pipe, computing=pipe.computing / 2))
    assume_is_no_loss(
        half, predict.after(loop, [predict.lighter(loop.work, {"transform": 0.5})], loop.workers)
    )


@pytest.mark.parametrize("pipe", PIPES)
def test_a_shorter_step_brings_what_a_simulation_says(pipe: Pipeline) -> None:
    shorter = replace(pipe, device=pipe.device / 2)
    truth = simulate(pipe) / simulate(shorter)
    assume_is_no_loss(truth, predict.sooner(seen(pipe), pipe.device / 2, "half"))


def assume_is_no_loss(truth: float, gain: Gain) -> None:
    """Compares a factor with the simulated one; no loss is ever predicted."""
    assert gain.factor == pytest.approx(max(1.0, truth), rel=SIMULATED)
    assert gain.low <= max(1.0, truth) * 1.01 and truth <= gain.high * 1.01


seconds = st.floats(0, 10).map(lambda s: 0.0 if s < 1e-6 else s)
works = st.builds(
    WorkerTimes,
    **dict.fromkeys(predict.PARTS, seconds),
    starved=seconds,
    cpu=seconds,
)


@st.composite
def loops(draw: st.DrawFn) -> Loop:
    step = draw(st.floats(1e-4, 10))
    work = draw(works)
    return Loop(
        step=step,
        free=step * draw(st.floats(0, 1)),
        gap=step * draw(st.floats(0, 1)),
        work=replace(work, cpu=min(work.cpu, predict.made_in(work))),
        workers=draw(st.integers(0, 16)),
        cores=draw(st.floats(0.5, 64)),
        trainer_cpu=draw(seconds),
        noise=draw(st.floats(0, 0.5)),
        handover=draw(seconds),
    )


def of_loading(loop: Loop) -> list[Gain]:
    """Every change of loading alone."""
    return [
        *(predict.without(loop, part) for part in predict.PARTS),
        predict.by_kernel(loop, 0.0),
        predict.by_kernel(loop, 1.0),
        predict.resized(loop),
        *(predict.with_workers(loop, workers) for workers in (1, 2, 8, 64)),
        predict.with_cores(loop, 128),
        predict.persistent(loop, 1.0),
        predict.in_memory(loop, rate(0.01)),
    ]


@given(loops())
def test_no_change_of_loading_beats_free_loading(loop: Loop) -> None:
    most = predict.free_loading(loop).factor
    for gain in of_loading(loop):
        assert 1 <= gain.factor <= most * (1 + 1e-9)
        assert 0 < gain.low <= gain.factor <= gain.high
        assert gain.high >= gain.factor * (1 + predict.LEAST_ERROR) * (1 - 1e-9)


@given(loops(), seconds)
def test_a_shorter_step_is_no_loss(loop: Loop, less: float) -> None:
    gain = predict.sooner(loop, less, "", predict.STILL_COPIED)
    assert 1 <= gain.factor <= predict.LARGEST
    assert gain.low <= gain.factor <= gain.high
    assert gain.factor <= predict.sooner(loop, less, "").factor


@given(loops())
def test_the_formula_is_true_of_the_loop_as_it_is(loop: Loop) -> None:
    """The fit makes it so: what was measured is what it says where nothing is changed."""
    as_it_is = predict.step_after(loop, loop.work, loop.workers)
    assert as_it_is == pytest.approx(loop.steady + loop.gap, rel=1e-6)


@given(loops(), st.integers(1, 32))
def test_a_worker_more_is_no_loss(loop: Loop, workers: int) -> None:
    fewer = predict.step_after(loop, loop.work, workers)
    assert predict.step_after(loop, loop.work, workers + 1) <= fewer * (1 + 1e-9)


@given(loops())
def test_enough_workers_are_nearly_as_good_as_many(loop: Loop) -> None:
    workers = predict.enough_workers(loop)
    most = max(loop.workers, math.ceil(2 * loop.cores), 1)
    assert 1 <= workers <= most
    best = predict.step_after(loop, loop.work, most)
    assert predict.step_after(loop, loop.work, workers) <= best * predict.NEARLY * (1 + 1e-9)


@given(works, st.sampled_from(predict.PARTS), st.floats(0, 1))
def test_less_work_takes_less_of_a_core(work: WorkerTimes, part: str, left: float) -> None:
    assume(work.cpu <= predict.made_in(work))
    after = predict.lighter(work, {part: left})
    assert getattr(after, part) == pytest.approx(getattr(work, part) * left, abs=1e-9)
    assert 0 <= after.cpu <= work.cpu
    assert after.cpu <= predict.made_in(after) + 1e-9


def loop_of(*args: float, **parts: object) -> Loop:
    one = rank(*args, **parts)
    loop = predict.case_of(evidence(one), one)
    assert loop is not None
    return loop


def test_a_loop_without_replay_is_free_where_it_does_not_wait() -> None:
    loop = loop_of(0.1, None, wait=0.06)
    assert loop.free == pytest.approx(0.04)
    assert predict.free_loading(loop).factor == pytest.approx(2.5)


def test_the_beginning_of_an_epoch_is_no_part_of_a_step() -> None:
    loop = loop_of(0.1, None, wait=0.06, epochs=Epochs(1.0, 0.5, 2))
    assert loop.gap == pytest.approx(0.05) and loop.free == pytest.approx(0.02)
    assert loop_of(0.1, None, wait=0.06, epochs=Epochs(1.0, 0.5, 1)).gap == 0


def test_a_replay_that_is_slower_by_noise_brings_nothing() -> None:
    loop = loop_of(0.1, 0.103)
    assert predict.free_loading(loop).factor == 1.0


def test_without_a_rate_the_parts_of_the_step_say_how_long_it_takes() -> None:
    one = replace(rank(0.1, None, wait=0.06), rates=Rates(rate(1.0, 0)))
    one = replace(one, rates=Rates(replace(one.rates.own, steps_per_s=0.0)))
    loop = predict.case_of(evidence(one), one)
    assert loop is not None and loop.step == pytest.approx(0.1)
    assert predict.case_of(evidence(one), replace(one, step=StepTimes())) is None


def test_ranks_of_a_machine_share_its_cores_and_others_keep_theirs() -> None:
    ranks = [rank(number=n, world_size=3, host=host) for n, host in enumerate("aab")]
    seen = evidence(*ranks, cores=8, cores_busy=5.0, script_cores=3.0)
    loops = [predict.case_of(seen, each) for each in ranks]
    assert [loop.cores_left for loop in loops if loop] == [3.0, 3.0, 6.0]


def test_more_workers_get_no_more_cores() -> None:
    """Measured: on two cores of which others used 1.44, a fair share of 1.55 was reckoned for four
    workers, and 1.9 times the rate predicted; they got 0.56, and 0.75 times the rate."""
    one = rank(0.1, 0.02, num_workers=1, transform=0.1, cpu=0.05, cpu_share=0.05)
    busy = evidence(one, cores=2, cores_busy=2.0, script_cores=0.56)
    loop = predict.case_of(busy, one)
    assert loop is not None and loop.cores_left == pytest.approx(0.56)
    assert predict.with_workers(loop, 4).factor == pytest.approx(1.0, abs=0.02)
    alone = predict.case_of(evidence(one, cores=2, cores_busy=0.6, script_cores=0.56), one)
    assert alone is not None and predict.with_workers(alone, 4).factor > 1.8


def test_a_quota_gives_no_more_than_was_used() -> None:
    one = rank(0.1, 0.02, num_workers=1, transform=0.1, cpu=0.05)
    seen = evidence(one, cores=4, cores_busy=1.5, script_cores=1.5, throttled=0.4)
    loop = predict.case_of(seen, one)
    assert loop is not None and loop.cores_left == pytest.approx(1.5)


def test_what_a_loop_no_longer_does_frees_its_core() -> None:
    """Of 100 ms the loop computes 90, 60 of it needlessly, and loading is made beside it: on one
    core all of that counts."""
    parts = {"transform": 0.01, "cpu": 0.01, "cpu_share": 0.9, "num_workers": 1}
    loop = replace(loop_of(0.1, 0.1, **parts), cores=1.0, others=0.0)
    assert predict.sooner(loop, 0.06, "").factor == pytest.approx(0.1 / 0.046, rel=0.02)


def test_how_slow_loading_really_is_says_nothing_of_the_step() -> None:
    """Batches seemed to take 10 ms and really take 15, beside a step of 10: on two cores two
    workers and the loop need 12.5 ms of processor time each, not one and a half times as much."""
    loop = loop_of(0.025, 0.01, transform=0.01, cpu=0.01, cpu_share=0.8, num_workers=0)
    loop = replace(loop, cores=2.0, others=0.0, trainer_cpu=0.01)
    assert loop.fit == pytest.approx(1.5)
    assert predict.with_workers(loop, 2).factor == pytest.approx(0.025 / 0.0125)


def test_a_batch_that_is_there_must_still_be_taken() -> None:
    """A loop that waits for a transform: without that, it still takes its batches from workers."""
    made = {"transform": 0.2, "cpu": 0.2, "num_workers": 2}
    loop = replace(loop_of(0.1, 0.01, **made), handover=0.002)
    assert predict.without(loop, "transform").factor == pytest.approx(0.1 / 0.012)
    sends = replace(loop_of(0.1, 0.01, sending=0.2, num_workers=2), handover=0.002)
    assert predict.without(sends, "sending").factor == pytest.approx(0.1 / 0.0108)
    assert predict.step_after(loop, loop.work, loop.workers) == pytest.approx(0.1)


def test_a_light_loader_is_slower_from_worker_processes() -> None:
    """Handing a batch over takes longer than making it in 0.1 ms."""
    loop = loop_of(0.0002, 0.0001, collating=0.0001, num_workers=0)
    assert predict.with_workers(loop, 2).factor == 1.0
    heavy = loop_of(0.02, 0.01, collating=0.01, num_workers=0)
    assert predict.with_workers(heavy, 2).factor == pytest.approx(0.02 / 0.0108)


def test_the_loops_process_computes_beside_making_batches() -> None:
    parts = {"transform": 0.03, "cpu": 0.03, "cpu_share": 0.5}
    for worker_type in ("process", "none"):  # a step's time begins when its batch is there
        beside = loop_of(0.1, 0.05, **parts, worker_type=worker_type)
        assert beside.trainer_cpu == pytest.approx(0.05)
    within = loop_of(0.1, 0.05, **parts, worker_type="thread")
    assert within.trainer_cpu == pytest.approx(0.02)


def test_workers_that_stay_alive_still_make_the_first_batch() -> None:
    loop = loop_of(0.1, 0.04, epochs=Epochs(1.0, 0.5, 10), transform=0.1, num_workers=2)
    gain = predict.persistent(loop, 1.0)
    assert gain.factor == pytest.approx(0.1 / (0.1 - 0.05 * 0.9))


def test_the_kernel_replaces_no_transform_of_ones_own() -> None:
    """Of a transform that takes longer than decoding, only as much as a crop takes goes."""
    loop = loop_of(0.1, 0.01, decoding=0.08, transform=0.32, num_workers=4)
    left = (0.08 / 2.2 + 0.24) / 0.4
    assert predict.by_kernel(loop, 0.0).factor == pytest.approx(1 / left)


def test_an_epoch_of_the_kernels_begins_with_making_a_batch() -> None:
    """Nothing is started anew: of half a second that it took, making a batch is left."""
    parts = {"decoding": 0.2, "num_workers": 4}
    loop = loop_of(0.1, 0.05, epochs=Epochs(0.5, 0.5, 10), **parts)
    gain = predict.by_kernel(loop, 0.5)
    assert gain.factor == pytest.approx(0.1 / (0.05 + 0.05 * (0.2 / 2.2) / 0.5))


def test_a_prediction_says_its_figures() -> None:
    loop = loop_of(0.1, 0.02, transform=0.2, cpu=0.2, num_workers=2)
    assert predict.with_workers(loop, 4).how == (
        "100 ms a step now, 51.3 ms then: a batch is made in 200 ms by 4 workers, and the rest"
        " takes 20.0 ms"
    )


def test_the_interval_is_as_wide_as_the_rates_are_noisy() -> None:
    sure, unsure = loop_of(0.1, 0.02), loop_of(0.1, 0.02)
    unsure = replace(unsure, noise=0.3)
    assert predict.free_loading(sure).high == pytest.approx(5 * 1.1)
    assert predict.free_loading(unsure).high == pytest.approx(5 * 1.3)
    assert predict.noise(rate(0.1, spread=0.2)) == pytest.approx(0.1)
    assert predict.noise(rate(0.1, spread=0.2), None) == predict.noise(rate(0.1, spread=0.2))
