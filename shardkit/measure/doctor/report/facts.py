"""What was seen of the script, as names and text: the same for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePath

from shardkit.measure.doctor.diagnosis import Diagnosis
from shardkit.measure.doctor.evidence import (
    CodeLine,
    Evidence,
    LoaderFacts,
    Phase,
    RankEvidence,
    Rate,
    Rates,
    StepTimes,
    WorkerTimes,
)
from shardkit.measure.report.words import amount, milliseconds, percent, shortened, times
from shardkit.system.byte_sizes import format_bytes

STEP = {
    "wait": "wait for the batch",
    "copy": "copies to the device",
    "other": "forward, and the rest",
    "backward": "backward",
    "optimizer": "optimizer",
    "collective": "all-reduces, barriers",
    "sync": ".item() and its like",
    "logging": "logging",
    "checkpoint": "checkpoints",
}
"""The parts of a step, in the order of a loop."""

MAKING = {
    "reading": "reading",
    "decoding": "decoding pictures",
    "tokenizing": "tokenizing",
    "transform": "the rest of the transform",
    "collating": "collating",
    "sending": "sending to the loop",
    "starved": "waiting for a core",
}
"""The parts of making a batch, in their order."""

RATES: dict[Phase, str] = {
    "own": "as it is",
    "replay": "loading free (G)",
    "warm": "files in memory (P)",
}

LEAST_SHARE = 0.005
"""A part of a step with less of it is not worth a line."""

MOST_LINES = 6
"""Lines of code that are named."""

LONGEST_NAME = 26
"""Characters of a name that does not come from us."""

LONGEST_PLACE = 36
"""Characters of the path of a file of code."""


def parts(times: StepTimes | WorkerTimes) -> dict[str, float]:
    """Seconds of each part of a step, or of making a batch, that is worth a line."""
    known, total = STEP if isinstance(times, StepTimes) else MAKING, times.total
    if not 0 < total < math.inf:
        return {}
    found = {name: getattr(times, name) for name in known}
    return {name: one for name, one in found.items() if one >= LEAST_SHARE * total}


def rates_of(rates: Rates) -> dict[Phase, Rate]:
    """Those that were measured."""
    found = {phase: getattr(rates, phase) for phase in RATES}
    return {phase: rate for phase, rate in found.items() if rate is not None and _is_known(rate)}


RATE_HEADS = ("rate", "steps/s", "range", "steps")


def rate_cells(rates: Rates) -> list[tuple[str, ...]]:
    """A line for each rate that was measured."""
    return [
        (
            RATES[phase],
            amount(rate.steps_per_s),
            f"{amount(rate.low)} to {amount(rate.high)}",
            str(rate.num_steps),
        )
        for phase, rate in rates_of(rates).items()
    ]


def _is_known(rate: Rate) -> bool:
    return all(map(math.isfinite, (rate.steps_per_s, rate.low, rate.high)))


def chosen_rank(evidence: Evidence, diagnosis: Diagnosis) -> RankEvidence | None:
    """The one to look at: the slow one, if one is; None if nothing was seen of any."""
    ranks = evidence.ranks
    return next((one for one in ranks if one.rank == diagnosis.rank), ranks[0] if ranks else None)


def name(text: str) -> str:
    """A name in a line."""
    return shortened(text, LONGEST_NAME)


def loader_in_words(loader: LoaderFacts) -> str:
    """``DataLoader over ImageFolder, batches of 64, 4 processes``."""
    workers = "no worker"
    if loader.num_workers:
        plural = {"process": "processes"}.get(loader.worker_type, f"{loader.worker_type}s")
        kind = loader.worker_type if loader.num_workers == 1 else plural
        workers = f"{loader.num_workers} {kind}"
    batches = "" if loader.batch_size is None else f", batches of {loader.batch_size}"
    ahead = "" if loader.prefetch_factor is None else f", {loader.prefetch_factor} ahead each"
    flags = [("pin_memory", loader.pin_memory), ("persistent", loader.persistent_workers)]
    said = "".join(f", {word}" for word, is_so in flags if is_so)
    return f"{name(loader.kind)} over {name(loader.dataset)}{batches}, {workers}{ahead}{said}"


def rate_in_words(rank: RankEvidence) -> str:
    """Steps a second as the loop is, and samples where these are known."""
    rate = rank.rates.own.steps_per_s
    samples = rank.samples_per_step
    also = "" if samples is None else f", {amount(rate * samples)} samples/s"
    return f"{amount(rate)} steps/s{also}"


def files_in_words(rank: RankEvidence) -> str | None:
    """What the dataset opens."""
    files = rank.files
    if files is None:
        return None
    kinds = ", ".join(f"{name(ending) or 'no ending'}" for ending in [*files.endings][:3])
    if files.held_bytes is not None:
        size = format_bytes(files.held_bytes)
        where = f"below {files.folder} ({files.file_system})"
        return f"{size} that stay open{f' ({kinds})' if kinds else ''}, {where}"
    return (
        f"{amount(files.per_batch)} a batch, {format_bytes(files.mean_bytes)} each"
        f"{f' ({kinds})' if kinds else ''}, below {files.folder} ({files.file_system})"
    )


def epochs_in_words(rank: RankEvidence) -> str | None:
    """How long epochs take to begin; None if none was seen to begin."""
    epochs = rank.epochs
    if not epochs.num:
        return None
    begun = "1 epoch" if epochs.num == 1 else f"{epochs.num} epochs"
    return (
        f"the first batch comes after {amount(epochs.first_batch_s)} s, "
        f"{percent(epochs.share)} of the time ({begun})"
    )


def costly_lines(evidence: Evidence) -> list[CodeLine]:
    """The lines of code that cost most, by their share of a step or of the samples; of a line that
    several ranks were seen in, the dearest."""
    found: dict[tuple[str, int, str], tuple[float, CodeLine]] = {}
    for share, one in _shares_of_lines(evidence):
        key = (one.file, one.line, one.kind)
        if share >= LEAST_SHARE and (key not in found or share > found[key][0]):
            found[key] = (share, one)
    dearest = sorted(found.values(), key=lambda pair: pair[0], reverse=True)
    return [one for _, one in dearest[:MOST_LINES]]


def _shares_of_lines(evidence: Evidence) -> Iterator[tuple[float, CodeLine]]:
    pairs = [(rank.step.total, one) for rank in evidence.ranks for one in rank.lines]
    pairs += [(0.0, one) for one in evidence.lines]
    for step, one in pairs:
        yield one.seconds / step if one.seconds and step > 0 else one.share, one


def place(line: CodeLine, folder: str) -> str:
    """``train.py:41``; relative to where the script ran, if it lies below."""
    file = PurePath(line.file)
    inside = file.is_relative_to(folder) if folder else False
    shown = str(file.relative_to(folder)) if inside else line.file
    return f"{shortened(shown, LONGEST_PLACE)}:{line.line}"


def cost(line: CodeLine) -> str:
    """What a line of code costs."""
    if line.kind == "profile":
        return f"{percent(line.share)} of the main thread's time on a core"
    if line.kind == "profile-worker":
        return f"{percent(line.share)} of the workers' time on a core"
    calls = f", {times(line.calls)} calls" if line.calls else ""
    return f"{milliseconds(line.seconds)} a step{calls}"
