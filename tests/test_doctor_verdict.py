"""The doctor's verdict: a loop sick in one way for each cause, and what is just not one yet."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from doctor_evidence import GPU, GPU_TRACE, TEXTS, evidence, rank, rate
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.measure.doctor.diagnosis import Applicable, Cause, Diagnosis
from shardkit.measure.doctor.evidence import (
    CodeLine,
    Epochs,
    Evidence,
    RankEvidence,
    Rates,
    TraceFacts,
)
from shardkit.measure.doctor.verdict import predict, thresholds
from shardkit.measure.doctor.verdict.diagnose import CHEAPEST, NUM_THEN, diagnose
from shardkit.measure.doctor.verdict.loading_causes import cores

BUSY = {"cores": 2, "cores_busy": 2.0, "script_cores": 1.95}
"""A machine whose cores the script itself fills."""

CUDA: dict[str, Any] = {"device": "cuda:0", "flags": frozenset(["cuda"])}


def gloo(*collectives: float, **parts: Any) -> list[RankEvidence]:
    """Ranks of one group, which wait so long in collectives of a step of 100 ms."""
    num = len(collectives)
    return [
        rank(0.1, 0.1, number=n, world_size=num, wait=0.0, collective=seconds, **parts)
        for n, seconds in enumerate(collectives)
    ]


def line(kind: str, what: str) -> tuple[CodeLine, ...]:
    return (CodeLine("train.py", 31, what, kind, seconds=0.02, calls=1.0, share=0.6),)


SICK: dict[Cause, Evidence] = {
    "storage": evidence(rank(0.1, 0.02, reading=0.16, decoding=0.03, cpu=0.04)),
    "decoding": evidence(
        rank(0.1, 0.02, reading=0.01, decoding=0.15, transform=0.04, cpu=0.19), **BUSY
    ),
    "transform": evidence(
        rank(
            0.1,
            0.02,
            decoding=0.04,
            transform=0.16,
            cpu=0.2,
            lines=line("profile-worker", "blur(x)"),
        ),
        **BUSY,
    ),
    "tokenizing": evidence(
        rank(0.1, 0.02, reading=0.01, tokenizing=0.18, cpu=0.18, files=TEXTS), **BUSY
    ),
    "collating": evidence(
        rank(0.1, 0.02, transform=0.03, collating=0.07, sending=0.1, cpu=0.19), **BUSY
    ),
    "epoch starts": evidence(
        rank(0.1, 0.04, transform=0.05, cpu=0.05, epochs=Epochs(0.5, 0.55, 9))
    ),
    "iterator per step": evidence(
        rank(0.1, 0.01, num_workers=1, transform=0.02, cpu=0.02, epochs=Epochs(0.08, 0.8, 90, 1.0))
    ),
    "script failed": replace(evidence(rank(0.1, 0.02, transform=0.2)), failed=True),
    "too few workers": evidence(rank(0.1, 0.04, num_workers=0, decoding=0.06, cpu=0.06)),
    "too few cores": evidence(
        rank(0.1, 0.04, transform=0.06, starved=0.12, cpu=0.06),
        cores=2,
        cores_busy=2.0,
        script_cores=0.7,
    ),
    "copying": evidence(rank(0.1, 0.1, copy=0.04, **CUDA), gpus=(replace(GPU, utilisation=0.5),)),
    "launching": evidence(rank(0.02, 0.02, num_ops=4000, backward=0.01)),
    "synchronising": evidence(rank(0.1, 0.1, sync=0.04, lines=line("sync", "loss.item()"))),
    "straggler": evidence(*gloo(0.04, 0.01, 0.04, 0.05)),
    "checkpointing": evidence(rank(0.1, 0.1, checkpoint=0.04)),
    "logging": evidence(rank(0.1, 0.1, logging=0.04, lines=line("logging", "print(loss)"))),
    "computing": evidence(rank(0.1, 0.099, **CUDA), gpus=(GPU,)),
    "nothing to gain": evidence(rank(0.1, 0.099, decoding=0.1, cpu=0.1)),
    "not enough evidence": evidence(),
}


@pytest.mark.parametrize("cause", typing.get_args(Cause))
def test_each_cause_is_found(cause: Cause) -> None:
    found = diagnose(SICK[cause])
    assert found.cause == cause
    assert found.sentence.endswith(".") and found.change.endswith(".")
    assert all(found.because) and len(found.then) <= NUM_THEN


def test_every_cause_has_its_price_or_is_none() -> None:
    healthy = {"computing", "nothing to gain", "script failed"}
    assert set(CHEAPEST) | healthy == set(typing.get_args(Cause))


def test_a_gain_is_said_wherever_something_is_wrong() -> None:
    for cause, seen in SICK.items():
        gain = diagnose(seen).gain
        if cause in ("computing", "nothing to gain", "not enough evidence", "script failed"):
            assert gain is None
        else:
            assert gain is not None and gain.factor > 1


def test_operations_are_timed_by_the_processor_time_that_they_take() -> None:
    """Beside busy processes the same step takes three times as long."""
    crowded = rank(0.06, 0.06, num_ops=2000, cpu_share=0.4)
    assert cause_of(crowded) == "launching"
    assert cause_of(replace(crowded, cpu_share=0.9)) == "nothing to gain"


# What is just enough, and what is not


def cause_of(*ranks: RankEvidence, **changes: Any) -> Cause:
    return diagnose(evidence(*ranks, **changes)).cause


@pytest.mark.parametrize(("free", "cause"), [(0.094, "nothing to gain"), (0.091, "transform")])
def test_waiting_for_less_than_the_floor_is_healthy(free: float, cause: Cause) -> None:
    assert cause_of(rank(0.1, free, transform=0.2, cpu=0.2), **BUSY) == cause


def test_rates_that_are_noisy_need_a_larger_difference() -> None:
    sick = rank(0.1, 0.085, transform=0.2, cpu=0.2)
    assert cause_of(sick, **BUSY) == "transform"
    noisy = Rates(rate(0.1, spread=0.4), rate(0.085, spread=0.4))
    assert cause_of(replace(sick, rates=noisy), **BUSY) == "not enough evidence"


@pytest.mark.parametrize(("wait", "cause"), [(0.0017, "nothing to gain"), (0.004, "collating")])
def test_taking_batches_that_are_there_is_no_waiting(wait: float, cause: Cause) -> None:
    """A worker that makes them in time slows the step that it computes beside, too."""
    seen = rank(0.015, 0.0118, wait=wait, collating=0.005, cpu=0.004, num_workers=1)
    said = diagnose(evidence(replace(seen, handover=0.0011)))
    assert said.cause == cause
    assert cause != "nothing to gain" or "to take them" in said.sentence


@pytest.mark.parametrize(("reading", "cause"), [(0.09, "decoding"), (0.105, "storage")])
def test_half_of_the_work_must_be_reading(reading: float, cause: Cause) -> None:
    sick = rank(0.1, 0.02, reading=reading, decoding=0.2 - reading, cpu=0.2)
    assert cause_of(sick, **BUSY) == cause


def test_files_in_memory_decide_what_reading_is() -> None:
    """Page faults of mapped files may look like work; then the rate in memory tells."""
    sick = rank(0.1, 0.02, reading=0.06, transform=0.14, cpu=0.19)
    sick = replace(sick, rates=replace(sick.rates, warm=rate(0.03)))
    found = diagnose(evidence(sick, **BUSY))
    assert found.cause == "storage" and found.gain and found.gain.factor == pytest.approx(10 / 3)
    assert found.apply == Applicable(warm=True)
    cold = replace(sick, rates=replace(sick.rates, warm=rate(0.095)))
    assert cause_of(cold, **BUSY) == "transform"


@pytest.mark.parametrize(("cores", "cause"), [(2, "decoding"), (4, "too few workers")])
def test_workers_are_too_few_only_where_there_are_cores_for_more(cores: int, cause: Cause) -> None:
    sick = rank(0.1, 0.045, decoding=0.2, cpu=0.2)
    found = diagnose(evidence(sick, cores=cores, cores_busy=2.0, script_cores=2.0))
    assert found.cause == cause


@pytest.mark.parametrize(("share", "cause"), [(0.25, "too few workers"), (0.45, "epoch starts")])
def test_epochs_must_cost_more_than_the_rest_of_loading(share: float, cause: Cause) -> None:
    sick = rank(0.1, 0.045, num_workers=1, transform=0.06, cpu=0.06, epochs=Epochs(2.0, share, 9))
    assert cause_of(sick, cores=8) == cause


def test_a_loop_of_one_epoch_has_no_epochs_to_begin() -> None:
    sick = rank(0.1, 0.04, transform=0.05, cpu=0.05, epochs=Epochs(0.5, 0.55, 1))
    assert cause_of(sick) != "epoch starts"


def test_epochs_whose_workers_stay_alive_can_only_be_longer() -> None:
    one = SICK["epoch starts"].ranks[0]
    found = diagnose(evidence(replace(one, loader=replace(one.loader, persistent_workers=True))))
    assert found.cause == "epoch starts" and found.apply is None
    assert "longer epochs" in found.change and found.gain
    assert found.gain.factor == pytest.approx(1 / (1 - 0.55 / 2))


@pytest.mark.parametrize(("throttled", "cause"), [(0.05, "decoding"), (0.4, "too few cores")])
def test_a_quota_that_stops_the_script_is_the_cause(throttled: float, cause: Cause) -> None:
    sick = rank(0.1, 0.04, num_workers=4, decoding=0.15, cpu=0.15)
    assert cause_of(sick, cores=1, cores_busy=1.0, script_cores=1.0, throttled=throttled) == cause


@pytest.mark.parametrize("cause", ["decoding", "transform", "tokenizing", "collating", "storage"])
def test_beside_a_busy_process_the_verdict_stays(cause: Cause) -> None:
    """What is too much work for two cores of its own is not blamed on who takes a part of them."""
    seen = SICK[cause]
    busy = replace(seen.system, cores=2, cores_busy=2.0, script_cores=1.3)
    ranks = [
        replace(one, worker=replace(one.worker, starved=0.08), rates=Rates(rate(0.14), rate(0.024)))
        for one in seen.ranks
    ]
    assert diagnose(replace(seen, ranks=tuple(ranks), system=busy)).cause == cause


@pytest.mark.parametrize("part", ["checkpoint", "logging", "sync"])
def test_a_part_of_the_step_counts_from_the_floor_on(part: str) -> None:
    assert cause_of(rank(0.1, 0.1, **{part: 0.006})) == "nothing to gain"
    assert cause_of(rank(0.1, 0.1, **{part: 0.009})) != "nothing to gain"


@pytest.mark.parametrize(("ops", "cause"), [(800, "nothing to gain"), (1200, "launching")])
def test_operations_must_be_short(ops: int, cause: Cause) -> None:
    assert cause_of(rank(0.02, 0.02, num_ops=ops)) == cause


def test_few_operations_or_a_loop_that_sleeps_are_not_launching() -> None:
    assert cause_of(rank(0.002, 0.002, num_ops=190)) == "nothing to gain"
    assert cause_of(rank(0.02, 0.02, num_ops=4000, blocked=0.018)) == "nothing to gain"


@pytest.mark.parametrize(("excess", "cause"), [(0.008, "nothing to gain"), (0.012, "straggler")])
def test_a_slow_rank_lets_the_others_wait(excess: float, cause: Cause) -> None:
    others = 0.02 + excess
    assert cause_of(*gloo(others, 0.02, others)) == cause


def test_free_loading_counts_more_than_a_part_that_it_hides() -> None:
    """While the loop waits for batches, a shorter step only waits longer."""
    sick = rank(0.1, 0.06, transform=0.2, cpu=0.2, logging=0.03)
    found = diagnose(evidence(sick, **BUSY))
    assert found.cause == "transform"
    serial = replace(sick, loader=replace(sick.loader, num_workers=0))
    assert diagnose(evidence(serial, cores=1)).then[-1].startswith("then logging: ")


def test_the_cheaper_of_two_equal_causes_is_named() -> None:
    found = diagnose(evidence(rank(0.1, 0.1, logging=0.2 / 9, checkpoint=0.2 / 9)))
    assert found.cause == "logging"
    assert found.then[0].startswith("then checkpointing: ")


@pytest.mark.parametrize(("busy", "cause"), [(2.0, "nothing to gain"), (1.0, "transform")])
def test_work_done_in_time_is_not_blamed_beside_a_busy_process(busy: float, cause: Cause) -> None:
    late = rank(0.06, 0.05, num_workers=1, transform=0.02, cpu=0.02)
    assert diagnose(evidence(late, cores=2, cores_busy=busy, script_cores=1.0)).cause == cause


def test_few_steps_are_no_evidence() -> None:
    few = rank(0.1, 0.02, transform=0.2)
    few = replace(few, rates=Rates(rate(0.1, thresholds.LEAST_STEPS - 1)))
    assert "9 steps" in diagnose(evidence(few)).sentence
    assert diagnose(evidence(few)).cause == "not enough evidence"


def test_a_loader_whose_work_was_not_seen_is_said_to_be_so() -> None:
    found = diagnose(evidence(rank(0.1, 0.02, kind="MyLoader", num_workers=0)))
    assert found.cause == "not enough evidence"
    assert "MyLoader" in found.sentence and "5.0 times" in found.sentence


# Ranks


def test_the_rank_that_waits_least_is_the_slow_one() -> None:
    found = diagnose(SICK["straggler"])
    assert found.rank == 1 and "Rank 1 on node0" in found.sentence
    assert found.gain and found.gain.factor == pytest.approx(1 / 0.7)


def test_of_two_ranks_one_may_be_slow() -> None:
    assert diagnose(evidence(*gloo(0.0, 0.04))).rank == 0


def test_a_rank_may_be_slow_because_of_its_own_loading() -> None:
    """Replaying on all ranks makes it faster: the others' loading is not to blame."""
    parts: dict[str, Any] = {"transform": 0.1, "cpu": 0.1, "world_size": 2}
    slow = rank(0.1, 0.05, number=0, wait=0.05, **parts)
    other = rank(0.1, 0.05, number=1, wait=0.0, collective=0.05, **parts)
    found = diagnose(evidence(slow, other, **BUSY))
    assert (found.cause, found.rank) == ("straggler", 0)
    assert "because its batches come late" in found.sentence and "transform" in found.change


def test_all_ranks_that_wait_for_batches_are_no_stragglers() -> None:
    ranks = [
        rank(0.1, 0.03, number=n, world_size=2, decoding=0.2, cpu=0.1, wait=0.07) for n in (0, 1)
    ]
    assert cause_of(*ranks, cores=2, cores_busy=2.0, script_cores=2.0) == "decoding"


def test_a_rank_that_saves_while_others_wait_is_not_slow() -> None:
    saving = rank(0.1, 0.1, number=0, world_size=2, checkpoint=0.04)
    waiting = rank(0.1, 0.1, number=1, world_size=2, collective=0.04)
    assert cause_of(saving, waiting) == "checkpointing"


# Right, or silent


@pytest.mark.parametrize("cause", [*SICK])
def test_a_machine_that_others_use_is_said_first(cause: Cause) -> None:
    seen = SICK[cause]
    system = replace(seen.system, cores=2, cores_busy=1.9, script_cores=0.5)
    said = diagnose(replace(seen, system=system))
    first = "This machine is shared: other processes use 1.4 of 2 cores, and the script got 0.5."
    assert said.sentence.startswith(first) != (cause == "script failed")
    assert "shared" not in diagnose(seen).sentence or cause == "too few cores"


def test_a_script_that_failed_gets_no_verdict() -> None:
    sick = replace(SICK["decoding"], failed=True, ended="exit code 1 (KeyError: 'x' at train.py:3)")
    said = diagnose(sick)
    assert said.sentence == (
        "The script failed, so there is no verdict: exit code 1 (KeyError: 'x' at train.py:3)."
    )
    assert said.gain is None and said.apply is None and "python train.py" in said.change


def test_a_loop_that_hardly_waits_gets_no_batch_too_late() -> None:
    """Threads that compute beside the step, on cores that are full: measured, 54 % of the rate."""
    made = {"transform": 0.19, "cpu": 0.17, "cpu_share": 0.9, "worker_type": "process"}
    said = diagnose(evidence(rank(0.1, 0.054, wait=0.002, **made), **BUSY))
    assert said.cause == "too few cores" and said.sentence.startswith(
        "The loop waits for 2% of a step only, but making batches takes cores from it"
    )
    assert said.apply is None and said.gain is not None and said.gain.is_limit
    idle = replace(SICK["transform"].system, cores=8)
    found = diagnose(replace(evidence(rank(0.1, 0.054, wait=0.002, **made)), system=idle))
    assert found.cause == "not enough evidence" and found.gain is None


@pytest.mark.parametrize(
    ("num_workers", "reading", "system"),
    [
        (0, 0.0, {"cores": 2, "cores_busy": 2.0, "script_cores": 1.0}),
        (1, 0.0, {"cores": 1, "cores_busy": 1.0, "script_cores": 1.0}),
        (1, 0.05, {"cores": 2, "cores_busy": 2.0, "script_cores": 0.9}),
        (4, 0.0, {"cores": 4, "cores_busy": 3.9, "script_cores": 3.8}),
    ],
)
def test_no_more_workers_where_cores_are_full(
    num_workers: int, reading: float, system: dict[str, Any]
) -> None:
    made = 0.06 * max(num_workers, 1)
    parts = {"decoding": made, "reading": reading, "cpu": made, "cpu_share": 0.35}
    said = diagnose(evidence(rank(0.1, 0.035, num_workers=num_workers, **parts), **system))
    words = " ".join([said.sentence, said.change, *said.then])
    assert said.cause != "too few workers" and "num_workers" not in words, words
    assert "more workers" not in words.lower() and said.gain is not None


def test_cores_that_others_have_are_the_cause_where_less_work_brings_nothing() -> None:
    """Recorded of a loop over JPEGs beside processes that used 1.8 of 2 cores."""
    made = {"reading": 0.0889, "decoding": 0.016, "transform": 0.00327, "collating": 0.00242}
    made |= {"sending": 0.00187, "starved": 0.174, "cpu": 0.0226, "cpu_share": 0.05}
    one = rank(0.0989, 0.015, wait=0.0851, epochs=Epochs(1.11, 0.11, 2), **made)
    said = diagnose(evidence(one, cores=2, cores_busy=2.0, script_cores=0.199))
    assert said.cause == "too few cores" and said.apply is None and said.gain is not None
    assert said.sentence.startswith("This machine is shared: other processes use 1.8 of 2 cores")
    assert said.sentence.count("other processes use") == 1
    assert "but they are ready to run and have no core for 61% of the time" in said.sentence
    assert said.change.startswith("Give the script 3 cores of its own")


def test_a_run_that_was_cut_too_early_needs_more_seconds() -> None:
    slow = rank(0.1, 0.05)
    few = replace(slow, rates=Rates(replace(slow.rates.own, num_steps=9)))
    assert "more epochs" in diagnose(evidence(few)).change
    assert "--seconds" in diagnose(replace(evidence(few), cut_s=15.0)).change


def test_one_core_is_one() -> None:
    assert [cores(wanted) for wanted in (0.2, 1.0, 1.1)] == ["1 core", "1 core", "2 cores"]


def test_workers_that_wait_for_a_core_get_no_company() -> None:
    parts = {"decoding": 0.06, "cpu": 0.06, "starved": 0.02, "num_workers": 1}
    assert cause_of(rank(0.1, 0.03, **parts), cores=4) == "decoding"
    assert cause_of(rank(0.1, 0.03, **{**parts, "starved": 0.005}), cores=4) == "too few workers"


@pytest.mark.parametrize(
    ("workers", "num_batches", "cause"),
    [
        (0, 100, "iterator per step"),
        (2, 100, "iterator per step"),
        (2, None, "iterator per step"),
        (2, 1, "epoch starts"),
    ],
)
def test_an_iterator_for_each_step(workers: int, num_batches: int | None, cause: Cause) -> None:
    parts = {"transform": 0.02, "cpu": 0.02, "epochs": Epochs(0.08, 0.8, 90, 1.0)}
    loader = {"num_workers": workers, "num_batches": num_batches}
    restarts = (CodeLine("train.py", 9, "wait", "wait", 0.03, 1.0),) if workers else ()
    said = diagnose(evidence(rank(0.1, 0.01, **parts, **loader, lines=restarts)))
    assert said.cause == cause
    if cause == "iterator per step":
        assert said.sentence.startswith("Each step begins a new iteration over the loader")
        assert "waits 80.0 ms for its first batch: 80% of the loop's time" in said.sentence
        assert ("starts 2 workers anew" in said.sentence) == (workers > 0)
        assert ("(train.py:9)" in said.change) == (workers > 0) and "next(iter(" in said.change
        assert said.apply is None and said.gain is not None
        assert said.gain.factor == pytest.approx(0.1 / (0.03 if not workers else 0.0108), rel=0.01)


def test_an_iterator_for_each_step_where_others_have_the_cores() -> None:
    """Then more is lost to what follows the first batch, and lies between two of them, too."""
    parts = {"transform": 0.01, "cpu": 0.001, "epochs": Epochs(0.093, 0.43, 80, 1.0)}
    said = diagnose(evidence(rank(0.202, 0.009, num_workers=1, **parts), **BUSY))
    assert said.cause == "iterator per step"


def rates_of(**steps_per_s: float) -> Rates:
    """With blocks that vary by 2 %."""
    return Rates(**{name: rate(1 / each) for name, each in steps_per_s.items()})


def test_free_loading_is_never_slower() -> None:
    """Measured beside others: 4.5 steps/s as it is, 3.3 with batches replayed."""
    sick = rank(0.222, 0.303, wait=0.1, decoding=0.3, cpu=0.2)
    said = diagnose(evidence(replace(sick, rates=rates_of(own=4.5, replay=3.3)), **BUSY))
    assert said.cause == "not enough evidence" and said.gain is None and said.apply is None
    assert said.sentence == (
        "The rates contradict each other: 4.50 steps/s as it is, and only 3.30 with loading free."
    )
    unsteady = Rates(rate(1 / 4.5, spread=0.6), rate(1 / 3.3, spread=0.6))
    said = diagnose(evidence(replace(sick, rates=unsteady), **BUSY))
    assert said.cause == "not enough evidence" and "vary too much" in said.sentence


def test_files_in_memory_are_never_slower() -> None:
    """Measured beside others: 53.9 steps/s as it is, 13.9 with the files in memory."""
    sick = rank(1 / 53.9, 1 / 90, decoding=0.02, transform=0.01, cpu=0.03)
    rates = rates_of(own=53.9, replay=90, warm=13.9)
    said = diagnose(evidence(replace(sick, rates=rates), **BUSY))
    alone = diagnose(evidence(replace(sick, rates=rates_of(own=53.9, replay=90)), **BUSY))
    assert (said.cause, said.gain) == (alone.cause, alone.gain)
    unused = [line for line in said.because if "unusable" in line]
    assert len(unused) == 1 and unused[0].startswith("13.9 steps/s with the files in memory is")


def test_a_loop_that_waits_for_half_its_step_is_faster_without() -> None:
    sick = rank(0.1, 0.095, wait=0.46, decoding=0.3, cpu=0.2)
    sick = replace(sick, step=replace(sick.step, wait=0.046, other=0.054))
    said = diagnose(evidence(sick, **BUSY))
    assert said.cause == "not enough evidence" and "waits for 46 % of a step" in said.sentence
    for hidden in (replace(sick, device="cuda:0"), replace(sick, world_size=2)):
        assert diagnose(evidence(hidden, **BUSY)).cause != "not enough evidence"
    steady = replace(sick, rates=rates_of(own=10, replay=18))
    assert diagnose(evidence(steady, **BUSY)).cause == "decoding"


def test_rates_within_what_their_blocks_vary_are_used() -> None:
    sick = rank(0.1, 0.05, decoding=0.2, cpu=0.2)
    noisy = Rates(rate(0.1, spread=0.3), rate(0.05), rate(0.12, spread=0.3))
    said = diagnose(evidence(replace(sick, rates=noisy), **BUSY))
    assert said.cause == "decoding" and not any("unusable" in line for line in said.because)


def test_a_run_that_was_cut_says_so() -> None:
    for cause in ("decoding", "not enough evidence", "nothing to gain"):
        said = diagnose(replace(SICK[typing.cast(Cause, cause)], cut_s=90.0))
        assert said.cause == cause and said.because[-1].startswith("The run was cut after 90.0 s")


def test_a_short_loop_is_a_loop() -> None:
    said = diagnose(replace(evidence(), short_loop=3))
    assert said.sentence.startswith("A loop was seen, but only 3 steps of it")


# On a GPU


def on_gpu(trace: TraceFacts | None, utilisation: float = 0.95, **parts: Any) -> Diagnosis:
    gpus = (replace(GPU, utilisation=utilisation),)
    return diagnose(evidence(rank(0.1, 0.1, **CUDA, **parts), gpus=gpus, trace=trace))


def test_a_gpu_that_works_while_the_host_waits_has_nothing_to_gain_from_that() -> None:
    assert on_gpu(GPU_TRACE, sync=0.06).cause == "computing"
    idle = replace(GPU_TRACE, gpu_idle=0.5)
    found = on_gpu(idle, sync=0.06, lines=line("sync", "x.cpu()"))
    assert found.cause == "synchronising" and "train.py:31 (x.cpu())" in found.change
    assert found.gain and found.gain.factor == pytest.approx(2.0)
    assert on_gpu(None, utilisation=0.5, sync=0.06).cause == "synchronising"


def test_short_kernels_on_an_idle_gpu_are_launching() -> None:
    short = replace(GPU_TRACE, gpu_idle=0.6, kernel_s=4e-6)
    found = on_gpu(short)
    assert found.cause == "launching" and "reduce-overhead" in found.change
    assert on_gpu(replace(short, kernel_s=30e-6)).cause == "computing"
    assert on_gpu(replace(short, gpu_idle=0.1)).cause == "computing"


def test_a_copy_that_the_trace_hides_is_no_cause() -> None:
    assert on_gpu(replace(GPU_TRACE, copy_exposed=0.3), copy=0.03).cause == "copying"
    assert on_gpu(replace(GPU_TRACE, copy_exposed=0.01), copy=0.03).cause == "computing"


def test_pinned_memory_is_advised_where_it_is_not_there_yet() -> None:
    found = diagnose(SICK["copying"])
    assert found.apply == Applicable(loader={"pin_memory": True})
    assert found.gain and found.gain.factor == pytest.approx(0.1 / (0.1 - 0.04 * 0.6))
    found = on_gpu(None, copy=0.04, pin_memory=True)
    assert found.apply is None and "non_blocking=True" in found.change


def test_a_computing_gpu_is_told_what_it_does_not_use_yet() -> None:
    found = diagnose(SICK["computing"])
    said = " ".join([found.change, *found.then])
    assert "autocast" in said and "channels_last" in said and "torch.compile" in said
    flags = frozenset(["cuda", "amp", "compile", "channels_last", "fused_optimizer"])
    all_used = rank(0.1, 0.099, device="cuda:0", flags=flags)
    assert cause_of(all_used, gpus=(GPU,)) == "nothing to gain"
    roomy = replace(GPU, memory_used=10**9, throttle={"thermal": 0.5})
    found = diagnose(evidence(all_used, gpus=(roomy,)))
    assert "larger batch" in found.change and "cool the GPU" in found.then[0]


def test_a_cpu_is_told_nothing_of_cuda() -> None:
    found = diagnose(SICK["nothing to gain"])
    assert found.then == () and found.change == "Leave it as it is."


def test_data_parallel_is_said_whatever_the_verdict() -> None:
    flags = frozenset(["cuda", "data_parallel"])
    for one in (rank(0.1, 0.02, transform=0.2, flags=flags), rank(0.1, 0.1, flags=flags)):
        found = diagnose(evidence(one, **BUSY))
        assert "DistributedDataParallel" in " ".join([found.change, *found.then])


# What to do


def test_pictures_are_packed_from_where_the_script_reads_them() -> None:
    found = diagnose(SICK["decoding"])
    assert "`shardkit pack /data/imagenet/train --to lmdb`" in found.change
    assert 'shardkit.open("train-lmdb"), 64,' in found.change
    assert "--resize 256" in found.then[0] and found.apply is None


def test_text_is_packed_as_ids_with_its_folder_quoted() -> None:
    change = diagnose(SICK["tokenizing"]).change
    assert "`shardkit pack '/data/my texts' --to npy --tokenizer PATH_OR_NAME`" in change
    assert 'TokenDataset("my texts-npy", seq_len=LENGTH), 64' in change


def test_more_workers_are_applied_as_arguments() -> None:
    found = diagnose(SICK["too few workers"])
    several = [{"num_workers": number, "persistent_workers": True} for number in (2, 1, 4)]
    assert found.apply == Applicable(loader=several[0], others=tuple(several[1:]))
    assert "DataLoader(..., num_workers=2, persistent_workers=True)" in found.change
    assert "The loop's own process" in found.sentence and "1.8 of 4 cores" in found.sentence


def test_an_iterable_dataset_is_not_given_workers_without_a_word() -> None:
    """Each would yield everything."""
    sick = rank(0.1, 0.04, num_workers=0, decoding=0.06, cpu=0.06, is_iterable=True)
    found = diagnose(evidence(sick))
    assert found.apply is None and "get_worker_info" in found.change


def test_little_shared_memory_is_warned_of() -> None:
    one = SICK["too few workers"].ranks[0]
    assert "--shm-size" in diagnose(evidence(one, shm_free=10**7)).then[0]


def test_epochs_that_begin_slowly_keep_their_workers() -> None:
    found = diagnose(SICK["epoch starts"])
    assert found.apply == Applicable(loader={"persistent_workers": True})


def test_files_that_fit_in_memory_are_read_before() -> None:
    found = diagnose(SICK["storage"])
    assert found.apply == Applicable(warm=True) and "shardkit pack" in found.change
    found = diagnose(evidence(SICK["storage"].ranks[0], memory_available=10**8))
    assert found.apply is None and found.change.startswith("Pack the files")


@pytest.mark.parametrize(("workers", "apply"), [(0, True), (8, False)])
def test_waiting_without_a_file_is_for_something_else(workers: int, apply: bool) -> None:
    """Those who wait for a network can wait side by side, and no folder is known to pack."""
    sick = rank(0.1, 0.02, num_workers=workers, reading=0.08 * max(workers, 1), files=None)
    found = diagnose(evidence(sick))
    assert found.cause == "storage" and "no file for it" in found.sentence
    assert (found.apply is not None) == apply and ("num_workers" in found.change) == apply
    assert "fetch the samples once" in " ".join([found.change.lower(), *found.then])
    assert found.gain is not None and found.gain.factor > 2


def test_pictures_are_cropped_to_the_size_that_was_seen() -> None:
    sick = SICK["decoding"]
    seen = replace(sick, ranks=(replace(sick.ranks[0], picture_side=112),))
    assert "shardkit.images.train(112), workers" in diagnose(seen).change


def test_the_costliest_line_of_the_script_is_named() -> None:
    for cause, what in {
        "transform": "blur(x)",
        "synchronising": "loss.item()",
        "logging": "print(loss)",
    }.items():
        assert f"train.py:31 ({what})" in diagnose(SICK[typing.cast(Cause, cause)]).change


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("too few workers", "`shardkit tune /data/imagenet/train --batch-size 64`"),
        ("decoding", "`shardkit convert /data/imagenet/train small/ --to lmdb --resize 256`"),
        ("storage", "shardkit stage /data/imagenet/train"),
    ],
)
def test_what_is_packed_already_is_not_packed_again(cause: Cause, advice: str) -> None:
    one = SICK[cause].ranks[0]
    ours = replace(one, loader=replace(one.loader, kind="shardkit.Loader"))
    found = diagnose(replace(SICK[cause], ranks=(ours,)))
    assert found.cause == cause and advice in found.change
    assert "shardkit pack /" not in found.change
    assert found.apply is None or found.apply.warm


# Any evidence


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type of the evidence: times and shares that are zero or more."""
    simple: dict[Any, Callable[[], st.SearchStrategy[Any]]] = {
        float: lambda: st.floats(0, 1e4).map(lambda x: 0.0 if x < 1e-9 else x),
        int: lambda: st.integers(0, 10**6),
        str: lambda: st.sampled_from(["", "cuda:0", "cpu", "DataLoader", "shardkit.Loader", "x y"]),
        bool: st.booleans,
        type(None): st.none,
        typing.Any: st.none,
    }
    if kind in simple:
        return simple[kind]()
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return st.builds(kind, **{name: anything(hint) for name, hint in hints.items()})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return st.one_of([anything(each) for each in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(anything(arguments[0]), anything(arguments[1]), max_size=2)
    if origin is frozenset:
        return st.frozensets(st.sampled_from(["amp", "cuda", "data_parallel"]))
    if arguments[-1] is Ellipsis:
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*map(anything, arguments))


@settings(max_examples=50)  # each is large
@given(anything(Evidence))
def test_any_evidence_has_a_verdict(seen: Evidence) -> None:
    check(seen, diagnose(seen))


@given(
    st.floats(0.001, 1),
    st.floats(0.001, 1),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.floats(0, 0.1),
    st.integers(0, 8),
    st.integers(1, 16),
)
def test_any_likely_loop_has_a_verdict(
    step: float, free: float, parts: list[float], own: float, workers: int, cores: int
) -> None:
    names = dict(zip(predict.PARTS, parts, strict=True))
    one = rank(step, min(free, step), num_workers=workers, cpu=sum(parts) / 2, logging=own, **names)
    seen = evidence(one, cores=cores, cores_busy=cores / 2, script_cores=cores / 3)
    check(seen, diagnose(seen))


def check(seen: Evidence, found: Diagnosis) -> None:
    """A verdict is whole, and promises of loading no more than free loading gives."""
    assert found.sentence and found.change
    loops = [predict.loop_of(seen, one) for one in seen.ranks]
    if found.gain is None:
        return
    assert found.gain.factor >= 1 and found.gain.low <= found.gain.factor <= found.gain.high
    own = {"logging", "checkpointing", "synchronising", "copying", "launching", "straggler"}
    if found.cause not in own:
        most = max(predict.free_loading(loop).factor for loop in loops if loop)
        assert found.gain.factor <= most * (1 + 1e-9)
