"""Fields of columns and features of third-party files, by their names and by what they hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardkit.errors import CorpusError, SampleError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.index.manifest import is_field_name
from shardkit.inputs.class_folders import not_image
from shardkit.inputs.guards import ARRAY_LABELS
from shardkit.samples.sample import Value


def has_label_name(name: str) -> bool:
    """Return True if the last part of a name says that it holds class numbers."""
    return re.split("[/.]", name)[-1].lower() in ARRAY_LABELS


def field_of(name: str, what: str, is_only_picture: bool = False) -> str:
    """Return the field of what a file calls ``name``: ``image/encoded`` and ``bin`` give
    ``image.encoded.bin``. That of ``picture`` lacks its ending, which depends on the image.

    Raises:
        CorpusError: the name cannot name a field.
    """
    if what == "cls" or (what == "txt" and name.lower() in ("text", "txt")):
        return what
    if what == "picture" and is_only_picture:
        return ""
    stem = re.sub(r"[^a-z0-9_.-]+", "_", name.lower().strip("/").replace("/", ".")).lstrip(".-")
    field = f"{stem}.{'jpg' if what == 'picture' else what}"
    if not stem or not is_field_name(field):
        raise CorpusError(
            f"{name!r} cannot name a field ({field!r}: at most 64 of a-z 0-9 _ . -); rename it"
        )
    return field.removesuffix("jpg") if what == "picture" else field


def refuse_equal_fields(fields: Mapping[str, str], where: str) -> None:
    """Raise CorpusError if two names, the keys, have one field."""
    owners: dict[str, str] = {}
    for name, field in fields.items():
        if (other := owners.setdefault(field, name)) != name:
            raise CorpusError(
                f"{where}: {other!r} and {name!r} would both be the field {field}; rename one"
            )


# --- byte strings whose contents nothing declares -----------------------------------------

PICTURE, TEXT, BYTES = "picture", "txt", "bin"
"""Contents of byte strings."""

_CONTROLS = frozenset(range(32)) - {*b"\t\n\r\f"} | {127}
"""Characters that no text has."""


def what_holds(values: Sequence[bytes]) -> str:
    """Return what all of some byte strings are: :data:`PICTURE`, :data:`TEXT` or :data:`BYTES`.
    Empty ones may be any of these."""
    held = [value for value in values if value]
    if held and all(image_field(value[:HEAD_BYTES]) for value in held):
        return PICTURE
    return TEXT if all(map(is_text, held)) else BYTES


def is_text(value: Value) -> bool:
    """Return True if bytes are UTF-8 without control characters."""
    try:
        return _CONTROLS.isdisjoint(map(ord, set(str(value, "utf-8"))))
    except UnicodeDecodeError:
        return False


def require_picture(value: Value) -> str:
    """Return the field of an image. Raises SampleError if it is none."""
    found = image_field(bytes(value[:HEAD_BYTES]))
    if found is None:
        raise SampleError(f"holds pictures in the first records, and here {not_image(value)}")
    return found
