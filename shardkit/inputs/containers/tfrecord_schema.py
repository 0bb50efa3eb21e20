"""Which field each feature of TFRecord files becomes: decided once, from the first records.

So a field's type never depends on the sample. Numbers are arrays of one axis, however many there
are. Byte strings are pictures if all of the first ones are, else texts if all are UTF-8 without
control characters, else bytes. A later value of another sort is a bad input. A feature without
values in the first records is an array where it has some, or ``.bin`` if those are bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import CorpusError, SampleError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.containers.column_names import LABEL_NAMES, field_for, last_word, refuse_twins
from shardkit.inputs.containers.tf_example import Feature
from shardkit.inputs.images import not_image
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import Value

_CONTROLS = frozenset(range(32)) - {*b"\t\n\r\f"} | {127}
"""Characters that no text has."""


@dataclass
class _Seen:
    """What the first records hold under one name."""

    kinds: set[str] = field(default_factory=set)
    counts: set[int] = field(default_factory=set)
    values: list[Any] = field(default_factory=list)

    def add(self, feature: Feature) -> None:
        if feature is None or not len(feature):
            return
        self.kinds.add(kind_of(feature))
        self.counts.add(len(feature))
        if isinstance(feature, list) or len(feature) == 1:
            self.values += [*feature]

    @property
    def is_single(self) -> bool:
        return self.counts == {1}


def kind_of(feature: list[Value] | Array) -> str:
    """``bytes``, ``float`` or ``int64``, as TensorFlow calls them."""
    if isinstance(feature, list):
        return "bytes"
    return "float" if feature.dtype.kind == "f" else "int64"


@dataclass(frozen=True)
class Schema:
    """What becomes of features.

    Attributes:
        fields: feature -> [field, how]; a picture's field lacks its ending, which depends on it.
        only: whether features that are not among them are left out.
    """

    fields: dict[str, list[str]]
    only: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"fields": self.fields, "only": self.only}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Self:
        return cls(raw["fields"], raw["only"])

    def sample(self, features: dict[str, Feature]) -> dict[str, Value]:
        """The fields of one record. Features without values are absent.

        Raises:
            SampleError: a value is of another sort than in the first records, or none is there.
        """
        made: dict[str, Value] = {}
        for name, feature in features.items():
            if feature is None or not len(feature) or (self.only and name not in self.fields):
                continue
            own, how = self.fields.get(name) or _unseen(name, feature)
            try:
                ending, value = _VALUES[how](feature)
            except _WrongError as error:
                raise SampleError(f"feature {name!r} {error}") from error
            if own + ending in made:
                raise SampleError(f"two features would be field {own + ending}")
            made[own + ending] = value
        if not made:
            raise SampleError("has no feature that holds anything")
        return made


def make_schema(
    examples: Iterable[dict[str, Feature]], where: str, fields: Sequence[str] | None = None
) -> tuple[Schema, list[str]]:
    """The schema of these records, and what there is to say of it, a line each.

    Args:
        fields: the features to keep; None for all.

    Raises:
        CorpusError: a feature has several types, or holds what no field can; or two would be one
        field.
    """
    seen: dict[str, _Seen] = {}
    for features in examples:
        for name, feature in features.items():
            seen.setdefault(name, _Seen()).add(feature)
    left_out = sorted(seen.keys() - set(seen if fields is None else fields))
    for name in fields or ():
        if name not in seen:
            listed = ", ".join(map(repr, sorted(seen)))
            raise CorpusError(f"{where} has no feature {name!r}, only {listed}"[:400])
    kept = {name: seen[name] for name in sorted(seen) if name not in left_out}
    label = _label(kept)
    hows = {
        name: "cls" if name == label else _how(name, held, where)
        for name, held in kept.items()
        if held.kinds
    }
    num_pictures = sum(how == "picture" for how in hows.values())
    made = {name: [_field(name, how, is_only=num_pictures == 1), how] for name, how in hows.items()}
    refuse_twins(((name, own + _SHOWN.get(how, "")) for name, (own, how) in made.items()), where)
    return Schema(made, fields is not None), _notes(made, kept, label, left_out)


def _label(seen: dict[str, _Seen]) -> str | None:
    """The feature of class numbers: the only one of single integers that is named so."""
    found = [
        name
        for name, held in seen.items()
        if held.kinds == {"int64"} and held.is_single and last_word(name) in LABEL_NAMES
    ]
    return found[0] if len(found) == 1 else None


def _how(name: str, seen: _Seen, where: str) -> str:
    if len(seen.kinds) > 1:
        raise CorpusError(
            f"{where}: feature {name!r} is {' and '.join(sorted(seen.kinds))} in its first records;"
            " write it as one of them"
        )
    if seen.kinds != {"bytes"}:
        return seen.kinds.copy().pop()
    if all(is_text(value) for value in seen.values):
        return "text" if seen.is_single else "texts"
    if not seen.is_single:
        raise CorpusError(
            f"{where}: feature {name!r} holds several byte strings that are not text, which no"
            " field can hold; write each as a feature of its own"
        )
    are_pictures = all(image_field(bytes(value[:HEAD_BYTES])) for value in seen.values)
    return "picture" if are_pictures else "bytes"


def is_text(value: Value) -> bool:
    """Whether bytes are UTF-8 without control characters."""
    try:
        text = str(value, "utf-8")
    except UnicodeDecodeError:
        return False
    return _CONTROLS.isdisjoint(map(ord, set(text)))


_SHOWN = {"picture": "jpg"}
_ENDINGS = {"int64": "npy", "float": "npy", "text": "txt", "texts": "json", "bytes": "bin"}


def _field(name: str, how: str, *, is_only: bool) -> str:
    if how == "cls":
        return "cls"
    if how == "picture":
        return "" if is_only else field_for(name, "jpg").removesuffix("jpg")
    if how == "text" and name.lower() in ("text", "txt"):
        return "txt"
    return field_for(name, _ENDINGS[how])


def _unseen(name: str, feature: list[Value] | Array) -> list[str]:
    """[field, how] of a feature that the first records do not have."""
    how = kind_of(feature)
    try:
        return [_field(name, how, is_only=False), how]
    except CorpusError as error:
        raise SampleError(str(error)) from error


def _notes(
    made: dict[str, list[str]], seen: dict[str, _Seen], label: str | None, left_out: list[str]
) -> list[str]:
    notes = []
    if label is not None:
        values = [int(value) for value in seen[label].values]
        notes.append(
            f"cls is {label!r} as it is stored: {min(values)} to {max(values)} in the first"
            f" {len(values):,} record{'s' * (len(values) != 1)}"
        )
    pictures = [name for name, (_, how) in made.items() if how == "picture"]
    notes += [f"{name!r} holds pictures" for name in pictures]
    if left_out:
        notes.append(f"left out: {', '.join(map(repr, left_out))}: not among --fields")
    return notes


# --- values -------------------------------------------------------------------------------


class _WrongError(Exception):
    """A value is of another sort than the schema says; the message goes on after the name."""


Made = tuple[str, Value]
"""(what the field's name lacks, value)."""


def _numbers(kind: str, feature: Any) -> Made:
    if kind_of(feature) != kind:
        raise _WrongError(f"is {kind_of(feature)}, and {kind} in the first records")
    array = np.ascontiguousarray(feature)
    return "", npy_header(array.dtype.str, array.shape) + array.tobytes()


def _cls(feature: Any) -> Made:
    if isinstance(feature, list) or feature.dtype.kind != "i" or len(feature) != 1:
        raise _WrongError(f"holds {len(feature)} values, and one integer in the first records")
    return "", b"%d" % int(feature[0])


def _one(feature: Any) -> Value:
    if not isinstance(feature, list) or len(feature) != 1:
        raise _WrongError(f"holds {len(feature)} values, and one byte string in the first records")
    value: Value = feature[0]
    return value


def _picture(feature: Any) -> Made:
    value = _one(feature)
    held = image_field(bytes(value[:HEAD_BYTES]))
    if held is None:
        raise _WrongError(f"holds pictures in the first records, and here {not_image(value)}")
    return held, value


def _text(feature: Any) -> Made:
    value = _one(feature)
    _utf8(value)
    return "", value


def _texts(feature: Any) -> Made:
    if not isinstance(feature, list):
        raise _WrongError("holds numbers, and texts in the first records")
    return "", json.dumps([_utf8(value) for value in feature], ensure_ascii=False).encode()


def _utf8(value: Value) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise _WrongError(
            f"is not UTF-8 ({error.reason}), and text in the first records"
        ) from error


def _bytes(feature: Any) -> Made:
    return "", _one(feature)


_VALUES: dict[str, Callable[[Any], Made]] = {
    "int64": partial(_numbers, "int64"),
    "float": partial(_numbers, "float"),
    "cls": _cls,
    "picture": _picture,
    "text": _text,
    "texts": _texts,
    "bytes": _bytes,
}
