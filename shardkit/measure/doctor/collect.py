"""From what watched processes wrote down to the evidence of each rank. Pure but for reading files.

A figure is the mean over steps that count, of blocks of one kind; over blocks it is the median,
which a machine that was busy for one of them does not move.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from shardkit.measure.doctor.evidence import (
    CodeLine,
    Epochs,
    FilesRead,
    LoaderFacts,
    Phase,
    RankEvidence,
    Rate,
    Rates,
    StepTimes,
    WorkerTimes,
)
from shardkit.system.file_systems import mount_at
from shardkit.watching.loop import is_users
from shardkit.watching.session import OWN, TRACE

RARE = ("checkpoint", "logging")
"""Parts that may take some steps only: their mean is over all steps, whatever else is done there,
and is added to the others' means."""

LEAST_STEPS = 5
"""Fewer steps of a kind give no rate."""

SHORT_EPOCH = 2
"""Steps of an epoch, up to which the first counts as any."""

FIRST_STEPS = 3
"""Of a loop, which never count: imports, allocations."""

MOST_POINTS = 4000
"""Of a timeline."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Process:
    """Events that one process wrote."""

    pid: int
    events: list[Event]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["is"] == kind]


def ranks(found: Sequence[Process], host: str) -> tuple[RankEvidence, ...]:
    """Return the processes that train, by rank. A process with no steps is none of them."""
    trainers = [one for one in found if _counted(main_steps(one))]
    seen = [_rank(one, *_fetches(one, found), host) for one in trainers]
    seen = sorted(seen, key=lambda rank: (rank.rank, rank.pid))
    if len({rank.rank for rank in seen}) < len(seen):  # processes that do not know of each other
        seen = [replace(rank, rank=number) for number, rank in enumerate(seen)]
    return tuple(seen)


def main_loop(process: Process) -> int:
    """Return the number of the loop that trains; else that of the one with most steps."""
    for event in process.of("session"):
        return int(event["loop"])
    counts = Counter(event["loop"] for event in process.of("step"))
    return counts.most_common(1)[0][0] if counts else 0


def main_steps(process: Process) -> list[Event]:
    """Return steps of that loop."""
    loop = main_loop(process)
    return [event for event in process.of("step") if event["loop"] == loop]


def _fetches(trainer: Process, found: Sequence[Process]) -> tuple[list[Event], list[str]]:
    """Return batches that were made for a process, but the first of each worker, which warms it up;
    and containers of samples that are open where they are made."""
    kept: list[Event] = []
    held: set[str] = set()
    for process in found:
        parent = process.pid if process is trainer else None
        for number, event in enumerate(process.of("fetch")):
            if (event["parent"] or parent) == trainer.pid:
                kept += [event] if number else []
                held.update(event["held"])
    return kept, sorted(filter(_is_data, held))


def _counted(every: list[Event]) -> list[Event]:
    """Return the steps that figures are taken from: of a script that ended early, all after the
    first."""
    steps = [step for step in every[FIRST_STEPS:] if step["phase"] != TRACE]
    return [s for s in steps if s["counts"]] or [s for s in steps if s["phase"] == OWN]


def _rank(process: Process, fetches: list[Event], held: list[str], host: str) -> RankEvidence:
    loop = main_loop(process)
    facts = next(event for event in process.of("loop") if event["loop"] == loop)
    known = {one.name for one in fields(LoaderFacts)} & facts.keys()
    loader = LoaderFacts(kind=facts["type"], **{name: facts[name] for name in known})
    every = main_steps(process)
    _mark_starts(every, loader)
    steps = [s for s in every[FIRST_STEPS:] if s["phase"] != TRACE]
    counted = _counted(every)
    own = [s for s in counted if s["phase"] == OWN] or counted
    flagging = [*process.of("counted"), *process.of("session over")]
    flags = {flag for event in flagging for flag in event["flags"]}
    times = _step_times(own, steps, facts["world"] > 1)
    epochs = _epochs(process, loop, loader.num_batches, times)
    rate = _rate(counted, OWN, times, _gap(epochs, times))
    if rate is None:
        raise ValueError(f"no step of {len(steps)} counts")
    replay, warm = (_rate(counted, kind, times, 0.0) for kind in ("replay", "warm"))
    sizes = [fetch["size"] for fetch in fetches if fetch["size"]]
    counts: Event = next(iter(process.of("counted")), {"dtype": ""})
    return RankEvidence(
        rank=facts["rank"],
        world_size=facts["world"],
        host=host,
        pid=process.pid,
        device="cuda" if "cuda" in flags else "cpu",
        loader=loader,
        step=times,
        worker=_worker(fetches, own, loader.num_workers),
        rates=Rates(rate, replay, warm),
        epochs=epochs,
        files=_files(fetches, held),
        lines=_lines(steps),
        num_ops=counts.get("ops"),
        flops=counts.get("flops"),
        dtype=counts["dtype"] or None,
        gpu=counts.get("gpu", ""),
        flags=frozenset(flags),
        samples_per_step=loader.batch_size or (round(fmean(sizes)) if sizes else None),
        picture_side=_picture_side(process.of("session")),
        handover=_handover(own) if loader.num_workers else 0.0,
        cpu_share=_mean(s["cpu"] for s in own) / max(times.total, 1e-9),
        timeline=_timeline(every),
    )


# --- steps --------------------------------------------------------------------------------


def _step_times(own: list[Event], every: list[Event], has_others: bool) -> StepTimes:
    """Return means of a step's parts. Where there are other ranks, backward's waiting is for
    them."""
    parts = {kind: _mean(_parts(s, kind) for s in own) for kind in _PARTS}
    parts |= {kind: _mean(_parts(s, kind) for s in every) for kind in RARE}
    waiting = _mean(_parts(s, "backward blocked") for s in own) if has_others else 0.0
    parts["backward"] -= waiting
    parts["collective"] += waiting
    # What a step did rarely must not be counted here, where few steps may hold too many of them.
    others = [s["busy"][0] - _parts(s, *_PARTS, *RARE, "wait") for s in own]
    return StepTimes(
        wait=_mean(s["wait"][0] + _parts(s, "wait") for s in own if not s["starts"]),
        other=max(0.0, _mean(others)),
        blocked=_mean(_blocked(s) for s in own),
        **parts,
    )


_PARTS = ("copy", "backward", "optimizer", "collective", "sync")


def _parts(step: Event, *kinds: str) -> float:
    """Return seconds of some parts; ``wait`` is for batches of another loader, beside its own."""
    return float(sum(step["parts"].get(kind, 0.0) for kind in kinds))


def _blocked(step: Event) -> float:
    """Return seconds that the loop's thread waited for something in the script's own code."""
    wall, cpu, starved = step["busy"]
    known = ("backward blocked", "collective", "sync", "copy", "optimizer", "wait", *RARE)
    return float(max(0.0, wall - cpu - starved - _parts(step, *known)))


def _rate(counted: list[Event], kind: str, times: StepTimes, gap: float) -> Rate | None:
    """Return steps a second of one kind; ``gap`` is what a step has of the start of its epoch."""
    blocks: dict[int, list[float]] = defaultdict(list)
    for step in counted:
        if step["phase"] == kind and not step["starts"]:
            # Replayed, batches of another loader would cost nothing either.
            rare = _parts(step, *RARE, *(["wait"] if kind == "replay" else []))
            blocks[step["block"]].append(step["wait"][0] + step["busy"][0] - rare)
    num = sum(map(len, blocks.values()))
    if not num or (kind != OWN and num < LEAST_STEPS):
        return None
    usual = gap + times.logging + times.checkpoint
    rates = [1 / max(fmean(block) + usual, 1e-9) for block in blocks.values()]
    return Rate(median(rates), min(rates), max(rates), num)


# --- epochs -------------------------------------------------------------------------------


def _mark_starts(steps: list[Event], loader: LoaderFacts) -> None:
    """Mark the steps that an epoch starts with: until every worker has made all the batches that it
    makes ahead, batches come late. Short epochs have no others: then only the first is marked."""
    ramp = 1 + loader.num_workers * (loader.prefetch_factor or 0)
    epochs: dict[int, list[Event]] = defaultdict(list)
    for step in steps:
        epochs[step["epoch"]].append(step)
    longest = max((len(epoch) for epoch in epochs.values()), default=0)
    num = ramp if longest > 2 * ramp else int(longest > SHORT_EPOCH)
    for epoch in epochs.values():
        for place, step in enumerate(epoch):
            step["starts"] = epoch[0]["first"] is not None and place < num


def _gap(epochs: Epochs, times: StepTimes) -> float:
    """Return seconds a step that beginning its epoch costs, beside what is in its own waiting."""
    if epochs.steps <= SHORT_EPOCH:
        return 0.0
    return times.total * epochs.share / max(1 - epochs.share, 1e-9)


def _epochs(process: Process, loop: int, num_batches: int | None, times: StepTimes) -> Epochs:
    """Return what the starts of epochs cost; the first epoch of all has imports in it."""
    steps = main_steps(process)
    starts: dict[int, list[Event]] = defaultdict(list)
    for step in steps:
        if step["starts"] and step["phase"] != "replay":
            starts[step["epoch"]].append(step)
    whole = [start for start in starts.values() if start[0]["first"] is not None]
    ends = [e for e in process.of("epoch end") if e["loop"] == loop]
    length = num_batches or (len(steps) / len(ends) if ends else None)
    if earlier := [*Counter(step["epoch"] for step in steps).values()][:-1]:
        length = median(earlier)  # a loop may break off
    firsts = [step["first"] for step in steps if step["first"] is not None]
    num, per_epoch = len(firsts), len(steps) / max(len(firsts), 1)
    if per_epoch <= SHORT_EPOCH:  # each step waits for its epoch to begin
        first = median(firsts[1:] or firsts)
        return Epochs(first, first / per_epoch / max(times.total, 1e-9), num, per_epoch)
    if not whole or length is None:
        return Epochs(num=num, steps=per_epoch)
    lost = median(_lost(start, times.wait) for start in whole[1:] or whole)
    first = median(start[0]["first"] for start in whole[1:] or whole)
    return Epochs(first, lost / (lost + length * max(times.total, 1e-9)), num, per_epoch)


def _lost(start: list[Event], usual: float) -> float:
    """Return seconds that the loop waited longer than usual while an epoch started."""
    waits = float(sum(step["wait"][0] for step in start[1:]))
    return max(0.0, float(start[0]["first"]) + waits - usual * len(start))


def _timeline(steps: list[Event]) -> tuple[tuple[float, Phase, float, float], ...]:
    start = steps[0]["t"] - steps[0]["wait"][0]
    return tuple(
        (s["t"] - s["wait"][0] - start, s["phase"], s["wait"][0], s["wait"][0] + s["busy"][0])
        for s in steps[:MOST_POINTS]
        if s["phase"] != TRACE
    )


def _lines(steps: list[Event]) -> tuple[CodeLine, ...]:
    """Return lines of timed calls, by seconds a step."""
    found: dict[tuple[str, str, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for step in steps:
        for kind, file, line, seconds, calls in step["lines"]:
            found[kind, file, line][0] += seconds
            found[kind, file, line][1] += calls
    num = max(len(steps), 1)
    lines = [
        CodeLine(file, line, kind, kind, seconds / num, calls / num)
        for (kind, file, line), (seconds, calls) in found.items()
    ]
    return tuple(sorted(lines, key=lambda one: -one.seconds)[:20])


# --- batches ------------------------------------------------------------------------------


def _worker(fetches: list[Event], own: list[Event], num_workers: int) -> WorkerTimes:
    """Return means of what making a batch took. Waiting, of files read or of a network, is reading,
    wherever it happens: decoders read as they decode."""
    if not fetches:
        return WorkerTimes()
    totals: dict[str, float] = defaultdict(float)
    for fetch in fetches:
        for name, seconds in _of_fetch(fetch):
            totals[name] += seconds
    found = {name: value / len(fetches) for name, value in totals.items()}
    if num_workers:
        found["sending"] += _handover(own)
    return WorkerTimes(**found)


def _handover(own: list[Event]) -> float:
    """Return seconds on a core by which the loop takes a batch from a worker. Where epochs start,
    it starts workers meanwhile."""
    return _mean(s["wait"][1] for s in own if not s["starts"])


def _of_fetch(fetch: Event) -> Iterator[tuple[str, float]]:
    for region, name in _REGIONS.items():
        wall, cpu, starved, kernel = fetch.get(region, (0.0, 0.0, 0.0, 0.0))
        reads = kernel if name == "transform" else 0.0  # decoders and collating ask for memory
        yield name, cpu - reads
        yield "reading", reads
        yield ("collating" if name == "collating" else "reading"), max(0.0, wall - cpu - starved)
        yield "starved", starved
        yield "cpu", cpu
    # Our own loaders say how long each part took, and where the time of all went.
    said, starved = sum(fetch.get(name, 0.0) for name in _SAID), fetch.get("starved", 0.0)
    for name in _SAID:
        yield name, fetch.get(name, 0.0) * (1 - min(1.0, starved / max(said, 1e-9)))
    yield "starved", starved
    yield "cpu", fetch.get("cpu", 0.0)
    yield "sending", fetch["sending"]
    yield "cpu", fetch["sending"]


_SAID = ("reading", "decoding", "transform", "collating")
"""The parts of making a batch that our own loaders name."""

_REGIONS = {
    "dataset": "transform",
    "decode": "decoding",
    "tokenize": "tokenizing",
    "collate": "collating",
}


def _files(fetches: list[Event], held: list[str]) -> FilesRead | None:
    """Return what the dataset opened for its batches, or else has open; libraries that it imports
    on its way are not counted."""
    opened = [path for fetch in fetches for path in fetch["paths"] if _is_data(path)]
    paths = opened or held
    if not paths:
        return None
    sizes = []
    for path in paths[:500]:
        with suppress(OSError):  # gone since
            sizes.append(os.stat(path).st_size)
    folder = os.path.commonpath([os.path.dirname(path) for path in paths])
    endings = Counter(Path(path).suffix.lower() for path in paths)
    return FilesRead(
        folder=folder,
        endings=dict(endings.most_common(5)),
        per_batch=_mean(fetch["opened"] for fetch in fetches) if opened else 0.0,
        mean_bytes=_mean(sizes),
        file_system=mount.kind if (mount := mount_at(Path(folder))) else "",
        held_bytes=None if opened else sum(sizes),
    )


def _is_data(path: str) -> bool:
    return is_users(path) and not path.startswith(("/proc/", "/dev/", "/sys/"))


def _picture_side(sessions: list[Event]) -> int | None:
    """Return the larger side of the pictures, by the first tensor of a batch that looks like some:
    (B, C, H, W) or (B, H, W, C)."""
    for shape in (shape for event in sessions for shape in event["shapes"]):
        if len(shape) == 4 and 3 in (shape[1], shape[3]):
            return int(max(shape[2:] if shape[1] == 3 else shape[1:3]))
    return None


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
