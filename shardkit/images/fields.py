"""Where in a batch the pictures are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardkit.errors import BadImageError, UsageError
from shardkit.images.naming import RAW_FIELD
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.samples.sample import Value


def pictures_of(
    columns: Mapping[str, Sequence[Any]], field: str | None = None
) -> tuple[list[Value], list[str]]:
    """The picture of each sample, and the fields they come from.

    Args:
        columns: field name to B values, None where a sample lacks the field. field: the one that
            holds the pictures. None takes those named for a kind of picture, ``jpg``, ``png`` ...:
            a folder of several kinds gives several, and each sample has one of them.

    Raises:
        BadImageError: a sample has no picture, or several; ``slot`` says which. UsageError: no
            such field.
    """
    names = [name for name in columns if name in IMAGE_FIELDS] if field is None else [field]
    if not names or names[0] not in columns:
        wanted = "no picture" if field is None else f"no field {field!r}"
        hint = "give field="
        if RAW_FIELD in columns:
            hint = f"{RAW_FIELD} holds pixels, for which there is shardkit.images.flip()"
        raise UsageError(f"there is {wanted} among the fields {', '.join(columns)}: {hint}")
    if len(names) == 1:
        values = list(columns[names[0]])
    else:
        samples = zip(*(columns[name] for name in names), strict=True)
        values = [_only(names, sample, slot) for slot, sample in enumerate(samples)]
    is_plain = {bytes, memoryview, bytearray}.issuperset(map(type, values))
    for slot, value in enumerate(() if is_plain else values):
        if value is None:
            raise BadImageError(f"the sample has no {' or '.join(names)}", slot)
        if not isinstance(value, bytes | memoryview | bytearray):
            raise UsageError(
                f"pictures must be the bytes of files, got {type(value).__name__} in"
                f" {' or '.join(names)}: give another field=, or open the dataset without"
                " decode='pil'"
            )
    return values, names


def _only(names: list[str], values: tuple[Any, ...], slot: int) -> Any:
    present = [name for name, value in zip(names, values, strict=True) if value is not None]
    if len(present) > 1:
        raise BadImageError(
            f"the sample has several pictures, {', '.join(present)}: give field=", slot
        )
    return values[names.index(present[0])] if present else None
