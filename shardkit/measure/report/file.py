"""A report of a bench, read back from the file that ``--json`` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardkit.errors import FormatError
from shardkit.measure.bench.evaluate import VERSION
from shardkit.measure.report.page import page
from shardkit.system.storage import os_errors, show_path

REPORT = frozenset(
    {"machine", "commit", "command", "options", "checked", "limits", "rows", "notes"}
)

RATE = ("median", "low", "high")

ROW = {
    **dict.fromkeys(("target", "format", "path", "where", "read", "workers", "worker_type"), ()),
    **dict.fromkeys(("batch_size", "cache", "rounds", "samples", "ratio", "verdict"), ()),
    **dict.fromkeys(("limit", "of_limit", "device_bytes", "dataset_bytes"), ()),
    "samples_per_s": RATE,
    "bytes_per_s": RATE,
    "batch_ms": ("p5", "p50", "p95", "p99", "max"),
    "batch_histogram": ("edges_ms", "counts"),
    "seconds": ("read", "transform", "collate", "wait"),
}
"""What a row has, and what is in that."""


def load(path: str | Path) -> dict[str, Any]:
    """The report, of which a page can be made.

    Raises:
        FormatError: it is none. StorageError: it cannot be read.
    """
    with os_errors(f"reading {show_path(path)}"):
        data = Path(path).read_bytes()
    try:
        report = json.loads(data)
    except ValueError as error:
        raise FormatError(f"{show_path(path)} is not JSON: {error}") from error
    reason = why_not(report)
    if reason is None:
        try:
            page([report])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}"
    if reason:
        raise FormatError(f"{show_path(path)} is no report of shardkit bench --json: {reason}")
    return dict(report)


def why_not(report: Any) -> str | None:
    """What a value lacks to be a report; None if it is one."""
    if not isinstance(report, dict) or "version" not in report:
        return "it has no version"
    if report["version"] != VERSION:
        return f"its version is {report['version']!r}, this shardkit reads {VERSION}"
    if missing := sorted(REPORT - report.keys()):
        return f"it has no {missing[0]}"
    if not isinstance(report["rows"], list) or not report["rows"]:
        return "it has no rows"
    for number, row in enumerate(report["rows"]):
        if missing := _missing(row):
            return f"its row {number} has no {missing[0]}"
    return None


def _missing(row: Any) -> list[str]:
    if not isinstance(row, dict):
        return ["names"]
    return [
        name
        for name, parts in ROW.items()
        if name not in row or (parts and not _has(row[name], parts))
    ]


def _has(value: Any, parts: tuple[str, ...]) -> bool:
    return isinstance(value, dict) and set(parts) <= value.keys()
