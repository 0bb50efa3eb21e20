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
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError, SampleError
from shardkit.inputs.corpus import Run
from shardkit.inputs.guards import LABEL_NAMES, notes_on_labels
from shardkit.inputs.lines import is_compressed, line_pieces, plain_name
from shardkit.inputs.sample_files import RUN_ROWS, Cell, Listed, RecordFiles, SampleFile
from shardkit.inputs.tables.column_fields import field_base
from shardkit.samples.sample import Value, part_of_file
from shardkit.system.file_io import pread

HEAD_BYTES = 256 << 10
"""Bytes of the first file whose keys are looked at, to name those that are left out."""


class JsonlCorpus(RecordFiles):
    """Lines of JSON; a locator is ``offset:size``, in the decompressed bytes, and a row's number
    its offset."""

    kind = "jsonl"
    noun = "lines of JSON"
    reading = "a sample is a row of lines of JSON"
    extensions = frozenset(
        f"{ending}{packed}" for ending in (".jsonl", ".ndjson") for packed in ("", ".gz", ".zst")
    )
    unit = "byte"
    options = frozenset({"text_field", "fields"})

    def __init__(
        self,
        source: Path,
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
    ) -> None:
        super().__init__(source)
        self._files = self.find()
        self._choose(text_field, fields)

    def _choose(self, text_field: str | None, fields: Sequence[str] | None) -> None:
        self._fields = None if fields is None else [*dict.fromkeys(fields)]
        self.text_field = text_field or ("text" if "text" in (fields or ()) else None)
        self.has_text = self.text_field is not None
        self._keys = [*filter(None, dict.fromkeys([*(fields or ()), self.text_field]))]
        bases = [field_base(key).lower() for key in self._keys if key != self.text_field]
        if len({*bases}) < len(bases):
            raise CorpusError(f"two of the keys {', '.join(self._keys)} would be one field")

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = super().from_spec(source, spec)
        made._choose(spec["text_field"], spec.get("fields"))
        return made

    def spec(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "text_field": self.text_field}
        return made if self._fields is None else made | {"fields": self._fields}

    def runs(self, scratch: Path) -> Iterator[Run]:
        self._key_notes: list[str] = []
        given = self.notes
        yield from super().runs(scratch)
        self.notes = [*self._key_notes, *(note for note in given if note not in self._key_notes)]

    def listed(self, file: SampleFile, stamp: int, scratch: Path) -> Iterator[Listed]:
        with self.plain(file.base, stamp, scratch).open("rb", buffering=0) as lines:
            if not self._key_notes and self._keys:
                self._note_keys(pread(lines.fileno(), HEAD_BYTES, 0))
            for pieces in line_pieces(lines.read, RUN_ROWS):
                keys = file.keys([start for start, _ in pieces])
                yield [b"%d:%d" % piece for piece in pieces], keys, [size for _, size in pieces]

    def is_packed(self, path: Path) -> bool:
        return is_compressed(path.name)

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
            self._key_notes.append(f"left out of each line: {', '.join(others)}"[:200])
        own = [key for key in self._keys if key in seen]
        absent = [key for key in self._keys if seen and key not in seen]
        self._key_notes += [f"the first lines of the first file have no {key!r}" for key in absent]
        self._key_notes += notes_on_labels(key for key in own if not _is_label(key, seen[key]))

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        if self._keys:
            return super().paths_of(run)
        name = os.fsencode(plain_name(run.base or self.source.name))
        return lambda key, cells: part_of_file(int(key.rpartition(b"/")[2]), name)

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        line = bytes(value)
        try:
            held = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise SampleError(f"is not JSON: {error}") from error
        if not self._keys:
            return [("json", line, b"")]
        if not isinstance(held, dict):
            raise SampleError(f"is no JSON object, so it has no field {self._keys[0]!r}")
        label = next((k for k in LABEL_NAMES if k in self._keys and k != self.text_field), None)
        found: dict[str, str] = {}
        for name in self._keys:
            own, start = held.get(name), "" if name == self.text_field else f"{field_base(name)}."
            if isinstance(own, str):
                found[f"{start}txt"] = own
            elif not start and name in held:
                raise SampleError(f"field {name!r} is {type(own).__name__}, expected a string")
            elif name == label and _is_label(name, own):
                found["cls"] = str(own)
            elif own is not None:
                found[f"{start}json"] = json.dumps(own, ensure_ascii=False)
        if not found:
            raise SampleError(f"has none of {', '.join(map(repr, self._keys))}")
        try:
            return [(field, text.encode(), f".{field}".encode()) for field, text in found.items()]
        except UnicodeEncodeError as error:
            raise SampleError(f"holds half a surrogate pair: {error.reason}") from error


def _is_label(key: str, value: Any) -> bool:
    return key in LABEL_NAMES and type(value) is int and abs(value) < 10**18
