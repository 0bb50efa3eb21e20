"""The doctor's report as one HTML page: no script, and nothing that is not in the file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardkit.measure.doctor.diagnosis import Applied, Diagnosis
from shardkit.measure.doctor.evidence import Evidence, RankEvidence
from shardkit.measure.doctor.report import charts, facts, hardware
from shardkit.measure.doctor.report.data import printable, to_json, without_timelines
from shardkit.measure.doctor.report.timeline import TALL, WIDE, Timeline, timeline
from shardkit.measure.doctor.report.words import (
    RANK_HEADS,
    applied_in_words,
    gain_in_words,
    rank_cells,
    shown_ranks,
)
from shardkit.measure.report.template import render
from shardkit.measure.report.words import amount, milliseconds, percent
from shardkit.system.durable_files import write_output

MOST_RANKS = 32
"""Ranks that are drawn; the table has all."""

TEXT = frozenset({"rank", "part", "where", "what", "cost", "range", "rate", "slow"})
"""Columns of text, which stand left."""

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Its title, its heads, and its lines."""


def write(
    path: str | Path,
    evidence: Evidence,
    diagnosis: Diagnosis,
    applied: Applied | None = None,
    profile: str | None = None,
) -> None:
    """Write the report as a page; ``profile`` is the file that a profile was written to.

    Raises:
        StorageError: the file cannot be written.
    """
    text = page(evidence, diagnosis, applied, profile)
    write_output(path, text.encode())


def page(
    evidence: Evidence,
    diagnosis: Diagnosis,
    applied: Applied | None = None,
    profile: str | None = None,
) -> str:
    """The page, as HTML."""
    few = without_timelines(evidence)
    seen, said, done = printable(few), printable(diagnosis), printable(applied)
    rank, ranks = facts.chosen_rank(seen, said), shown_ranks(seen, said, MOST_RANKS)
    drawn = timeline(shown_ranks(evidence, diagnosis, MOST_RANKS))
    return render(
        "doctor/report/doctor.html",
        said=said,
        command=shlex.join(seen.command),
        gain=None if said.gain is None else gain_in_words(said.gain),
        applied=None if done is None else applied_in_words(done),
        timeline=drawn,
        steps=charts.steps(ranks),
        making=charts.making(ranks),
        rates=None if rank is None else charts.rates(rank.rates),
        num_left_out=len(seen.ranks) - len(ranks),
        names={"step": _used(ranks, "step"), "making": _used(ranks, "worker")},
        phases=_phases(drawn),
        conditions=_conditions(seen, rank, printable(profile)),
        machine=_machine(seen),
        tables=_tables(seen, said, rank),
        text=TEXT,
        notes=seen.notes,
        json=_json(few, diagnosis, applied),
        amount=amount,
        percent=percent,
        milliseconds=milliseconds,
        wide=WIDE,
        tall=TALL,
    )


def _used(ranks: Iterable[RankEvidence], times: str) -> list[tuple[str, str]]:
    """The parts that some rank spent time on, with their names, in order."""
    found = {part for rank in ranks for part in facts.parts(getattr(rank, times))}
    names = facts.STEP if times == "step" else facts.MAKING
    return [(part, name) for part, name in names.items() if part in found]


def _phases(drawn: Timeline | None) -> list[tuple[str, str]]:
    """The colours of the phases that are in the timeline, with their names."""
    found = {color for row in drawn.rows for color in row.paths} if drawn else set()
    colors = {f"phase-{phase}": name for phase, name in facts.RATES.items()}
    return [(color, name) for color, name in colors.items() if color in found]


def _conditions(seen: Evidence, rank: RankEvidence | None, profile: str | None) -> dict[str, str]:
    """What was run, and over what."""
    found: dict[str, str | None] = {
        "run": f"in {seen.folder or '.'}, watched for {amount(seen.seconds)} s; {seen.ended}",
        "versions": f"Python {seen.python}, torch {seen.torch}",
    }
    if rank is not None:
        found |= {
            "loop": f"{facts.rate_in_words(rank)} on {rank.device}, {_world(seen)}",
            "loader": facts.loader_in_words(rank.loader),
            "files": facts.files_in_words(rank),
            "epochs": facts.epochs_in_words(rank),
            "in use": ", ".join(sorted(rank.flags)) or None,
        }
    if profile is not None:
        found["profile"] = f"{profile}, for speedscope"
    return {name: text for name, text in found.items() if text is not None}


def _world(seen: Evidence) -> str:
    return "1 rank" if len(seen.ranks) == 1 else f"{len(seen.ranks)} ranks"


def _machine(seen: Evidence) -> dict[str, str]:
    found = hardware.machine(seen.system)
    for number, gpu in enumerate(seen.system.gpus):
        found[f"GPU {number}"] = f"{gpu.name}: {hardware.gpu_in_words(gpu)}"
    found |= hardware.utilisation(seen.utilisation)
    if seen.trace is not None:
        found["trace"] = hardware.trace_in_words(seen.trace)
    return found


def _tables(seen: Evidence, said: Diagnosis, rank: RankEvidence | None) -> list[Table]:
    """Those that have a line."""
    lines = [
        (facts.place(one, seen.folder), one.what, facts.cost(one))
        for one in facts.costly_lines(seen)
    ]
    ranks = [(*rank_cells(one), "slow" if one.rank == said.rank else "") for one in seen.ranks]
    made: list[Table] = [("Costly lines of code", ("where", "what", "cost"), [*lines])]
    if rank is not None:
        of = f" of rank {rank.rank}" if len(seen.ranks) > 1 else ""
        heads = ("part", "ms", "share")
        made += [
            (f"A step{of}", heads, _shares(facts.STEP, rank.step)),
            (f"Making a batch{of}", heads, _shares(facts.MAKING, rank.worker)),
            (f"Rates{of}", facts.RATE_HEADS, facts.rate_cells(rank.rates)),
        ]
    if len(ranks) > 1:
        made.append(("Ranks", (*RANK_HEADS, "slow"), [*ranks]))
    return [table for table in made if table[2]]


def _shares(names: dict[str, str], times: Any) -> list[tuple[str, ...]]:
    return [
        (names[part], amount(1e3 * seconds), percent(seconds / times.total))
        for part, seconds in facts.parts(times).items()
    ]


def _json(few: Evidence, diagnosis: Diagnosis, applied: Applied | None) -> str:
    """The report but for each step: thousands of lines that nobody reads on a page."""
    whole = to_json(few, diagnosis, applied)
    for rank in whole["evidence"]["ranks"]:
        del rank["timeline"]
    return json.dumps(whole, indent=1)
