"""Evidence and diagnoses as the doctor makes them, for tests: of a script that waits for pictures
to be decoded, with everything seen, with several ranks, with a GPU, and with next to nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardkit.measure.doctor.diagnosis import Applicable, Applied, Diagnosis, Gain
from shardkit.measure.doctor.evidence import (
    CodeLine,
    Epochs,
    Evidence,
    FilesRead,
    GpuEvidence,
    LoaderFacts,
    Phase,
    RankEvidence,
    Rate,
    Rates,
    StepTimes,
    SystemEvidence,
    TraceFacts,
    Utilisation,
    WorkerTimes,
)

Timeline = tuple[tuple[float, Phase, float, float], ...]


def sample_timeline(steps: int = 400, slow: float = 1.0) -> Timeline:
    """Blocks of 20 steps as the script makes them, replayed and warm, in turn."""
    phases: tuple[Phase, ...] = ("own", "replay", "warm")
    waits = {"own": 0.085, "replay": 0.001, "warm": 0.08}
    made, now = [], 0.0
    for number in range(steps):
        phase = phases[number // 20 % 3] if number >= 80 else "own"
        wait = waits[phase] * (0.8 + 0.4 * (number * 7 % 11) / 10)
        made.append((now, phase, wait, wait + 0.035 * slow))
        now += wait + 0.035 * slow
    return tuple(made)


def sample_loader(**changes: Any) -> LoaderFacts:
    facts = LoaderFacts(
        kind="DataLoader",
        dataset="ImageFolder",
        batch_size=64,
        num_batches=782,
        num_workers=2,
        worker_type="process",
        prefetch_factor=2,
        pin_memory=False,
        persistent_workers=False,
        is_iterable=False,
    )
    return replace(facts, **changes)


def sample_rank(**changes: Any) -> RankEvidence:
    """A loop that waits for pictures to be decoded."""
    rank = RankEvidence(
        rank=0,
        world_size=1,
        host="",
        pid=4711,
        device="cpu",
        loader=sample_loader(),
        step=StepTimes(
            wait=0.085, copy=0.002, backward=0.018, optimizer=0.004, sync=0.001, other=0.010
        ),
        worker=WorkerTimes(
            reading=0.012,
            decoding=0.130,
            transform=0.018,
            collating=0.004,
            sending=0.006,
            cpu=0.150,
        ),
        rates=Rates(
            own=Rate(8.33, 8.10, 8.51, 180),
            replay=Rate(27.8, 27.1, 28.3, 80),
            warm=Rate(8.70, 8.41, 8.90, 80),
        ),
        epochs=Epochs(first_batch_s=1.25, share=0.03, num=2),
        files=FilesRead("/data/train", {".jpg": 25_000, ".png": 12}, 64.0, 110_000.0, "ext4"),
        lines=(
            CodeLine("/home/me/train.py", 41, "loss.item()", "sync", seconds=0.001, calls=1.0),
            CodeLine("/home/me/data.py", 30, "__getitem__", "profile-worker", share=0.76),
        ),
        num_ops=420,
        flops=1.2e9,
        dtype="float32",
        flags=frozenset({"fused_optimizer", "compile"}),
        samples_per_step=64,
        cpu_share=0.4,
        timeline=sample_timeline(),
    )
    return replace(rank, **changes)


def sample_system(**changes: Any) -> SystemEvidence:
    system = SystemEvidence(
        seconds=60.0,
        cores=2,
        cores_busy=1.92,
        script_cores=1.85,
        throttled=0.12,
        memory_available=3_200_000_000,
        shm_free=12_000_000,
    )
    return replace(system, **changes)


def sample_gpu(**changes: Any) -> GpuEvidence:
    gpu = GpuEvidence(
        name="NVIDIA H200",
        utilisation=0.97,
        memory_used=40_000_000_000,
        memory_total=150_000_000_000,
        throttle={"power cap": 0.4, "thermal": 0.0},
    )
    return replace(gpu, **changes)


def sample_trace(**changes: Any) -> TraceFacts:
    trace = TraceFacts(1.2, 0.62, kernels_per_s=41_000.0, kernel_s=6.2e-6, copy_exposed=0.04)
    return replace(trace, **changes)


def sample_evidence(**changes: Any) -> Evidence:
    """One rank, no GPU."""
    evidence = Evidence(
        command=("python", "train.py", "--epochs", "2"),
        folder="/home/me",
        seconds=62.0,
        ended="exit code 0",
        python="3.11.7",
        torch="2.13.0+cpu",
        ranks=(sample_rank(),),
        system=sample_system(),
        utilisation=Utilisation(accelerator=0.30),
    )
    return replace(evidence, **changes)


def sample_evidence_on_gpu() -> Evidence:
    """With all that can be seen of a GPU."""
    return sample_evidence(
        ranks=(sample_rank(device="cuda:0", flags=frozenset({"amp", "cuda"})),),
        system=sample_system(gpus=(sample_gpu(),)),
        trace=sample_trace(),
        utilisation=Utilisation(
            accelerator=0.30,
            flops_per_s=1.2e14,
            mfu=0.121,
            peak=9.895e14,
            reference=3300.0,
            of_reference=0.161,
        ),
        notes=("py-spy is not installed: pip install py-spy shows the costly lines",),
    )


def sample_evidence_of_ranks(num: int = 4, slow: int = 2) -> Evidence:
    """Several ranks, one of which the others wait for."""
    quick = StepTimes(wait=0.004, backward=0.02, optimizer=0.004, collective=0.05, other=0.012)
    tardy = replace(quick, collective=0.002, other=0.06)
    return sample_evidence(
        ranks=tuple(
            sample_rank(
                rank=number,
                world_size=num,
                host="node0",
                pid=4711 + number,
                step=tardy if number == slow else quick,
                timeline=sample_timeline(200),
                lines=(),
            )
            for number in range(num)
        )
    )


def sample_diagnosis(**changes: Any) -> Diagnosis:
    """Decoding."""
    diagnosis = Diagnosis(
        cause="decoding",
        sentence="decode-bound: the loop waits 71 % of its time for batches, and 76 % of making"
        " one is decoding pictures",
        because=(
            "a step waits 85 ms of 120 ms for its batch",
            "with loading free the loop does 27.8 steps/s, as it is 8.33",
        ),
        change="shardkit pack /data/train /data/train-packed --max-side 256",
        gain=Gain(2.4, 2.0, 2.7, "min(G 27.8, 2 workers / 0.1 s) / 8.33 steps/s"),
        then=("4 workers in place of 2, if the machine had more cores",),
    )
    return replace(diagnosis, **changes)


def sample_straggler(slow: int = 2) -> Diagnosis:
    """A slow rank."""
    return Diagnosis(
        cause="straggler",
        sentence=f"rank {slow} is slow: the others wait 50 ms a step for it",
        because=("rank 2 waits 2.00 ms in all-reduces, the others 50.0 ms",),
        change="look at what rank 2 does besides: it spends 60 ms where the others spend 12 ms",
        gain=Gain(1.5, 1.4, 1.6, "90 ms / 60 ms"),
        rank=slow,
    )


def sample_workers() -> Diagnosis:
    """A change that can be applied."""
    return sample_diagnosis(
        cause="too few workers",
        sentence="too few workers: one makes 6 batches a second, the loop could take 28",
        change="DataLoader(..., num_workers=2)",
        apply=Applicable(loader={"num_workers": 2}),
    )


def sample_applied(**changes: Any) -> Applied:
    return replace(Applied("samples/s", 533.0, 1190.0, 2.4), **changes)
