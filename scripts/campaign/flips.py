"""One flipped bit in any file of a dataset: verify finds it, and nothing wrong is ever read."""

from __future__ import annotations

import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Kind, Outcome, Place
from compare import same
from corpora import CONTAINERS, PACKED
from trial import NOTHING, Trial

import shardkit


def flip(case: Case, place: Place) -> Outcome:
    rng = case.random()
    name = f"{rng.choice(PACKED)}-{rng.choice(CONTAINERS)}"
    good, bad = place.corpora / "packed" / name, place.work / name
    files = sorted(path.name for path in good.iterdir())
    weights = None if rng.random() < 0.5 else [(good / file).stat().st_size for file in files]
    file = rng.choices(files, weights)[0]
    data = bytearray((good / file).read_bytes())
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    bad.mkdir()
    for other in files:
        if other != file:
            os.link(good / other, bad / other)
    (bad / file).write_bytes(data)
    return use(good, bad, f"{name}/{file}, bit {bit} of byte {at} of {len(data)}")


def use(good: Path, bad: Path, where: str) -> Outcome:
    """Everything that must find the damage, or not be touched by it."""
    trial = Trial()
    outcome = trial.outcome
    result = trial.attempt(f"verify ({where})", lambda: shardkit.verify(bad, progress=False))
    if result is not NOTHING and result.ok:
        outcome.finding(f"verify does not find {where}")
    truth = read_whole(good)
    dataset = trial.attempt(f"open ({where})", lambda: shardkit.open(bad, verify=True))
    if dataset is not NOTHING:
        for name, check in {"samples": samples, "labels": labels, "find": find}.items():
            wrong = trial.attempt(f"{name} ({where})", partial(check, dataset, truth))
            if wrong is not NOTHING and wrong:
                outcome.finding(f"{name}, verify=True: {wrong}; {where}")
        wrong = trial.attempt(f"Loader ({where})", lambda: batches(dataset, truth))
        if wrong is not NOTHING and wrong:
            outcome.finding(f"Loader of verify=True: {wrong}; {where}")
    return outcome


Truth = dict[str, tuple[int, dict[str, Any]]]
"""Key -> row, and the sample."""


@cache
def read_whole(good: Path) -> Truth:
    """What was packed."""
    dataset = shardkit.open(good)
    return {str(sample["__key__"]): (row, sample) for row, sample in enumerate(dataset)}


def samples(dataset: shardkit.Dataset, truth: Truth) -> str:
    """Row by row, so that one refusal does not hide what the others give; then all at once."""
    if len(dataset) != len(truth):
        return f"{len(dataset)} samples, {len(truth)} were packed"
    for row in range(len(dataset)):
        try:
            sample = dataset[row]
        except shardkit.ShardkitError:
            continue
        wrong = unlike(row, sample, truth)
        if wrong:
            return wrong
    for row, sample in enumerate(dataset.__getitems__(range(len(dataset)))):
        wrong = unlike(row, sample, truth)
        if wrong:
            return f"in a batch: {wrong}"
    return ""


def unlike(row: int, sample: dict[str, Any], truth: Truth) -> str:
    """What is wrong with a sample, in words."""
    key = sample["__key__"]
    if key not in truth or truth[key][0] != row:
        return f"row {row} has key {key!r}"
    expected = truth[key][1]
    if sample.keys() != expected.keys():
        return f"row {row} has fields {[*sample]}, {[*expected]} were packed"
    for name, value in sample.items():
        if not same(value, expected[name]):
            return f"row {row}, field {name!r} is {value!r:.60}, not {expected[name]!r:.60}"
    return ""


def labels(dataset: shardkit.Dataset, truth: Truth) -> str:
    """All labels from the index alone, and all keys."""
    keys = dataset.keys()
    if keys != [*truth]:
        return "keys are not those packed"
    expected = [sample.get("cls") for _, sample in truth.values()]
    if not isinstance(expected[0], int):
        return ""
    got = np.asarray(dataset.column("cls")).tolist()
    return "" if got == expected else f"column('cls') is {got}, {expected} was packed"


def find(dataset: shardkit.Dataset, truth: Truth) -> str:
    for key, (row, sample) in truth.items():
        try:
            found = dataset.find(key)
            got = dataset[found]
        except (KeyError, shardkit.ShardkitError):
            continue
        if found != row or not same(got, sample):
            return f"find({key!r}) gives row {found}, another sample"
    return ""


def batches(dataset: shardkit.Dataset, truth: Truth) -> str:
    loader = shardkit.Loader(dataset, 4, workers=0, shuffle="full", with_keys=True, last="pad")
    for batch in loader:
        for slot, key in enumerate(batch["__key__"]):
            if key not in truth:
                return f"key {key!r}"
            sample = truth[key][1]
            for name in sample.keys() - {"__key__"}:
                if not same(batch[name][slot], _as_batched(sample[name])):
                    return f"field {name!r} of {key!r} is not what was packed"
    return ""


def _as_batched(value: Any) -> Any:
    """As it comes in a batch: numbers are tensors."""
    import torch

    return torch.tensor(value) if isinstance(value, int) else value


KIND = Kind(
    "flips",
    "one flipped bit in any file of a dataset",
    flip,
    default=500,
    batch=50,
    deadline_s=60,
)
