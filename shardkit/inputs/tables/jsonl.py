"""Lines of JSON: ``.jsonl`` or ``.ndjson`` files, plain, ``.gz`` or ``.zst``.

Each line is a sample. Its field ``json`` is the line's bytes as they are, with the line's end and
the blank lines that follow (before the first line, too), so that a file's samples one after another
are the file. With ``text_field``, field ``txt`` is the string under that key alone. With
``fields``, each of those keys is a field: the text is ``txt``; a whole number under ``label``,
``labels`` or ``cls`` is ``cls``; other strings are ``key.txt``; everything else is ``key.json``,
written anew. Null is absent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError
from shardkit.inputs.base import Run
from shardkit.inputs.lines import (
    is_compressed,
    line_pieces,
    plain_copy,
    read_pieces,
)
from shardkit.inputs.tables.columns import CLASS_WORDS, LABEL_NAMES, field_base
from shardkit.inputs.tables.row_files import RUN_ROWS, Cell, Listed, RowFiles
from shardkit.system.full_reads import pread

HEAD_BYTES = 256 << 10
"""Bytes of the first file whose keys are looked at, to name those that are left out."""


class JsonlCorpus(RowFiles):
    """Lines of JSON; a locator is ``offset:size``, in the decompressed bytes, and a row's number
    its offset."""

    kind = "jsonl"
    noun = "lines of JSON"
    extensions = frozenset(
        f"{ending}{packed}" for ending in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")
    )
    unit = "byte"

    def __init__(
        self,
        source: Path,
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
        tokenized: bool = False,  # nothing but what was chosen is packed in any case
    ) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = []
        self._fields = None if fields is None else [*dict.fromkeys(fields)]
        self.text_field = text_field or ("text" if "text" in (fields or ()) else None)
        self.has_text = self.text_field is not None
        self._keys = [*filter(None, dict.fromkeys([*(fields or ()), self.text_field]))]
        self.is_part = not self._keys
        bases = [field_base(key).lower() for key in self._keys if key != self.text_field]
        if len({*bases}) < len(bases):
            raise CorpusError(f"two of the keys {', '.join(self._keys)} would be one field")

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(source, spec["text_field"], spec.get("fields"))

    def spec(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "text_field": self.text_field}
        return made if self._fields is None else made | {"fields": self._fields}

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.notes.clear()
        yield from super().runs(scratch)
        self.notes += self.file_notes

    def listed(self, base: str, stamp: int, scratch: Path) -> Iterator[Listed]:
        with self._plain(base, stamp, scratch).open("rb", buffering=0) as file:
            if not self.notes and self._keys:
                self._note_keys(pread(file.fileno(), HEAD_BYTES, 0))
            for pieces in line_pieces(file.read, RUN_ROWS):
                offsets, sizes = [start for start, _ in pieces], [size for _, size in pieces]
                yield [b"%d:%d" % piece for piece in pieces], offsets, sizes

    def _plain(self, base: str, stamp: int, scratch: Path) -> Path:
        name, path = base or self.source.name, self.source / base
        return plain_copy(path, name, stamp, scratch) if is_compressed(name) else path

    def _note_keys(self, head: bytes) -> None:
        """Note which keys are left out unasked, which chosen ones the first lines have not, and
        which are no class though they are called as one."""
        seen: dict[str, Any] = {}
        for line in head.split(b"\n"):
            try:
                held = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError):
                continue  # reading makes a reject of it, if it is no half of a line
            for key, value in held.items() if isinstance(held, dict) else ():
                seen[key] = seen.get(key) if value is None else value
        others = [repr(key) for key in seen if key not in self._keys]
        if others and self._fields is None:
            self.notes.append(f"left out of each line: {', '.join(others)}"[:200])
        for key in self._keys if seen else ():
            if key not in seen:
                self.notes.append(f"the first lines of the first file have no {key!r}")
            elif key.lower() in CLASS_WORDS and not _is_label(key, seen[key]):
                self.notes.append(
                    f"key {key!r} is not cls, which is a whole number under"
                    f" {', '.join(LABEL_NAMES)}: docs/recipes/tables.md"
                )

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        pieces = [(int(start), int(size)) for start, size in (x.split(b":") for x in run.locators)]
        with self._plain(run.base, run.stamps[0], scratch).open("rb", buffering=0) as file:
            for line in read_pieces(file.fileno(), pieces):
                gone = "the file changed while packing"
                yield gone if line is None else self._cells(bytes(line))

    def _cells(self, line: bytes) -> list[Cell] | str:
        """Return the fields of a line, or why it has none, or others than expected."""
        try:
            held = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            return f"is not JSON: {error}"
        if not self._keys:
            return [("json", line, b"")]
        if not isinstance(held, dict):
            return f"is no JSON object, so it has no field {self._keys[0]!r}"
        label = next((k for k in LABEL_NAMES if k in self._keys and k != self.text_field), None)
        found: dict[str, str] = {}
        for key in self._keys:
            value, base = held.get(key), "" if key == self.text_field else f"{field_base(key)}."
            if isinstance(value, str):
                found[f"{base}txt"] = value
            elif not base and key in held:
                return f"field {key!r} is {type(value).__name__}, expected a string"
            elif key == label and _is_label(key, value):
                found["cls"] = str(value)
            elif value is not None:
                found[f"{base}json"] = json.dumps(value, ensure_ascii=False)
        if not found:
            return f"has none of {', '.join(map(repr, self._keys))}"
        try:
            return [(name, own.encode(), f".{name}".encode()) for name, own in found.items()]
        except UnicodeEncodeError as error:
            return f"holds half a surrogate pair: {error.reason}"


def _is_label(key: str, value: Any) -> bool:
    return key in LABEL_NAMES and type(value) is int and abs(value) < 10**18
