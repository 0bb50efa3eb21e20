"""The doctor's verdict: a loop sick in one way for each cause, and what is just not one yet."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import examples
from doctor_evidence import GPU_TRACE, TEXTS, evidence, rank, rate
from hypothesis import given
from hypothesis import strategies as st

from shardkit.measure.doctor import predict, thresholds
from shardkit.measure.doctor.diagnose import diagnose
from shardkit.measure.doctor.evidence import (
    Cause,
    CodeLine,
    Diagnosis,
    Epochs,
    Evidence,
    RankEvidence,
    Rates,
    TraceFacts,
    Utilisation,
)

BUSY: dict[str, Any] = {"cores": 2, "cores_busy": 2.0, "script_cores": 1.95}
"""A machine whose cores the script itself fills."""

CUDA: dict[str, Any] = {"device": "cuda:0", "flags": frozenset(["cuda"])}

LOSSLESS = ("computing", "nothing to gain", "not enough evidence", "script failed")
"""Verdicts without a gain."""


def gloo(*collectives: float) -> list[RankEvidence]:
    """Ranks of one group, which wait so long in collectives of a step of 100 ms."""
    num = len(collectives)
    return [
        rank(0.1, 0.1, number=n, world_size=num, wait=0.0, collective=seconds)
        for n, seconds in enumerate(collectives)
    ]


def line(kind: str, what: str) -> tuple[CodeLine, ...]:
    return (CodeLine("train.py", 31, what, kind, seconds=0.02, calls=1.0, share=0.6),)


BLUR = line("profile-worker", "blur(x)")

SICK: dict[Cause, Evidence] = {
    "storage": evidence(rank(0.1, 0.02, reading=0.16, decoding=0.03, cpu=0.04)),
    "decoding": evidence(
        rank(0.1, 0.02, reading=0.01, decoding=0.15, transform=0.04, cpu=0.19), **BUSY
    ),
    "transform": evidence(
        rank(0.1, 0.02, decoding=0.04, transform=0.16, cpu=0.2, lines=BLUR), **BUSY
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
    "script failed": replace(evidence(rank(0.1, 0.02, transform=0.2)), failed=True, ended="exit 3"),
    "too few workers": evidence(rank(0.1, 0.04, num_workers=0, decoding=0.06, cpu=0.06)),
    "too few cores": evidence(
        rank(0.1, 0.04, transform=0.06, starved=0.12, cpu=0.06),
        cores=2,
        cores_busy=2.0,
        script_cores=0.7,
    ),
    "copying": evidence(rank(0.1, 0.1, copy=0.04, **CUDA)),
    "launching": evidence(rank(0.02, 0.02, num_ops=4000, backward=0.01)),
    "synchronising": evidence(rank(0.1, 0.1, sync=0.04, lines=line("sync", "loss.item()"))),
    "straggler": evidence(*gloo(0.04, 0.01, 0.04, 0.05)),
    "checkpointing": evidence(rank(0.1, 0.1, checkpoint=0.04)),
    "logging": evidence(rank(0.1, 0.1, logging=0.04, lines=line("logging", "print(loss)"))),
    "computing": evidence(rank(0.1, 0.099, **CUDA)),
    "nothing to gain": evidence(rank(0.1, 0.099, decoding=0.1, cpu=0.1)),
    "not enough evidence": evidence(),
}


@pytest.mark.parametrize("cause", typing.get_args(Cause))
def test_each_cause_is_found(cause: Cause) -> None:
    """And has a gain; of a machine that others use it is said first."""
    found = diagnose(SICK[cause])
    assert found.cause == cause
    assert found.sentence.endswith(".") and found.change.endswith(".")
    assert (found.gain is None) == (cause in LOSSLESS)
    assert found.gain is None or found.gain.factor > 1
    system = replace(SICK[cause].system, cores=2, cores_busy=1.9, script_cores=0.5)
    said = diagnose(replace(SICK[cause], system=system))
    first = "This machine is shared: other processes use 1.4 of 2 cores, and the script got 0.5."
    assert said.sentence.startswith(first) != (cause == "script failed")


# --- what is just enough, and what is not ---------------------------------------------------

NOTHING: Cause = "nothing to gain"


def one(*args: float, **changes: Any) -> Evidence:
    """Evidence of one rank; fields go where they belong."""
    names = ("cores", "cores_busy", "script_cores", "throttled")
    machine = {name: changes.pop(name) for name in names if name in changes}
    return evidence(rank(*args, **changes), **machine)


def with_rates(seen: Evidence, **rates: Any) -> Evidence:
    (only,) = seen.ranks
    return replace(seen, ranks=(replace(only, rates=replace(only.rates, **rates)),))


OWN_WORK: dict[str, Any] = {"transform": 0.2, "cpu": 0.2, **BUSY}
FAULTS: dict[str, Any] = {"reading": 0.06, "transform": 0.14, "cpu": 0.19, **BUSY}
STARTS: dict[str, Any] = {"num_workers": 1, "transform": 0.06, "cpu": 0.06, "cores": 8}
TAKING: dict[str, Any] = {"collating": 0.005, "cpu": 0.004, "num_workers": 1, "handover": 0.0011}
QUOTA: dict[str, Any] = {"num_workers": 4, "decoding": 0.15, "cpu": 0.15, "cores": 1}
QUOTA |= {"cores_busy": 1.0, "script_cores": 1.0}
IN_TIME: dict[str, Any] = {"num_workers": 1, "transform": 0.02, "cpu": 0.02, "cores": 2}
STARVED: dict[str, Any] = {"decoding": 0.06, "cpu": 0.06, "num_workers": 1, "cores": 4}
HIDDEN: dict[str, Any] = {"wait": 0.046, "decoding": 0.3, "cpu": 0.2, **BUSY}
HIDDEN["other"] = 0.054

BORDERS: list[tuple[Evidence, Cause]] = [
    (one(0.1, 0.094, **OWN_WORK), NOTHING),
    (one(0.1, 0.091, **OWN_WORK), "transform"),
    # Rates that are noisy need a larger difference.
    (one(0.1, 0.085, **OWN_WORK), "transform"),
    (
        with_rates(
            one(0.1, 0.085, **OWN_WORK), own=rate(0.1, spread=0.4), replay=rate(0.085, spread=0.4)
        ),
        "not enough evidence",
    ),
    # Taking batches that are there is no waiting.
    (one(0.015, 0.0118, wait=0.0017, **TAKING), NOTHING),
    (one(0.015, 0.0118, wait=0.004, **TAKING), "collating"),
    # Half of the work must be reading.
    (one(0.1, 0.02, reading=0.09, decoding=0.11, cpu=0.2, **BUSY), "decoding"),
    (one(0.1, 0.02, reading=0.105, decoding=0.095, cpu=0.2, **BUSY), "storage"),
    # Page faults of mapped files look like work; then the rate in memory tells.
    (with_rates(one(0.1, 0.02, **FAULTS), warm=rate(0.03)), "storage"),
    (with_rates(one(0.1, 0.02, **FAULTS), warm=rate(0.095)), "transform"),
    (with_rates(one(0.1, 0.02, **OWN_WORK), warm=rate(0.03)), "transform"),
    # Workers are too few only where there are cores for more, and none waits for one.
    (one(0.1, 0.045, decoding=0.2, cpu=0.2, **BUSY), "decoding"),
    (one(0.1, 0.045, decoding=0.2, cpu=0.2, **{**BUSY, "cores": 4}), "too few workers"),
    (one(0.1, 0.03, starved=0.02, **STARVED), "decoding"),
    (one(0.1, 0.03, starved=0.005, **STARVED), "too few workers"),
    # Epochs must cost more than the rest of loading, and there must be several.
    (one(0.1, 0.045, epochs=Epochs(2.0, 0.25, 9), **STARTS), "too few workers"),
    (one(0.1, 0.045, epochs=Epochs(2.0, 0.45, 9), **STARTS), "epoch starts"),
    (one(0.1, 0.045, epochs=Epochs(2.0, 0.45, 1), **STARTS), "too few workers"),
    (one(0.1, 0.04, throttled=0.05, **QUOTA), "decoding"),
    (one(0.1, 0.04, throttled=0.4, **QUOTA), "too few cores"),
    # Work done in time is not blamed beside a busy process.
    (one(0.06, 0.05, cores_busy=2.0, script_cores=1.0, **IN_TIME), NOTHING),
    (one(0.06, 0.05, cores_busy=1.0, script_cores=1.0, **IN_TIME), "transform"),
    *((one(0.1, 0.1, **{part: 0.006}), NOTHING) for part in ("checkpoint", "logging", "sync")),
    (one(0.1, 0.1, checkpoint=0.009), "checkpointing"),
    (one(0.1, 0.1, logging=0.009), "logging"),
    (one(0.1, 0.1, sync=0.009), "synchronising"),
    # Operations must be short and many, and are timed by the processor time that they take.
    (one(0.02, 0.02, num_ops=800), NOTHING),
    (one(0.02, 0.02, num_ops=1200), "launching"),
    (one(0.002, 0.002, num_ops=190), NOTHING),
    (one(0.02, 0.02, num_ops=4000, blocked=0.018), NOTHING),
    (one(0.06, 0.06, num_ops=2000, cpu_share=0.4), "launching"),
    (one(0.06, 0.06, num_ops=2000, cpu_share=0.9), NOTHING),
    (evidence(*gloo(0.028, 0.02, 0.028)), NOTHING),
    (evidence(*gloo(0.032, 0.02, 0.032)), "straggler"),
    # While the loop waits for batches, a shorter step only waits longer.
    (one(0.1, 0.06, logging=0.03, **OWN_WORK), "transform"),
    # The cheaper of two equal causes is named.
    (one(0.1, 0.1, logging=0.2 / 9, checkpoint=0.2 / 9), "logging"),
    # A loop that waits for half its step is faster without, unless a GPU or ranks hide it.
    (one(0.1, 0.095, **HIDDEN), "not enough evidence"),
    (one(0.1, 0.095, **HIDDEN, world_size=2), NOTHING),
    (one(0.1, 0.05, decoding=0.2, cpu=0.2, **BUSY), "decoding"),
]


@pytest.mark.parametrize(("seen", "cause"), BORDERS)
def test_what_is_just_enough_and_what_is_not(seen: Evidence, cause: Cause) -> None:
    assert diagnose(seen).cause == cause


@pytest.mark.parametrize("cause", ["decoding", "transform", "tokenizing", "collating", "storage"])
def test_beside_a_busy_process_the_verdict_stays(cause: Cause) -> None:
    """What is too much work for two cores of its own is not blamed on who takes a part of them."""
    seen = SICK[cause]
    busy = replace(seen.system, cores=2, cores_busy=2.0, script_cores=1.3)
    ranks = [
        replace(
            each, worker=replace(each.worker, starved=0.08), rates=Rates(rate(0.14), rate(0.024))
        )
        for each in seen.ranks
    ]
    assert diagnose(replace(seen, ranks=tuple(ranks), system=busy)).cause == cause


def test_few_steps_are_no_evidence() -> None:
    few = with_rates(one(0.1, 0.02, transform=0.2), own=rate(0.1, thresholds.LEAST_STEPS - 1))
    assert "9 steps" in diagnose(few).sentence and "more epochs" in diagnose(few).change
    assert diagnose(few).cause == "not enough evidence"
    assert "--seconds" in diagnose(replace(few, cut_s=15.0)).change
    short = diagnose(replace(evidence(), short_loop=3))
    assert short.sentence.startswith("A loop was seen, but only 3 steps of it")


def test_a_loader_whose_work_was_not_seen_is_said_to_be_so() -> None:
    found = diagnose(one(0.1, 0.02, kind="MyLoader", num_workers=0))
    assert found.cause == "not enough evidence"
    assert "MyLoader" in found.sentence and "5.0 times" in found.sentence


# --- ranks ----------------------------------------------------------------------------------


def test_the_rank_that_waits_least_is_the_slow_one() -> None:
    found = diagnose(SICK["straggler"])
    assert found.rank == 1 and "Rank 1 on node0" in found.sentence
    assert found.gain and found.gain.factor == pytest.approx(1 / 0.7)
    assert diagnose(evidence(*gloo(0.0, 0.04))).rank == 0


def test_a_rank_may_be_slow_because_of_its_own_loading() -> None:
    """Replaying on all ranks makes it faster: the others' loading is not to blame."""
    parts: dict[str, Any] = {"transform": 0.1, "cpu": 0.1, "world_size": 2}
    slow = rank(0.1, 0.05, number=0, wait=0.05, **parts)
    other = rank(0.1, 0.05, number=1, wait=0.0, collective=0.05, **parts)
    found = diagnose(evidence(slow, other, **BUSY))
    assert (found.cause, found.rank) == ("straggler", 0)
    assert "because its batches come late" in found.sentence and "transform" in found.change


def test_ranks_that_wait_or_save_are_no_stragglers() -> None:
    parts: dict[str, Any] = {"world_size": 2, "decoding": 0.2, "cpu": 0.1, "wait": 0.07}
    ranks = [rank(0.1, 0.03, number=n, **parts) for n in (0, 1)]
    assert diagnose(evidence(*ranks, **BUSY)).cause == "decoding"
    saving = rank(0.1, 0.1, number=0, world_size=2, checkpoint=0.04)
    waiting = rank(0.1, 0.1, number=1, world_size=2, collective=0.04)
    assert diagnose(evidence(saving, waiting)).cause == "checkpointing"


# --- right, or silent -----------------------------------------------------------------------


def test_a_loop_that_hardly_waits_gets_no_batch_too_late() -> None:
    """Threads that compute beside the step, on cores that are full: measured, 54 % of the rate."""
    made: dict[str, Any] = {"transform": 0.19, "cpu": 0.17, "cpu_share": 0.9, "wait": 0.002}
    said = diagnose(one(0.1, 0.054, **made, **BUSY))
    assert said.cause == "too few cores" and said.sentence.startswith(
        "The loop waits for 2% of a step only, but making batches takes cores from it"
    )
    assert said.apply is None and said.gain is not None and said.gain.is_limit
    found = diagnose(one(0.1, 0.054, **made, **{**BUSY, "cores": 8}))
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
    words = f"{said.sentence} {said.change}"
    assert said.cause != "too few workers" and "num_workers" not in words, words
    assert "more workers" not in words.lower() and said.gain is not None


def test_cores_that_others_have_are_the_cause_where_less_work_brings_nothing() -> None:
    """Recorded of a loop over JPEGs beside processes that used 1.8 of 2 cores."""
    made = {"reading": 0.0889, "decoding": 0.016, "transform": 0.00327, "collating": 0.00242}
    made |= {"sending": 0.00187, "starved": 0.174, "cpu": 0.0226, "cpu_share": 0.05}
    seen = rank(0.0989, 0.015, wait=0.0851, epochs=Epochs(1.11, 0.11, 2), **made)
    said = diagnose(evidence(seen, cores=2, cores_busy=2.0, script_cores=0.199))
    assert said.cause == "too few cores" and said.apply is None and said.gain is not None
    assert "but they are ready to run and have no core for 61% of the time" in said.sentence
    assert said.change.startswith("Give the script 3 cores of its own")


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
        assert "waits 80.0 ms for its first batch: 80% of the loop's time" in said.sentence
        assert ("starts 2 workers anew" in said.sentence) == (workers > 0)
        assert ("(train.py:9)" in said.change) == (workers > 0) and "next(iter(" in said.change
        assert said.apply is None and said.gain is not None
        assert said.gain.factor == pytest.approx(0.1 / (0.03 if not workers else 0.0108), rel=0.01)


def test_rates_that_contradict_each_other() -> None:
    """Measured beside others: 4.5 steps/s as it is, 3.3 with batches replayed."""
    sick = one(0.222, 0.303, wait=0.1, decoding=0.3, cpu=0.2, **BUSY)
    said = diagnose(with_rates(sick, own=rate(1 / 4.5), replay=rate(1 / 3.3)))
    assert said.cause == "not enough evidence" and said.gain is None and said.apply is None
    assert said.sentence == (
        "The rates contradict each other: 4.50 steps/s as it is, and only 3.30 with loading free."
    )
    said = diagnose(one(0.1, 0.095, **HIDDEN))
    assert "waits for 46 % of a step" in said.sentence


def test_files_in_memory_are_never_slower() -> None:
    """Measured beside others: 53.9 steps/s as it is, 13.9 with the files in memory."""
    sick = one(1 / 53.9, 1 / 90, decoding=0.02, transform=0.01, cpu=0.03, **BUSY)
    said, alone = diagnose(with_rates(sick, warm=rate(1 / 13.9))), diagnose(sick)
    assert (said.cause, said.gain) == (alone.cause, alone.gain)
    assert said.notes[0].startswith("13.9 steps/s with the files in memory is unusable")
    noisy = with_rates(sick, own=rate(0.1, spread=0.3), warm=rate(0.12, spread=0.3))
    assert diagnose(noisy).notes == ()


def test_a_run_that_was_cut_says_so() -> None:
    said = diagnose(replace(SICK["decoding"], cut_s=90.0))
    assert said.cause == "decoding" and said.notes[0].startswith("The run was cut after 90.0 s")


# --- on a GPU -------------------------------------------------------------------------------


def on_gpu(trace: TraceFacts | None, **parts: Any) -> Diagnosis:
    return diagnose(evidence(rank(0.1, 0.1, **CUDA, **parts), trace=trace))


def test_what_the_gpu_hides_is_no_cause() -> None:
    assert on_gpu(GPU_TRACE, sync=0.06).cause == "computing"
    found = on_gpu(replace(GPU_TRACE, gpu_idle=0.5), sync=0.06, lines=line("sync", "x.cpu()"))
    assert found.cause == "synchronising" and "train.py:31 (x.cpu())" in found.change
    assert found.gain and found.gain.factor == pytest.approx(2.0)
    assert on_gpu(None, sync=0.06).cause == "synchronising"
    assert on_gpu(replace(GPU_TRACE, copy_exposed=0.3), copy=0.03).cause == "copying"
    assert on_gpu(replace(GPU_TRACE, copy_exposed=0.01), copy=0.03).cause == "computing"


def test_short_kernels_on_an_idle_gpu_are_launching() -> None:
    short = replace(GPU_TRACE, gpu_idle=0.6, kernel_s=4e-6)
    found = on_gpu(short)
    assert found.cause == "launching" and "reduce-overhead" in found.change
    assert on_gpu(replace(short, kernel_s=30e-6)).cause == "computing"
    assert on_gpu(replace(short, gpu_idle=0.1)).cause == "computing"


def test_pinned_memory_is_advised_where_it_is_not_there_yet() -> None:
    found = diagnose(SICK["copying"])
    assert found.apply == {"pin_memory": True}
    assert found.gain and found.gain.factor == pytest.approx(0.1 / (0.1 - 0.04 * 0.6))
    found = on_gpu(None, copy=0.04, pin_memory=True)
    assert found.apply is None and "non_blocking=True" in found.change


def test_a_computing_gpu_is_told_what_it_does_not_use_yet() -> None:
    flags, said = {"cuda"}, []
    for flag in ("amp", "compile", "fused_optimizer"):
        seen = rank(0.1, 0.099, optimizer=0.02, device="cuda:0", flags=frozenset(flags))
        said.append(diagnose(evidence(seen)).change)
        flags.add(flag)
    assert ["autocast" in said[0], "compile" in said[1], "fused=True" in said[2]] == [True] * 3
    fast = rank(0.1, 0.099, device="cuda:0", dtype="bfloat16", flags=frozenset(["cuda", "compile"]))
    assert diagnose(evidence(fast)).cause == NOTHING
    low = diagnose(evidence(fast, utilisation=Utilisation(mfu=0.12)))
    assert low.cause == "computing" and "only 12% of the device's peak" in low.change.lower()
    assert diagnose(evidence(fast, utilisation=Utilisation(mfu=0.4))).cause == NOTHING
    assert diagnose(SICK[NOTHING]).change == "Leave it as it is.", "nothing of CUDA on a CPU"


# --- what to do -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("decoding", "`shardkit pack /data/imagenet/train --to lmdb`"),
        ("decoding", 'shardkit.open("train-lmdb"), 64,'),
        ("tokenizing", "`shardkit pack '/data/my texts' --to npy --tokenizer PATH_OR_NAME`"),
        ("tokenizing", 'TokenDataset("my texts-npy", seq_len=LENGTH), 64'),
        ("too few workers", "DataLoader(..., num_workers=2, persistent_workers=True)"),
        ("transform", "train.py:31 (blur(x))"),
        ("synchronising", "train.py:31 (loss.item())"),
        ("logging", "train.py:31 (print(loss))"),
    ],
)
def test_a_change_can_be_copied(cause: Cause, words: str) -> None:
    assert words in diagnose(SICK[cause]).change


def test_what_can_be_applied() -> None:
    found = diagnose(SICK["too few workers"])
    assert found.apply == {"num_workers": 2, "persistent_workers": True}
    assert "The loop's own process" in found.sentence and "1.8 of 4 cores" in found.sentence
    found = diagnose(SICK["epoch starts"])
    assert found.apply == {"persistent_workers": True}
    found = diagnose(SICK["storage"])
    assert found.change.startswith("Pack the files") and not found.apply


def test_an_iterable_dataset_is_not_given_workers_without_a_word() -> None:
    """Each would yield everything."""
    found = diagnose(one(0.1, 0.04, num_workers=0, decoding=0.06, cpu=0.06, is_iterable=True))
    assert found.apply is None and "get_worker_info" in found.change


def test_epochs_whose_workers_stay_alive_can_only_be_longer() -> None:
    (seen,) = SICK["epoch starts"].ranks
    found = diagnose(evidence(replace(seen, loader=replace(seen.loader, persistent_workers=True))))
    assert found.cause == "epoch starts" and found.apply is None
    assert "longer epochs" in found.change and found.gain
    assert found.gain.factor == pytest.approx(1 / (1 - 0.55 / 2))


@pytest.mark.parametrize(("workers", "apply"), [(0, True), (8, False)])
def test_waiting_without_a_file_is_for_something_else(workers: int, apply: bool) -> None:
    """Those who wait for a network can wait side by side, and no folder is known to pack."""
    found = diagnose(
        one(0.1, 0.02, num_workers=workers, reading=0.08 * max(workers, 1), files=None)
    )
    assert found.cause == "storage" and "no file for it" in found.sentence
    assert (found.apply is not None) == apply == ("num_workers" in found.change)
    assert ("Fetch the samples once" in found.change) == (not apply)
    assert found.gain is not None and found.gain.factor > 2


def test_pictures_are_cropped_to_the_size_that_was_seen() -> None:
    sick = SICK["decoding"]
    seen = replace(sick, ranks=(replace(sick.ranks[0], picture_side=112),))
    assert "shardkit.images.train(112), workers" in diagnose(seen).change


@pytest.mark.parametrize(
    ("cause", "advice"),
    [
        ("too few workers", "`shardkit tune /data/imagenet/train --batch-size 64`"),
        ("decoding", "`shardkit convert /data/imagenet/train small/ --to lmdb --resize 256`"),
        ("storage", "shardkit stage /data/imagenet/train"),
    ],
)
def test_what_is_packed_already_is_not_packed_again(cause: Cause, advice: str) -> None:
    (seen,) = SICK[cause].ranks
    ours = replace(seen, loader=replace(seen.loader, kind="shardkit.Loader"))
    found = diagnose(replace(SICK[cause], ranks=(ours,)))
    assert found.cause == cause and advice in found.change
    assert "shardkit pack /" not in found.change
    assert found.apply is None


# --- any evidence ---------------------------------------------------------------------------


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
        return st.frozensets(st.sampled_from(["amp", "cuda"]))
    if arguments[-1] is Ellipsis:
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*map(anything, arguments))


@examples(0.5)  # each is large
@given(anything(Evidence))
def test_any_evidence_has_a_verdict(seen: Evidence) -> None:
    """It is complete, and promises of loading no more than free loading gives."""
    found = diagnose(seen)
    assert found.sentence and found.change
    loops = [predict.case_of(seen, each) for each in seen.ranks]
    if found.gain is None:
        return
    assert found.gain.factor >= 1 and found.gain.low <= found.gain.factor <= found.gain.high
    own = {"logging", "checkpointing", "synchronising", "copying", "launching", "straggler"}
    if found.cause not in own:
        most = max(predict.free_loading(loop).factor for loop in loops if loop)
        assert found.gain.factor <= most * (1 + 1e-9)
