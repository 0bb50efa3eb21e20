"""What a report of a bench says, in sentences."""

from __future__ import annotations

from typing import Any

CLOSE = 0.85
"""From this share of a limit on, it is the limit that holds a target up."""

NEARLY = 0.95
"""Of the fastest rate: nobody should choose a format for less than that."""

FEW_ROUNDS = 6
"""Below that no interval holds with 95 %."""

Row = dict[str, Any]


def label(row: Row) -> str:
    """The target of a row, and where it lies."""
    return row["target"] if row["where"] is None else f"{row['target']} on {row['where']}"


def workers_in_words(row: Row) -> str:
    """``2 threads``, ``1 process``, ``no worker``."""
    num, kind = row["workers"], row["worker_type"]
    if not num:
        return "no worker"
    return f"{num} {kind}" if num == 1 else f"{num} {kind}{'es' if kind == 'process' else 's'}"


def times(ratio: float) -> str:
    """With as many digits as say something."""
    return f"{ratio:.2f}" if ratio >= 0.2 else f"{ratio:.3f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"


def in_words(report: dict[str, Any]) -> list[str]:
    """Which is fastest, by how much, how far from the limit, what takes the time; what else there
    is to know, a line each."""
    rows = report["rows"]
    best = max(rows, key=lambda row: row["samples_per_s"]["median"])
    lines = [f"fastest: {_fastest(best, rows)}", *_nearly(best, rows), _limited(best)]
    return [*lines, *_unclear(rows), *report["notes"]]


def _fastest(best: Row, rows: list[Row]) -> str:
    rate = f"{best['samples_per_s']['median']:,.0f} samples/s"
    line = f"{label(best)} with {workers_in_words(best)}, {rate}"
    if best["ratio"] is None:
        return line
    reference = label(next(row for row in rows if row["workers"] == best["workers"]))
    median, low, high = (times(best["ratio"][name]) for name in ("median", "low", "high"))
    ratio = f"{median} times {reference} ({low} to {high})"
    return f"{line}, {ratio}{_DOUBT.get(best['verdict'], ', which may be chance')}"


_DOUBT = {"faster": "", "no difference": ", too little to choose by"}


def _nearly(best: Row, rows: list[Row]) -> list[str]:
    least = NEARLY * best["samples_per_s"]["median"]
    near = [
        f"{label(row)} with {workers_in_words(row)}"
        for row in rows
        if row is not best and row["samples_per_s"]["median"] >= least
    ]
    return [f"nearly as fast: {', '.join(near)}"] if near else []


def _limited(best: Row) -> str:
    """How near the fastest is to its limit, or what takes its time."""
    spent = {name: best["seconds"][name] for name in ("read", "transform", "collate")}
    name, most = max(spent.items(), key=lambda item: item[1])
    names = {"read": "reading", "transform": "the transform", "collate": "collating"}
    goes = f"{percent(most / max(sum(spent.values()), 1e-9))} of the work is {names[name]}"
    if best["limit"] is None:
        return goes
    reached = f"it reaches {percent(best['of_limit'])} of the limit, {best['limit']}"
    return f"{reached}{': little is left to win' if best['of_limit'] >= CLOSE else '; ' + goes}"


def _unclear(rows: list[Row]) -> list[str]:
    names = ", ".join(dict.fromkeys(label(row) for row in rows if row["verdict"] == "unclear"))
    if not names:
        return []
    rounds = rows[0]["rounds"]
    if rounds < FEW_ROUNDS:
        return [f"too few rounds to judge {names}: try --rounds {FEW_ROUNDS} or more"]
    return [f"unclear: the rounds of {names} differ too much; try --rounds {2 * rounds}"]
