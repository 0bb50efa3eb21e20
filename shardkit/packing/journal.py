"""Small records of the work folder: one JSON object and its checksum, or nothing to rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from shardkit.storage import atomic_write


def write_record(path: Path, record: dict[str, Any]) -> None:
    body = json.dumps(record, indent=1).encode()
    atomic_write(path, [body, b"\n", xxhash.xxh3_64_hexdigest(body).encode(), b"\n"])


def read_record(path: Path) -> dict[str, Any] | None:
    """What was written, or None if it is damaged. Raises FileNotFoundError if there is none."""
    body, _, digest = path.read_bytes().removesuffix(b"\n").rpartition(b"\n")
    if digest != xxhash.xxh3_64_hexdigest(body).encode():
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
