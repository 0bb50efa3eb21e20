"""All figures of a report, and what they were measured on, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from shardkit.measure.report.text import NOTHING, amount
from shardkit.measure.report.words import Row, cache_states, label, percent, times
from shardkit.system.storage import format_bytes

Column = tuple[str, Callable[[Row], str]]

WORDS = frozenset(
    {"target", "limit", "cache", "against the first", "nearest limit", "format", "path"}
)
"""Columns of text, which stand left."""


def conditions(report: dict[str, Any]) -> str:
    """The machine, the versions, the state of the cache, the command."""
    machine, options = report["machine"], report["options"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    facts = {
        "machine": f"{machine['cpu']}, {machine['cores']} cores,"
        f" {format_bytes(machine['memory_bytes'])}, {machine['kernel']};"
        f" load {machine['load_1min']}",
        "versions": f"Python {machine['python']}, {packages}",
        "commit": report["commit"] or NOTHING,
        "cache": cache_states(report["rows"]),
        "measured": f"{report['checked']}; {options['read']}, batches of {options['batch_size']},"
        f" {options['rounds']} rounds of all in turn",
    }
    lines = [f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items()]
    if report["command"]:
        lines.append(f"<dt>command</dt><dd><code>{escape(report['command'])}</code></dd>")
    return f"<dl>{''.join(lines)}</dl>"


def tables(report: dict[str, Any]) -> str:
    """Every figure of every row, and the limits."""
    rows: list[Row] = report["rows"]
    made = [
        _table("Rates", _CASE + _RATES, rows),
        _table("Time a batch, in ms", _CASE + _BATCHES, rows),
        _table("Where the time of a sample goes, in µs", _CASE + _ROUNDS, rows),
        _table("Targets", _TARGETS, list({label(row): row for row in rows}.values())),
    ]
    if report["limits"]:
        made.append(_table("Limits", _LIMITS, report["limits"]))
    return "".join(made)


def _table(title: str, columns: Sequence[Column], rows: Iterable[Row]) -> str:
    heads = "".join(f'<th scope="col"{_side(head)}>{head}</th>' for head, _ in columns)
    lines = "".join(_line(columns, row) for row in rows)
    return (
        f'<h3>{title}</h3><div class="scroll" tabindex="0" role="region" aria-label="{title}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def _line(columns: Sequence[Column], row: Row) -> str:
    (_, name), *others = columns
    cells = "".join(f"<td{_side(head)}>{escape(text(row))}</td>" for head, text in others)
    return f'<tr><th scope="row">{escape(name(row))}</th>{cells}</tr>'


def _side(head: str) -> str:
    return "" if head in WORDS else ' class="num"'


def _of(name: str, *path: str, scale: float = 1) -> Column:
    """A column of one figure of the row."""

    def text(row: Row) -> str:
        value: Any = row
        for key in path:
            value = value[key]
        return NOTHING if value is None else amount(scale * value)

    return name, text


def _per_sample(part: str) -> Column:
    """Rounds are of different lengths."""

    def text(row: Row) -> str:
        value = row["seconds"][part]
        return NOTHING if value is None else amount(1e6 * value / max(row["samples"], 1))

    return part, text


def _interval(row: Row) -> str:
    rate = row["samples_per_s"]
    return f"{amount(rate['low'])} to {amount(rate['high'])}"


def _against(row: Row) -> str:
    if not row["ratio"]:
        return str(row["verdict"])
    values = [row["ratio"][name] for name in ("median", "low", "high")]
    median, low, high = (NOTHING if value is None else times(value) for value in values)
    return f"{median} ({low} to {high}), {row['verdict']}"


def _reached(row: Row) -> str:
    return NOTHING if row["of_limit"] is None else percent(row["of_limit"])


def _bytes(name: str, key: str) -> Column:
    return name, lambda row: NOTHING if row[key] is None else f"{row[key]:,}"


_CASE: list[Column] = [
    ("target", label),
    ("workers", lambda row: str(row["workers"])),
    ("cache", lambda row: str(row["cache"])),
]

_RATES: list[Column] = [
    _of("samples/s", "samples_per_s", "median"),
    ("95 % interval", _interval),
    _of("MB/s", "bytes_per_s", "median", scale=1e-6),
    ("against the first", _against),
    ("nearest limit", lambda row: row["limit"] or NOTHING),
    ("of it", _reached),
    ("rounds", lambda row: str(row["rounds"])),
    ("samples a round", lambda row: f"{row['samples']:,}"),
    _bytes("bytes from the device", "device_bytes"),
    _bytes("bytes of the dataset", "dataset_bytes"),
]

_BATCHES: list[Column] = [
    _of("5 %", "batch_ms", "p5"),
    _of("median", "batch_ms", "p50"),
    _of("95 %", "batch_ms", "p95"),
    _of("99 %", "batch_ms", "p99"),
    _of("longest", "batch_ms", "max"),
]

_ROUNDS: list[Column] = [_per_sample(part) for part in ("read", "transform", "collate", "wait")]

_TARGETS: list[Column] = [
    ("target", label),
    ("format", lambda row: str(row["format"])),
    ("path", lambda row: str(row["path"])),
]

_LIMITS: list[Column] = [
    ("limit", lambda limit: str(limit["name"])),
    _of("samples/s", "samples_per_s"),
    _of("MB/s", "bytes_per_s", scale=1e-6),
]
