"""What a report of a bench says, in sentences."""

from __future__ import annotations

from typing import Any

CLOSE = 0.85
"""From this share of a limit on, it is the limit that holds a target up."""


def workers_in_words(row: dict[str, Any]) -> str:
    """``2 threads``, ``1 process``, ``no worker``."""
    num, kind = row["workers"], row["worker_type"]
    if not num:
        return "no worker"
    return f"{num} {kind}" if num == 1 else f"{num} {kind}{'es' if kind == 'process' else 's'}"


def in_words(report: dict[str, Any]) -> list[str]:
    """Which is fastest, by how much, how far from the limit, and what takes the time."""
    rows = report["rows"]
    best = max(rows, key=lambda row: row["samples_per_s"]["median"])
    lines = [f"{_fastest(best, rows)}; {_limited(best)}"]
    return [*lines, *_unclear(rows)]


def _fastest(best: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    rate = f"{best['samples_per_s']['median']:,.0f} samples/s"
    line = f"fastest: {best['target']} with {workers_in_words(best)}, {rate}"
    if len({row["target"] for row in rows}) < 2:
        return line
    reference = next(row for row in rows if row["workers"] == best["workers"])
    if best["ratio"] is None:
        equal = [
            row["target"]
            for row in rows
            if row["workers"] == best["workers"] and row["verdict"] in ("no difference", "unclear")
        ]
        return f"{line}, no faster for sure than {', '.join(equal)}" if equal else line
    ratio = best["ratio"]
    interval = f"({ratio['low']:.2f} to {ratio['high']:.2f})"
    if best["verdict"] == "faster":
        return f"{line}, {ratio['median']:.2f} times {reference['target']} {interval}"
    return f"{line}, but no faster for sure than {reference['target']} {interval}"


def _limited(best: dict[str, Any]) -> str:
    spent = {name: best["seconds"][name] for name in ("read", "transform", "collate")}
    name, most = max(spent.items(), key=lambda item: item[1])
    share = most / max(sum(spent.values()), 1e-9)
    names = {"read": "reading", "transform": "the transform", "collate": "collating"}
    goes = f"{share:.0%} of the work is {names[name]}"
    if best["limit"] is None:
        return goes
    reached = f"that is {best['of_limit']:.0%} of the limit, {best['limit']}"
    return (
        f"{reached}, so little is left to win"
        if best["of_limit"] >= CLOSE
        else f"{reached}; {goes}"
    )


def _unclear(rows: list[dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(r["target"] for r in rows if r["verdict"] == "unclear"))
    if not names:
        return []
    more = 2 * rows[0]["rounds"]
    return [f"unclear for {', '.join(names)}: the rounds differ too much; try --rounds {more}"]
