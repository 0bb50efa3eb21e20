"""The report of a bench in sentences; and figures and names as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line prints figures, and loads nothing for them
    from shardkit.measure.report.data import Row

NOTHING = "–"
"""Stands for a figure that is missing."""

CLOSE = 0.85
"""From this share of a limit on, it is the limit that holds a target up."""

FEW_ROUNDS = 6
"""With fewer rounds no interval holds with 95 %."""

WORK = {
    "read": "finding and reading samples",
    "transform": "decoding and cropping",
    "collate": "copying them into batches",
}


def cache_states(rows: Sequence[Row]) -> str:
    """Return ``warm``, or ``cold or unknown``."""
    return " or ".join(sorted({row.cache for row in rows}))


def workers_in_words(row: Row) -> str:
    """Return ``2 threads``, ``1 process``, ``no worker``."""
    num, kind = row.workers, row.worker_type
    if not num:
        return "no worker"
    return f"{num} {kind}" if num == 1 else f"{num} {kind}{'es' if kind == 'process' else 's'}"


def times(ratio: float) -> str:
    """Return a ratio with as many digits as say something."""
    if not math.isfinite(ratio):
        return NOTHING
    return f"{ratio:.2f}" if ratio >= 0.2 else f"{ratio:.3f}"


def percent(share: float) -> str:
    if not math.isfinite(share):
        return NOTHING
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def amount(value: float) -> str:
    """Return a figure with three digits at least, and commas: ``39,853``, ``12.3``, ``0.0417``."""
    if not math.isfinite(value):
        return NOTHING
    if abs(value) >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.{max(2 - math.floor(math.log10(abs(value))), 0)}f}"


def milliseconds(seconds: float) -> str:
    """Return ``1,060 ms`` or ``0.284 ms``."""
    return f"{amount(1e3 * seconds)} ms"


def case_name(row: Row) -> str:
    """Return ``lmdb, 2 threads``."""
    return f"{row.target}, {workers_in_words(row)}"


def shortened(text: str, most: int) -> str:
    """Return the text in so many characters at most; the middle goes, since names differ at their
    ends.
    """
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head) :]}"


def in_words(rows: Sequence[Row], notes: Iterable[str]) -> list[str]:
    """Return the fastest, by how much, how far from the limit, and what takes the time; then the
    notes: a line each.
    """
    best = _best(rows)
    return [f"fastest: {_fastest(best, rows)}", _limited(best), *_unclear(rows), *notes]


def _best(rows: Sequence[Row]) -> Row:
    """Return the highest rate; of two in the same rounds, the one that won most of them."""
    best = max(rows, key=lambda row: row.samples_per_s.median)
    is_behind = best.ratio is not None and best.ratio.median < 1
    return reference(best, rows) if is_behind else best


def reference(row: Row, rows: Sequence[Row]) -> Row:
    """Return the row that this one is compared with."""
    return next(one for one in rows if one.workers == row.workers)


def _fastest(best: Row, rows: Sequence[Row]) -> str:
    rate = f"{best.samples_per_s.median:,.0f} samples/s"
    line = f"{best.target} with {workers_in_words(best)}, {rate}"
    if best.ratio is None:
        return line
    median, low, high = map(times, astuple(best.ratio))
    ratio = f"{median} times {reference(best, rows).target} ({low} to {high})"
    return f"{line}, {ratio}, {best.verdict}"


def _limited(best: Row) -> str:
    """Return how near the fastest is to its limit, and what takes its time."""
    spent = {name: getattr(best.seconds, name) for name in WORK}
    name, most = max(spent.items(), key=lambda item: item[1])
    goes = f"{percent(most / max(sum(spent.values()), 1e-9))} of the work is {WORK[name]}"
    if best.limit is None or best.of_limit is None:
        return goes
    if best.of_limit >= CLOSE:
        goes = "little is left to win"
    return f"it reaches {percent(best.of_limit)} of the limit, {best.limit}; {goes}"


def _unclear(rows: Sequence[Row]) -> list[str]:
    names = ", ".join(dict.fromkeys(row.target for row in rows if row.verdict == "unclear"))
    if not names:
        return []
    rounds = rows[0].rounds
    if any({row.cache, reference(row, rows).cache} == {"cold", "unknown"} for row in rows):
        return [f"not compared: {names}: one side came from the disk, the other may not have"]
    if rounds < FEW_ROUNDS:
        return [f"too few rounds to judge {names}: try --rounds {FEW_ROUNDS} or more"]
    return [f"unclear: the rounds of {names} differ too much; try --rounds {2 * rounds}"]
