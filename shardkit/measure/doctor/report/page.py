"""The doctor's report as one HTML page: no script, and nothing that is not in the file."""

from __future__ import annotations

import shlex
from pathlib import Path

from shardkit.measure.doctor.diagnosis import Applied, Diagnosis
from shardkit.measure.doctor.evidence import Evidence
from shardkit.measure.doctor.report.sections import RATES, sections, shown_ranks
from shardkit.measure.doctor.report.timeline import TALL, WIDE, timeline
from shardkit.measure.report.template import render, showable
from shardkit.measure.report.words import amount, milliseconds
from shardkit.system.durable_files import write_output

MOST_RANKS = 32
"""Ranks that are drawn and have a line."""

TEXT = frozenset({"rank", "part", "where", "what", "cost", "range", "rate", ""})
"""Columns of text, which stand left."""


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
    """Return the page, as HTML."""
    ranks = shown_ranks(evidence, diagnosis, MOST_RANKS)
    drawn = timeline(ranks)
    run = {"command": shlex.join(evidence.command), "folder": evidence.folder or "."}
    if profile is not None:
        run["profile"] = f"{profile}, for speedscope"
    verdict, *others = sections(evidence, diagnosis, applied, MOST_RANKS)
    colors = {color for row in drawn.rows for color in row.paths} if drawn else set()
    return render(
        "doctor/report/doctor.html",
        verdict=verdict,
        sections=others,
        run=showable(run),
        timeline=drawn,
        phases=[(f"phase-{one}", text) for one, text in RATES.items() if f"phase-{one}" in colors],
        num_left_out=len(evidence.ranks) - len(ranks),
        text=TEXT,
        amount=amount,
        milliseconds=milliseconds,
        wide=WIDE,
        tall=TALL,
    )
