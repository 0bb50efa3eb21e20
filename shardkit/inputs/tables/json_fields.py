"""Keys of lines of JSON as fields, where some were chosen: ``--fields text,label``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.lines import mapped_copy
from shardkit.inputs.tables.columns import LABEL_NAMES, field_base
from shardkit.inputs.tables.json_scan import WHITE, Place, scan_json, unescape
from shardkit.samples.sample import Value

JsonCell = tuple[str, Value]
"""(field, value)."""


@dataclass(frozen=True)
class KeyFields:
    """Which field each chosen key becomes.

    The text is ``txt``. A whole number under ``label``, ``labels`` or ``cls`` is ``cls``. Other
    strings are ``key.txt``, everything else is ``key.json``, to the byte as it is written. Null is
    absent.

    Attributes:
        keys: those that were chosen. text: the key of the text, if there is one. label: that of the
            class number.
    """

    keys: tuple[str, ...]
    text: str | None
    label: str | None

    @classmethod
    def of(cls, fields: Sequence[str], text_field: str | None) -> Self:
        """Raises CorpusError: no key, the text is none of them, or two would be one field."""
        keys = tuple(dict.fromkeys(fields))
        if not keys:
            raise CorpusError("--fields names no key; leave it out to pack whole lines")
        if text_field is not None and text_field not in keys:
            raise CorpusError(f"--text-field {text_field!r} is not among --fields {','.join(keys)}")
        text = text_field or ("text" if "text" in keys else None)
        bases: dict[str, str] = {}
        for key in keys:
            other = bases.setdefault(field_base(key).lower(), key)
            if key != text and other not in (key, text):
                raise CorpusError(
                    f"keys {other!r} and {key!r} would both be field {field_base(key)!r}; leave one"
                    " of them out of --fields"
                )
        label = next((name for name in LABEL_NAMES if name in keys and name != text), None)
        return cls(keys, text, label)

    def cells(self, line: bytes) -> list[JsonCell]:
        """The fields of one line.

        Raises:
            SampleError: it is no JSON object, has none of the keys, or no string where the text is.
        """
        try:
            text = line.decode("utf-8-sig")
            held = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"is not JSON: {error}") from error
        if not isinstance(held, dict):
            raise SampleError(f"is no JSON object, so it has no field {self.keys[0]!r}")
        found = {key: (value, written) for key, value, written in members(text)}
        cells = [
            self._cell(key, *found[key])
            for key in self.keys
            if key in found and found[key][0] is not None
        ]
        return cells or self._refuse(list(found))

    def _cell(self, key: str, value: Any, written: str) -> JsonCell:
        if key == self.text and not isinstance(value, str):
            raise no_string(key, type(value).__name__)
        if isinstance(value, str):
            try:
                return self._field(key, "txt"), value.encode()
            except UnicodeEncodeError as error:
                raise half_a_pair(error.reason, key) from error
        if key == self.label and type(value) is int:
            return "cls", b"%d" % value
        return self._field(key, "json"), written.encode()

    def _field(self, key: str, ending: str) -> str:
        return ending if key == self.text else f"{field_base(key)}.{ending}"

    def _refuse(self, keys: list[str]) -> list[JsonCell]:
        wanted = ", ".join(map(repr, self.keys))
        raise SampleError(
            f"has none of {wanted}; it has {', '.join(map(repr, keys)) or 'none'}"[:300]
        )

    def huge_cells(self, line: memoryview, scratch: Path) -> list[JsonCell]:
        """The same of a mapped line, of which nothing is held: values are mapped, too."""
        cells: list[JsonCell] = []
        keys: list[str] = []
        for key in self.keys:
            found = scan_json(line, key)
            if found.keys is None:
                raise SampleError(f"is no JSON object, so it has no field {key!r}")
            keys = found.keys
            if found.value is not None and found.value.kind != "NoneType":
                cells.append(self._huge_cell(key, line, found.value, scratch))
        return cells or self._refuse(keys)

    def _huge_cell(self, key: str, line: memoryview, place: Place, scratch: Path) -> JsonCell:
        if place.kind == "str":
            try:
                value = mapped_copy(unescape(line, place), scratch)
            except UnicodeEncodeError as error:
                raise half_a_pair(error.reason, key) from error
            return self._field(key, "txt"), value
        if key == self.text:
            raise no_string(key, place.kind)
        if key == self.label and place.kind == "int":
            return "cls", b"%d" % int(bytes(line[place.start : place.end]))
        return self._field(key, "json"), line[place.start : place.end]


def members(text: str) -> Iterator[tuple[str, Any, str]]:
    """(key, value, the value as it is written) of an object, whose text is known to be one."""
    decode = json.JSONDecoder().raw_decode
    at = _solid(text, text.index("{") + 1)
    while text[at] != "}":
        key, at = decode(text, at)
        begin = _solid(text, _solid(text, at) + 1)  # behind the colon
        value, end = decode(text, begin)
        yield key, value, text[begin:end]
        at = _solid(text, end)
        if text[at] == ",":
            at = _solid(text, at + 1)


def _solid(text: str, at: int) -> int:
    """Where what is no white space goes on."""
    while text[at] in WHITE:
        at += 1
    return at


def no_string(field: str, kind: str) -> SampleError:
    return SampleError(f"field {field!r} is {kind}, expected a string")


def half_a_pair(reason: str, field: str) -> SampleError:
    return SampleError(f"field {field!r} holds half a surrogate pair: {reason}")
