"""Types of Arrow: what becomes of a column of one, before a value of it was seen."""

from __future__ import annotations

from typing import Any, Literal

from shardkit.inputs.tables.features import type_of
from shardkit.inputs.tables.media import FILE, FILM, PICTURE, SOUND

How = Literal[
    "text",
    "bytes",
    "integer",
    "number",
    "array",
    "json",
    "json text",
    "picture",
    "sound",
    "film",
    "file",
    "nothing",
]
"""What a column holds: strings; bytes; whole numbers; other numbers and booleans; arrays of
numbers; what JSON can say; JSON as it is written; files of a kind; only nulls."""

MEDIA: frozenset[How] = frozenset({PICTURE, SOUND, FILM, FILE})

_FEATURES: dict[str, How] = {"Image": PICTURE, "Audio": SOUND, "Video": FILM}

Shape = tuple[int | None, ...]
"""Lengths of an array's axes; None for a first one that varies."""


def is_of(held: Any, *names: str) -> bool:
    """Whether a type is one of those: ``list``, ``string_view``, ... An older pyarrow, which does
    not know a type, has none of it."""
    from pyarrow import types

    return any(getattr(types, f"is_{name}", _never)(held) for name in names)


def _never(held: Any) -> bool:
    return False


def plain_type(held: Any) -> Any:
    """The type of the values themselves: of extension types what they are stored as, of
    dictionaries and run-ends what is in them."""
    import pyarrow as pa

    while True:
        if isinstance(held, pa.BaseExtensionType):
            held = held.storage_type
        elif is_of(held, "dictionary", "run_end_encoded"):
            held = held.value_type
        else:
            return held


def is_list(held: Any) -> bool:
    return is_of(held, "list", "large_list", "fixed_size_list", "list_view", "large_list_view")


def is_string(held: Any) -> bool:
    return is_of(held, "string", "large_string", "string_view")


def is_bytes(held: Any) -> bool:
    return is_of(held, "binary", "large_binary", "binary_view", "fixed_size_binary")


def is_number(held: Any) -> bool:
    return is_of(held, "integer", "floating", "boolean")


def is_file(held: Any) -> bool:
    """Whether values are ``{bytes, path}``, as ``datasets`` stores files, or ``{bytes}``."""
    if not is_of(held, "struct") or not held.num_fields:
        return False
    children = {held.field(i).name: plain_type(held.field(i).type) for i in range(held.num_fields)}
    if len(children) != held.num_fields or not {"bytes"} <= children.keys() <= {"bytes", "path"}:
        return False
    data, path = children["bytes"], children.get("path")
    return is_bytes(data) and (path is None or is_string(path) or is_of(path, "null"))


def array_shape(held: Any) -> Shape | None:
    """The shape of a list of numbers; None for all other types, and for lists whose inner lengths
    no type says: such values need not be arrays."""
    axes: list[int | None] = []
    held = plain_type(held)
    while is_list(held):
        axes.append(held.list_size if is_of(held, "fixed_size_list") else None)
        held = plain_type(held.value_type)
    return tuple(axes) if axes and is_number(held) and None not in axes[1:] else None


def list_depth(held: Any) -> int:
    """How many lists lie in one another."""
    depth = 0
    while is_list(held := plain_type(held)):
        held, depth = held.value_type, depth + 1
    return depth


def declared_shape(held: Any, feature: Any) -> Shape | None:
    """The shape that the type itself does not say: of a tensor of Arrow's, or of a feature
    ``Array2D`` to ``Array5D``."""
    shape = getattr(held, "shape", None)
    if type_of(feature).startswith("Array"):
        shape = feature.get("shape")
    numbers = plain_type(held)
    while is_list(numbers):
        numbers = plain_type(numbers.value_type)
    if not isinstance(shape, list | tuple) or not is_number(numbers) or not shape:
        return None
    first, *others = shape
    ok = all(type(n) is int and n >= 0 for n in others) and (first is None or type(first) is int)
    depth = list_depth(held)
    return tuple(shape) if ok and depth in (1, len(shape)) else None


def how_of(held: Any, feature: Any = None) -> How:
    """What becomes of a column of this type, and of this feature if Hugging Face names one.

    Raises:
        ValueError: nothing: it cannot be stored; says why.
    """
    if is_json(held, feature):
        return "json text"
    if getattr(held, "permutation", None):
        raise ValueError("is a tensor whose axes are permuted")
    shape = declared_shape(held, feature)
    held = plain_type(held)
    if is_of(held, "null"):
        return "nothing"
    if is_string(held):
        return "text"
    if is_of(held, "integer"):
        return "integer"
    if is_number(held):
        return "number"
    if is_file(held):
        return _FEATURES.get(type_of(feature), FILE)
    if is_bytes(held):
        return _FEATURES.get(type_of(feature), "bytes")
    if are_files(held):
        return how_of(held.value_type, _inner(feature))
    if shape is not None or array_shape(held) is not None:
        return "array"
    refuse_in_json(held)
    return "json"


def is_json(held: Any, feature: Any = None) -> bool:
    """Whether values are JSON as it is written."""
    is_said = getattr(held, "extension_name", "") == "arrow.json" or type_of(feature) == "Json"
    return is_said and is_string(plain_type(held))


def are_files(held: Any) -> bool:
    """Whether values are lists of files, or of bytes that may be files."""
    held = plain_type(held)
    if not is_list(held):
        return False
    inner = plain_type(held.value_type)
    return is_file(inner) or is_bytes(inner)


def _inner(feature: Any) -> Any:
    """The feature of what is in a list."""
    if isinstance(feature, list):
        return feature[0] if feature else None
    return feature.get("feature") if isinstance(feature, dict) else None


def refuse_in_json(held: Any) -> None:
    """Raise ValueError for a type that has no JSON, or holds one."""
    held = plain_type(held)
    if is_of(held, "union"):
        raise ValueError("holds a union, of which JSON would not say which member it is")
    if is_of(held, "struct"):
        names = [held.field(i).name for i in range(held.num_fields)]
        if len(set(names)) != len(names):
            raise ValueError("holds a struct that has two members of one name")
    for child in _children(held):
        refuse_in_json(child)


def _children(held: Any) -> list[Any]:
    if is_of(held, "struct"):
        return [held.field(i).type for i in range(held.num_fields)]
    if is_of(held, "map"):
        return [held.key_type, held.item_type]
    return [held.value_type] if is_list(held) else []


def type_name(held: Any) -> str:
    """A type for a message; of a dictionary, or of run-ends, that of the values."""
    is_packed = is_of(held, "dictionary", "run_end_encoded")
    return str(held.value_type) if is_packed else str(held)
