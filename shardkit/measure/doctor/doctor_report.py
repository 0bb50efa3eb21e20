"""What the doctor says, section by section, in a terminal, as a page and as JSON. Nothing here
decides.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from textwrap import wrap
from typing import Any

from shardkit.measure.doctor.evidence import (
    Applied,
    CodeLine,
    Diagnosis,
    Evidence,
    Gain,
    LoaderFacts,
    Phase,
    RankEvidence,
    Rates,
    StepTimes,
    WorkerTimes,
)
from shardkit.measure.figures import amount, milliseconds, percent, shortened, table, times
from shardkit.measure.page import LEFT, Section, bar, page, showable
from shardkit.system.byte_sizes import format_bytes

VERSION = 1
"""Of the JSON; a higher one if a field goes or changes its meaning."""

WIDTH, INDENT = 100, "  "

MOST_RANKS = 8
"""Ranks that have a line each; all are in the JSON."""

WIDEST_NAME = 22

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

LONGEST_NAME, LONGEST_PLACE = 26, 36
"""Characters of a name that does not come from us, and of the path of a file of code."""


# --- in a terminal, as a page and as JSON -------------------------------------------------


def lines(
    evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None = None, width: int = WIDTH
) -> list[str]:
    """Return the report, a line each, none with more than ``width`` characters."""
    made: list[str] = []
    for section in sections(evidence, diagnosis, applied):
        title = [section.title] if section.title else []
        indent = INDENT if section.title else ""
        if not section.heads:
            body = _named(section.rows, width, indent)
        else:
            left = {number for number, head in enumerate(section.heads) if head in LEFT}
            heads = [section.heads] if section.heads[0] in ("rank", "rate") else []
            body = [f"{indent}{line}" for line in table([*heads, *section.rows], left)]
        made += ["", *title, *body]
    return [line[:width].rstrip() for line in made[1:]]


def _named(found: Sequence[Sequence[str]], width: int, indent: str) -> list[str]:
    """Return texts in lines of the width, each with its name on the left."""
    pairs = [(f"{name(head)}:" if head else "", text) for head, text in found]
    column = min(max(len(head) for head, _ in pairs) + 1, WIDEST_NAME)
    made = []
    for head, text in pairs:
        start = f"{indent}{head}".ljust(len(indent) + column)
        if len(head) >= column:
            start += " "
        after = " " * (len(indent) + column)
        # A path or a command is not to be cut at its hyphens: it is copied.
        made += wrap(
            text, width, initial_indent=start, subsequent_indent=after, break_on_hyphens=False
        ) or [start.rstrip()]
    return made


def as_page(
    evidence: Evidence,
    diagnosis: Diagnosis,
    applied: Applied | None = None,
    profile: str | None = None,
) -> str:
    """Return the page, as HTML; ``profile`` is the file that a profile was written to."""
    command = shlex.join(evidence.command)
    facts = [("command", command), ("folder", evidence.folder or ".")]
    if profile is not None:
        facts.append(("profile", f"{profile}, for speedscope"))
    verdict, *others = sections(evidence, diagnosis, applied)
    (_, sentence), *said = [(name, text) for name, text in verdict.rows]
    return page(f"shardkit doctor: {command}", [sentence], [*said, *facts], others)


def to_json(
    evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None = None
) -> dict[str, Any]:
    """Return plain values, which ``json.dumps`` takes with ``allow_nan=False``: sets are sorted
    lists, and what is no finite number is None."""
    plain = None if applied is None else asdict(applied)
    if applied is not None and plain is not None:
        plain["factor"] = applied.factor if applied.before else None
    whole = {"version": VERSION, "diagnosis": asdict(diagnosis), "applied": plain}
    made: dict[str, Any] = showable({**whole, "evidence": asdict(evidence)})
    return made


# --- all sections -------------------------------------------------------------------------


def sections(evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None) -> list[Section]:
    """Return all that is said.

    Names may hold any bytes, which Python reads as lone surrogates: all texts are made showable.
    """
    ranks = evidence.ranks
    # The slow one, if one is.
    rank = next((one for one in ranks if one.rank == diagnosis.rank), ranks[0] if ranks else None)
    said = diagnosis
    verdict = [("failed" if said.cause == "script failed" else "verdict", said.sentence)]
    verdict.append(("change", said.change))
    if said.gain is not None:
        verdict.append(("gain", gain_in_words(said.gain)))
    if applied is not None:
        verdict.append(("applied", applied_in_words(applied)))
    ended = "" if evidence.ended == "exit code 0" else f"; {evidence.ended}"
    versions = f"Python {name(evidence.python)}, torch {name(evidence.torch)}"
    run = f"watched for {amount(evidence.seconds)} s{ended}; {versions}"
    notes = enumerate((*said.notes, *evidence.notes))
    last = [*(("" if number else "note", text) for number, text in notes), ("run", run)]
    made = [Section("", verdict)]
    if rank is not None:
        where = f" on rank {rank.rank}" if len(evidence.ranks) > 1 else ""
        rate, samples = rank.rates.own.steps_per_s, rank.samples_per_step
        step = f"a step{where}: {milliseconds(rank.step.total)}, {amount(rate)} steps/s"
        if samples is not None:
            step += f", {amount(rate * samples)} samples/s"
        making = f"making a batch: {milliseconds(rank.worker.total)}"
        heads = ("part", "time", "share", "")
        made += [
            Section(step, _shares(STEP, rank.step), heads),
            Section(making, _shares(MAKING, rank.worker), heads),
            Section("rates", _rates(rank.rates), ("rate", "steps/s", "range", "steps")),
            Section("loop", _loop(rank)),
        ]
    seconds = f"machine, in {amount(evidence.system.seconds)} s"
    code = [
        (place(one, evidence.folder), name(one.what), cost(one)) for one in costly_lines(evidence)
    ]
    columns = ("rank", "step", "wait", "own time", "all-reduces", "cores", "")
    made += [
        Section("ranks", _ranks(evidence, diagnosis), columns),
        Section(seconds, _machine(evidence)),
        Section("costly lines of code", code, ("where", "what", "cost")),
        Section("", last),
    ]
    return [
        Section(showable(one.title), [tuple(map(showable, row)) for row in one.rows], one.heads)
        for one in made
        if one.rows
    ]


def name(text: str) -> str:
    """Return a name as it is in a line."""
    return shortened(text, LONGEST_NAME)


def gain_in_words(gain: Gain) -> str:
    """Return the prediction."""
    low, high = times(gain.low), times(gain.high)
    most = "up to " if gain.is_limit else ""
    return f"{most}{times(gain.factor)} times the rate is predicted ({low} to {high}): {gain.how}"


def applied_in_words(done: Applied) -> str:
    """Return what was measured, next to what was predicted."""
    predicted = "no prediction" if done.predicted is None else f"predicted {times(done.predicted)}"
    change = f"from {amount(done.before)} to {amount(done.after)} {done.what}"
    factor = "" if done.before == 0 else f"{times(done.factor)} times the rate was measured: "
    warning = ". Do not make this change: it is slower." if done.after < done.before else ""
    return f"{factor}{change} ({predicted}){warning}"


def _shares(names: dict[str, str], spent: StepTimes | WorkerTimes) -> list[tuple[str, ...]]:
    """Return name, milliseconds, share and a bar of each part that is worth a line."""
    total = spent.total
    if not 0 < total < math.inf:
        return []
    parts = [(text, getattr(spent, part)) for part, text in names.items()]
    if isinstance(spent, StepTimes) and spent.blocked:
        parts.append(("of the rest, not running", spent.blocked))
    if isinstance(spent, WorkerTimes) and spent.cpu:
        parts.append(("of all that, on a core", spent.cpu))
    return [
        (text, milliseconds(one), percent(one / total), bar(one / total))
        for text, one in parts
        if one >= LEAST_SHARE * total
    ]


def _rates(rates: Rates) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for phase, text in RATES.items():
        if (rate := getattr(rates, phase)) is not None:
            span = f"{amount(rate.low)} to {amount(rate.high)}"
            found.append((text, amount(rate.steps_per_s), span, str(rate.num_steps)))
    return found


def _loop(rank: RankEvidence) -> list[tuple[str, ...]]:
    """Return what the loop runs over, and what is in use."""
    found = [("loader", _loader_in_words(rank.loader))]
    files, epochs = rank.files, rank.epochs
    if files is not None:
        kinds = ", ".join(name(ending) or "no ending" for ending in [*files.endings][:3])
        each = f"{amount(files.per_batch)} a batch, {format_bytes(files.mean_bytes)} each"
        if files.held_bytes is not None:
            each = f"{format_bytes(files.held_bytes)} that stay open"
        where = f"below {files.folder} ({files.file_system})"
        found.append(("files", f"{each}{f' ({kinds})' if kinds else ''}, {where}"))
    if epochs.num:
        share = f"{percent(epochs.share)} of the time ({epochs.num} epoch{'s' * (epochs.num > 1)})"
        first = f"the first batch comes after {amount(epochs.first_batch_s)} s, {share}"
        found.append(("epochs", first))
    if rank.flags:
        found.append(("in use", ", ".join(sorted(rank.flags))))
    return [*found]


def _loader_in_words(loader: LoaderFacts) -> str:
    """Return ``DataLoader over ImageFolder, batches of 64, 4 processes``."""
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


def _ranks(seen: Evidence, said: Diagnosis) -> list[tuple[str, ...]]:
    """Return a line for each rank, or for some; the slow one is among them. Its own time waits for
    no batch and no other rank."""
    if len(seen.ranks) < 2:
        return []
    rows: list[tuple[str, ...]] = []
    first = sorted(seen.ranks, key=lambda one: one.rank != said.rank)[:MOST_RANKS]
    for rank in sorted(first, key=lambda one: one.rank):
        step = rank.step
        own = step.total - step.wait - step.collective
        spent = (step.total, step.wait, own, step.collective)
        host = f" on {name(rank.host)}" if rank.host else ""
        slow = "<- slow" if rank.rank == said.rank else ""
        cells = [*map(milliseconds, spent), amount(rank.cpu_share), slow]
        rows.append((f"{rank.rank}{host}", *cells))
    left = len(seen.ranks) - len(rows)
    return [*rows, (f"{left} more: --json", *[""] * 6)] if left else rows


# --- the machine --------------------------------------------------------------------------


def _machine(seen: Evidence) -> list[tuple[str, ...]]:
    system, used = seen.system, seen.utilisation
    busy, own = amount(system.cores_busy), amount(system.script_cores)
    found = [("cores", f"{system.cores}, of which {busy} were busy; the script used {own}")]
    if system.throttled is not None:
        share = f"stopped the script {percent(system.throttled)} of the time"
        found.append(
            ("CPU quota", f"it {share if system.throttled else 'never stopped the script'}")
        )
    if used.flops_per_s is not None:
        of = "" if used.peak is None else f" of {flops(used.peak)}"
        mfu = "" if used.mfu is None else f", an MFU of {percent(used.mfu)}{of}"
        found.append(("arithmetic", f"{flops(used.flops_per_s)}{mfu}"))
    if seen.trace is not None:
        trace = seen.trace
        text = (
            f"{amount(trace.seconds)} s; the GPU was idle {percent(trace.gpu_idle)} of the time, "
            f"{amount(trace.kernels_per_s)} kernels/s of {amount(1e6 * trace.kernel_s)} µs, "
            f"only copying {percent(trace.copy_exposed)}"
        )
        found.append(("trace", text))
    return [*found]


def flops(per_s: float) -> str:
    """Return floating-point operations a second, with their unit."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if per_s >= size:
            return f"{amount(per_s / size)} {unit}FLOP/s"
    return f"{amount(per_s / 1e6)} MFLOP/s"


# --- lines of code ------------------------------------------------------------------------


def costly_lines(evidence: Evidence) -> list[CodeLine]:
    """Return the lines of code that cost most, by their share of a step or of the samples; of a
    line that several ranks were seen in, the dearest."""
    found: dict[tuple[str, int, str], tuple[float, CodeLine]] = {}
    pairs = [(rank.step.total, one) for rank in evidence.ranks for one in rank.lines]
    for step, one in [*pairs, *((0.0, one) for one in evidence.lines)]:
        share = one.seconds / step if one.seconds and step > 0 else one.share
        key = (one.file, one.line, one.kind)
        if share >= LEAST_SHARE and (key not in found or share > found[key][0]):
            found[key] = (share, one)
    dearest = sorted(found.values(), key=lambda pair: pair[0], reverse=True)
    return [one for _, one in dearest[:MOST_LINES]]


def place(line: CodeLine, folder: str) -> str:
    """Return ``train.py:41``; relative to where the script ran, if it lies below."""
    file, shown = PurePath(line.file), line.file
    if folder and file.is_relative_to(folder):
        shown = str(file.relative_to(folder))
    return f"{shortened(shown, LONGEST_PLACE)}:{line.line}"


def cost(line: CodeLine) -> str:
    """Return what a line of code costs."""
    whose = {"profile": "the main thread's", "profile-worker": "the workers'"}.get(line.kind)
    if whose:
        return f"{percent(line.share)} of {whose} time on a core"
    calls = f", {times(line.calls)} calls" if line.calls else ""
    return f"{milliseconds(line.seconds)} a step{calls}"
