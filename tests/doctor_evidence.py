"""Evidence for tests of the doctor: a healthy loop, of which a test changes what it is about."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardkit.measure.doctor.evidence import (
    Epochs,
    Evidence,
    FilesRead,
    LoaderFacts,
    RankEvidence,
    Rate,
    Rates,
    StepTimes,
    SystemEvidence,
    TraceFacts,
    WorkerTimes,
)

LOADER = LoaderFacts(
    kind="DataLoader",
    dataset="ImageFolder",
    batch_size=64,
    num_batches=100,
    num_workers=2,
    worker_type="process",
    prefetch_factor=2,
    pin_memory=False,
    persistent_workers=False,
    is_iterable=False,
)

SYSTEM = SystemEvidence(
    seconds=60.0,
    cores=4,
    cores_busy=2.2,
    script_cores=2.1,
    throttled=0.0,
)

PICTURES = FilesRead("/data/imagenet/train", {".jpg": 6400}, 64.0, 107_000.0, "ext4")
TEXTS = FilesRead("/data/my texts", {".txt": 6400}, 64.0, 4_000.0, "ext4")

GPU_TRACE = TraceFacts(1.0, gpu_idle=0.05, kernels_per_s=1e4, kernel_s=50e-6, copy_exposed=0.0)


def rate(step_s: float, num: int = 100, spread: float = 0.02) -> Rate:
    """Of steps that take so long, with blocks this much above and below."""
    each = 1 / step_s
    return Rate(each, each * (1 - spread), each * (1 + spread), num)


def rank(
    step_s: float = 0.050, free_s: float | None = 0.049, number: int = 0, **parts: Any
) -> RankEvidence:
    """A rank that takes ``step_s`` a step, and ``free_s`` with its batches replayed; None for a
    quick look without that. ``wait`` is the difference unless it is given. Names of fields go
    where they belong: of the step, of the worker, of the loader, or of the rank."""
    wait = max(0.0, step_s - (free_s or step_s))
    step = StepTimes(**{"wait": wait, **taken(parts, StepTimes)})
    rest = step_s - step.total
    step = replace(step, other=step.other + max(0.0, rest))
    made = {"cpu": 0.0, **taken(parts, WorkerTimes)}
    loader = replace(LOADER, **taken(parts, LoaderFacts))
    replay = None if free_s is None else rate(free_s)
    fields: dict[str, Any] = {
        "rates": Rates(rate(step_s), replay),
        "epochs": Epochs(num=1),
        "files": PICTURES,
        "device": "cpu",
        "world_size": 1,
        **parts,
    }
    return RankEvidence(
        rank=number,
        host=fields.pop("host", "node0"),
        pid=1000 + number,
        loader=loader,
        step=step,
        worker=WorkerTimes(**made),
        **fields,
    )


def taken(parts: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Takes the fields of a kind of facts out of ``parts``."""
    return {name: parts.pop(name) for name in kind.__dataclass_fields__ if name in parts}


def evidence(*ranks: RankEvidence, **changes: Any) -> Evidence:
    """Of these ranks; fields of the machine go there."""
    system = replace(SYSTEM, **taken(changes, SystemEvidence))
    return Evidence(
        command=("python", "train.py"),
        folder="/home/me",
        seconds=60.0,
        ended="exit code 0",
        python="3.12.3",
        torch="2.13.0",
        ranks=ranks,
        system=system,
        **changes,
    )


RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Evidence:
    """What ``check_doctor.py --record`` saw of a script of ``tests/sick``."""
    found: Evidence = built(Evidence, json.loads((RECORDED / f"{name}.json").read_text()))
    return found


def built(kind: Any, value: Any) -> Any:
    """A value of the evidence from JSON, which has no tuple, no set and no infinity."""
    arguments = typing.get_args(kind)
    if dataclasses.is_dataclass(kind) and value is not None:
        hints = typing.get_type_hints(kind)
        return kind(**{name: built(hints[name], one) for name, one in value.items()})  # type: ignore[operator]
    if isinstance(kind, types.UnionType):
        return None if value is None else built(arguments[0], value)
    origin = typing.get_origin(kind)
    if origin is tuple:
        each = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        return tuple(built(one, item) for one, item in zip(each, value, strict=True))
    if origin is frozenset:
        return frozenset(value)
    return math.inf if kind is float and value is None else value
