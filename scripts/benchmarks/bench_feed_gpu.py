"""The sections of bench_feed.py that want a GPU: workers beside launches, waiting, copies.

Where torch sees no CUDA device they are skipped.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from bench_run import Bench, Row, SkippedError, time_in_turn

from shardkit import images
from shardkit.loading.loader import Loader
from shardkit.loading.workers import WorkerType
from shardkit.measure.timing import Work
from shardkit.reading.dataset import Dataset

Step = Callable[[Any], None]
Span = tuple[float, float]

BATCH = 64
SIZE = 224
LAYERS = 400
"""Of a model that is nothing but launches: some 2,400 kernels a step, each of microseconds."""
SIDE = 4096
"""Of the matrices that stand for a large model: one product takes some 0.2 ms on an H200."""


def gpu_launches(bench: Bench) -> list[Row]:
    """A step of many small kernels, alone and beside workers that decode JPEGs (images/s)"""
    dataset = pictures(bench)
    step = many_launches()
    num_batches = len(dataset) // BATCH
    fixed = torch.zeros(BATCH, SIZE, SIZE, 3, dtype=torch.uint8, device="cuda")

    def alone() -> Work:
        for _ in range(num_batches):
            step(fixed)
        torch.cuda.synchronize()
        return Work(num_batches * BATCH)

    def fed(worker_type: WorkerType) -> Work:
        for batch in device_loader(dataset, worker_type):
            step(batch["image"])
        torch.cuda.synchronize()
        return Work(num_batches * BATCH)

    num = num_workers()
    result = bench.time(
        {
            "the step alone": alone,
            f"{num} threads": partial(fed, "thread"),
            f"{num} processes": partial(fed, "process"),
        }
    )
    return result.rows("the step alone")


def gpu_wait(bench: Bench) -> list[Row]:
    """A step of half as long again as a batch takes to make: how long the GPU waits (images/s)"""
    dataset = pictures(bench)
    shares: dict[str, list[float]] = {}

    def fed(name: WorkerType, step: Step) -> Work:
        events: list[Any] = []
        for batch in device_loader(dataset, name):
            events.append(record())
            step(batch["image"])
            events.append(record())
            events[-1].synchronize()  # as a loop that looks at its loss does
        shares.setdefault(name, []).append(idle_share(events))
        return Work(len(events) // 2 * BATCH)

    kinds: tuple[WorkerType, ...] = ("thread", "process")
    result = bench.time({name: partial(fed, name, longer_step(dataset, name)) for name in kinds})
    rows = []
    for name in kinds:
        percent = statistics.median(shares[name][-bench.rounds :]) * 100
        row = replace(result.row(name), note=f"waits {percent:.2f} % of the time")
        rows.append(bench.judge(row, 2, percent, is_most=True))
    return rows


def gpu_copy(bench: Bench) -> list[Row]:
    """The same step: how much of the copying to the GPU goes on while it computes (images/s)"""
    dataset = pictures(bench)
    step = longer_step(dataset, "thread")
    shares: list[float] = []

    def fed() -> Work:
        cuda = torch.profiler.ProfilerActivity.CUDA
        with torch.profiler.profile(activities=[cuda]) as profile:
            num = 0
            for batch in device_loader(dataset, "thread"):
                step(batch["image"])
                num += len(batch["image"])
            torch.cuda.synchronize()
        shares.append(copied_meanwhile(profile))
        return Work(num)

    result = bench.time({"2 ahead": fed})
    share = statistics.median(shares[-bench.rounds :])
    return [replace(result.row("2 ahead"), note=f"{share:.2f} of the copying beside kernels")]


# --- what they share ----------------------------------------------------------------------


def pictures(bench: Bench) -> Dataset:
    if not torch.cuda.is_available():
        raise SkippedError("torch sees no CUDA device")
    return Dataset(bench.large().packed("lmdb"))


def num_workers() -> int:
    """Half the cores: the others are for the loop, the copying, and the rest of the machine."""
    return max(2, len(os.sched_getaffinity(0)) // 2)


def device_loader(dataset: Dataset, worker_type: WorkerType) -> Loader:
    return Loader(
        dataset,
        BATCH,
        shuffle="full",
        transform=images.train(SIZE),
        workers=num_workers(),
        worker_type=worker_type,
        device="cuda",
    )


def many_launches() -> Step:
    layers = [torch.nn.Linear(256, 256) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers).cuda()

    def step(images: Any) -> None:
        out = model(images.flatten(1)[:, :256].float() / 255)
        out.square().mean().backward()
        model.zero_grad()

    return step


def longer_step(dataset: Dataset, worker_type: WorkerType) -> Step:
    """Matrix products that take the GPU 1.5 times as long as the workers take for a batch."""
    matrix = torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16)

    def load() -> Work:
        return Work(sum(len(batch["image"]) for batch in device_loader(dataset, worker_type)))

    def multiply() -> Work:
        for _ in range(100):
            matrix @ matrix
        torch.cuda.synchronize()
        return Work(100)

    timed = time_in_turn({"load": load, "multiply": multiply}, rounds=2)
    per_batch = BATCH / timed.row("load").samples_per_s
    times = round(1.5 * per_batch * timed.row("multiply").samples_per_s) + 1

    def step(images: Any) -> None:
        images.float().mean()
        for _ in range(times):
            matrix @ matrix

    return step


def record() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def idle_share(events: Sequence[Any]) -> float:
    """Of the time from the first step to the end of the last, on the GPU's own clock.

    ``events`` are start, end, start, end ... of the steps.
    """
    busy = sum(a.elapsed_time(b) for a, b in zip(events[::2], events[1::2], strict=True))
    return 1 - float(busy / events[0].elapsed_time(events[-1]))


def copied_meanwhile(profile: Any) -> float:
    """Share of the time of copies to the GPU in which a kernel ran, too."""
    copies: list[Span] = []
    kernels: list[Span] = []
    for event in profile.events():
        if event.device_type.name == "CUDA":
            span = event.time_range.start, event.time_range.end
            if "HtoD" in event.name:
                copies.append(span)
            elif not event.name.startswith(("Memcpy", "Memset")):
                kernels.append(span)
    return covered(copies, kernels)


def covered(spans: Sequence[Span], by: Sequence[Span]) -> float:
    """Share of the length of ``spans`` that lies in the union of ``by``."""
    union: list[Span] = []
    for start, end in sorted(by):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((start, end))
    common = sum(
        max(0.0, min(end, last) - max(start, first))
        for start, end in spans
        for first, last in union
    )
    return common / (sum(end - start for start, end in spans) or 1.0)
