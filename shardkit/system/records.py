"""Small records of a work folder: one JSON object and its checksum, or nothing to rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from shardkit.system.durable_files import atomic_write, temp_name


def write_record(path: Path, record: dict[str, Any], *, synced: bool = True) -> None:
    """Put a record in the place of the one before. One that is not ``synced`` is whole after a
    kill, too, but need not be after a power cut: nobody waits for the disk."""
    if synced:
        atomic_write(path, [_encoded(record)])
        return
    temp = path.with_name(temp_name(path.name))
    temp.write_bytes(_encoded(record))
    temp.replace(path)


def _encoded(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, indent=1).encode()
    return b"".join([body, b"\n", xxhash.xxh3_64_hexdigest(body).encode(), b"\n"])


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
