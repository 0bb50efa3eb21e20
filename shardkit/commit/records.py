"""Small records of a work folder: one JSON object and its checksum, or nothing to rely on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import xxhash

from shardkit.commit.durable_files import atomic_write, temp_name
from shardkit.commit.own_files import create, read_own

T = TypeVar("T")


def write_record(path: Path, record: dict[str, Any], *, synced: bool = True) -> None:
    """Put a record in the place of the one before. One that is not ``synced`` is whole after a
    kill, too, but need not be after a power cut: nobody waits for the disk."""
    if synced:
        atomic_write(path, [_encoded(record)])
        return
    temp = path.with_name(temp_name(path.name))
    with create(temp) as out:
        out.write(_encoded(record))
    temp.replace(path)


def _encoded(record: dict[str, Any]) -> bytes:
    body = json.dumps(record, indent=1).encode()
    return b"".join([body, b"\n", xxhash.xxh3_64_hexdigest(body).encode(), b"\n"])


def read_record(path: Path) -> dict[str, Any] | None:
    """What was written, or None if it is damaged. Raises FileNotFoundError if there is none."""
    body, _, digest = (read_own(path) or b"").removesuffix(b"\n").rpartition(b"\n")
    if digest != xxhash.xxh3_64_hexdigest(body).encode():
        return None
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)  # 0.7 ms for a receipt


def from_record(kind: type[T], values: Any, **own: Any) -> T:
    """Build a dataclass of plain values that a record holds, and of others that it does not.

    Raises:
        TypeError: a value is missing, unknown, or of another type than the class says.
    """
    if not _fits(values, dict[str, Any]):
        raise TypeError(f"{kind.__name__} is no object")
    hints = _hints(kind)  # type: ignore[arg-type]  # classes can be hashed
    for name, value in values.items():
        if name not in own and not _fits(value, hints.get(name)):
            raise TypeError(f"{kind.__name__}.{name} is {str(value)[:60]!r}")
    return kind(**{**values, **own})


def _fits(value: Any, hint: Any) -> bool:
    """Return True if a value of JSON may stand where a class says ``hint``."""
    kind, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if kind is UnionType:
        return any(_fits(value, arg) for arg in args)
    if kind in (list, Sequence):
        return isinstance(value, list) and all(_fits(each, args[0]) for each in value)
    if kind is tuple:
        is_pair = isinstance(value, list) and len(value) == len(args)
        return is_pair and all(map(_fits, value, args))
    if kind is dict:
        return isinstance(value, dict) and all(_fits(each, args[1]) for each in value.values())
    return type(value) is hint or (hint is float and type(value) is int)
