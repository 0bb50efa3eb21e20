"""Text in lines of JSON: ``.jsonl`` or ``.ndjson`` files, plain, ``.gz`` or ``.zst``.

Each line is a sample. Without ``text_field`` its field ``json`` is the line's bytes as they are,
with the line's end and the blank lines that follow (before the first line, too), so that a file's
samples one after another are the file. With ``text_field``, field ``txt`` is that string alone.
With ``fields``, each of those keys is a field, see :mod:`shardkit.inputs.tables.json_fields`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.inputs.base import Input, Run
from shardkit.inputs.endings import COMPRESSED_EXTENSIONS, JSONL_EXTENSIONS, PACKED_JSONL_EXTENSIONS
from shardkit.inputs.files import FolderListing, input_stamp, walk
from shardkit.inputs.folders import Root, find_roots, nothing_found
from shardkit.inputs.lines import (
    Pieces,
    is_compressed,
    line_pieces,
    mapped_copy,
    plain_copy,
    plain_name,
    read_pieces,
)
from shardkit.inputs.names import extension, join
from shardkit.inputs.tables.by_field import by_field
from shardkit.inputs.tables.hub_card import HubCard, agree, keep_told
from shardkit.inputs.tables.json_fields import JsonCell, KeyFields, half_a_pair, no_string
from shardkit.inputs.tables.json_keys import HEAD_BYTES, KeySearch, first_keys, notes_on_keys
from shardkit.inputs.tables.json_scan import scan_json, unescape
from shardkit.inputs.whole_sets import notes_on_splits, refuse_missing
from shardkit.samples.sample import SampleBatch, Value, pack_paths, part_of_file
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import stamp_of_open

WANTED = JSONL_EXTENSIONS | COMPRESSED_EXTENSIONS

_REJECT = b"!"
"""Begins a locator that holds, in place of an offset, why a whole file is refused."""

RUN_LINES = 65_536

_ONE_SPLIT = Root("train", "")
"""Of files that no folder of a split holds."""

_GONE = "the file changed or vanished while packing"


def is_jsonl(name: str) -> bool:
    """Whether a file of this name holds lines of JSON."""
    return plain_name(name).lower().endswith(tuple(JSONL_EXTENSIONS))


class JsonlCorpus(Input):
    """Lines of JSON of one file, or of a folder of such files; a locator is ``offset:size``.

    A run's base is the file; where the source itself is the file, ``""``. Keys and paths carry a
    compressed file's name without ``.gz`` or ``.zst``, and offsets in its decompressed bytes.
    """

    kind = "jsonl"
    noun = "lines of JSON"
    extensions = PACKED_JSONL_EXTENSIONS
    is_one_file = True
    options = frozenset({"text_field", "fields"})

    def __init__(
        self,
        source: Path,
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
        tokenized: bool = False,  # nothing but what was chosen is packed in any case
    ) -> None:
        self.source = source
        self._fields = None if fields is None else KeyFields.of(fields, text_field)
        self.text_field = text_field if self._fields is None else self._fields.text
        self.has_text = self.text_field is not None
        self.notes: list[str] = []
        self._search: KeySearch | None = None
        self._is_all_read = True
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self._card = HubCard(source, PACKED_JSONL_EXTENSIONS)

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        return cls(source, spec["text_field"], spec.get("fields"))

    def spec(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "text_field": self.text_field}
        return made if self._fields is None else made | {"fields": list(self._fields.keys)}

    def splits(self) -> list[str]:
        return list(dict.fromkeys(root.split for root, _ in self._files({})))

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.notes.clear()
        self._search = None
        found = False
        files = self._files(self.ignored)
        for root, base in files:
            for run in self._file_runs(root, base, scratch):
                found = True
                yield run
        if not found:
            raise nothing_found(self.noun, self.source, self.ignored)
        if self._search is not None and self._is_all_read:
            self._search.refuse(show_path(self.source))
        self.notes += self._card.notes
        self.notes += notes_on_splits(list(dict.fromkeys(root.split for root, _ in files)))
        if not self._card.has_splits and {root for root, _ in files} == {_ONE_SPLIT}:
            self.notes += mixed_names([base for _, base in files])

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch = SampleBatch()
        rows: list[list[JsonCell]] = []
        if run.locators and run.locators[0].startswith(_REJECT):
            reason = os.fsdecode(run.locators[0].removeprefix(_REJECT))
            return SampleBatch(rejects=[(self._name(run.base), reason)])
        name = plain_name(self._name(run.base))
        for locator, key, line in zip(
            run.locators, run.keys, self._lines(run, scratch), strict=True
        ):
            try:
                rows.append(self._cells(line, scratch))
                batch.keys.append(key)
            except SampleError as error:
                batch.rejects.append((_at(name, locator), str(error)))
        batch.columns = by_field(rows)
        batch.paths = [
            self._packed_path(key, os.fsencode(name), cells)
            for key, cells in zip(batch.keys, rows, strict=True)
        ]
        return batch

    def entry_name(self, run: Run, i: int) -> str:
        return _at(plain_name(self._name(run.base)), run.locators[i])

    def _files(self, ignored: dict[str, int]) -> list[tuple[Root, str]]:
        """Every file, in the split that the card of a dataset of the hub says, or else its folder
        at the top, or else a word of its path; those of one split together."""
        if not self.source.is_dir():
            return [(_ONE_SPLIT, "")]
        found = {
            join(folder.base, name): root
            for root in find_roots(self.source, WANTED, ignored)
            for folder in walk(self.source, root.base, WANTED, ignored)
            for name in [*jsonl_names(folder, ignored), *folder.lost]
        }
        told = keep_told(found, self._card.told([*found]), ignored)
        refuse_missing(found, self.source)
        if not self._card.has_splits and {*found.values()} == {_ONE_SPLIT}:
            splits = splits_by_words([*found]) or [""] * len(found)
            told = dict(zip(found, splits, strict=True))
        if not any(told.values()) or agree(found, told):
            return [(root, base) for base, root in found.items()]
        return [(Root(told[base], ""), base) for base in sorted(found, key=told.__getitem__)]

    def _file_runs(self, root: Root, base: str, scratch: Path) -> Iterator[Run]:
        path = self.source / base
        prefix = os.fsencode(root.key_base(plain_name(self._name(base))))
        with os_errors(f"listing the lines of {show_path(path)}"):
            try:
                stamp = input_stamp(path)
                plain = self._plain(base, stamp, scratch)
            except FormatError as error:
                self._is_all_read = False
                yield _reject_of(root.split, base, prefix, str(error))
                return
            with plain.open("rb", buffering=0) as file:
                self._note_keys(file.fileno())
                read = file.read if self._search is None else self._search.reader(file.read)
                for pieces in line_pieces(read, RUN_LINES):
                    yield _run_of(pieces, root.split, base, prefix, stamp)

    def _name(self, base: str) -> str:
        return base or self.source.name

    def _plain(self, base: str, stamp: int, scratch: Path) -> Path:
        name = self._name(base)
        path = self.source / base
        return plain_copy(path, name, stamp, scratch) if is_compressed(name) else path

    def _lines(self, run: Run, scratch: Path) -> Iterator[Value | None]:
        """Each entry's bytes; None if the file changed since it was listed."""
        pieces = [
            (int(start), int(size)) for start, _, size in (x.partition(b":") for x in run.locators)
        ]
        stamp = run.stamps[0] if run.stamps else 0
        path = self._plain(run.base, stamp, scratch)
        is_copy = is_compressed(self._name(run.base))
        with os_errors(f"reading {show_path(path)}"):
            try:
                file = path.open("rb", buffering=0)
            except FileNotFoundError:
                yield from [None] * len(pieces)
                return
            with file:
                if is_copy or stamp_of_open(file.fileno(), path) == stamp:
                    yield from read_pieces(file.fileno(), pieces)
                else:
                    yield from [None] * len(pieces)

    def _note_keys(self, fd: int) -> None:
        """Look at the first lines of the first file, of which something may be left out."""
        if self.notes or (self._fields is None and self.text_field is None):
            return
        head = pread(fd, HEAD_BYTES, 0)
        seen = first_keys(head, is_whole=len(head) < HEAD_BYTES)
        chosen = None if self._fields is None else self._fields.keys
        if seen and self._search is None:
            self._search = KeySearch(chosen or (), [*seen])
        self.notes += notes_on_keys(seen, chosen, self.text_field)

    def _cells(self, line: Value | None, scratch: Path) -> list[JsonCell]:
        """The fields of a line. Raises SampleError if it has none, or others than expected."""
        if self._fields is None:
            value = self._value(line, scratch)
            return [("json" if self.text_field is None else "txt", value)]
        if line is None:
            raise SampleError(_GONE)
        if isinstance(line, memoryview):
            return self._fields.huge_cells(line, scratch)
        return self._fields.cells(line)

    def _value(self, line: Value | None, scratch: Path) -> Value:
        if line is None:
            raise SampleError(_GONE)
        if isinstance(line, memoryview):
            return _huge_value(line, self.text_field, scratch)
        try:
            held = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise SampleError(f"is not JSON: {error}") from error
        return line if self.text_field is None else _text(held, self.text_field)

    def _packed_path(self, key: bytes, name: bytes, cells: list[JsonCell]) -> bytes:
        offset = key.rpartition(b"/")[2]
        if self.text_field is None and self._fields is None:
            return part_of_file(int(offset), name)
        fields = sorted(field for field, _ in cells)
        return pack_paths(key, [b"%s/%s.%s" % (name, offset, field.encode()) for field in fields])


def jsonl_names(folder: FolderListing, ignored: dict[str, int]) -> list[str]:
    """The folder's files of JSON lines; others (``a.csv.gz``) are counted in ``ignored``.

    Raises:
        CorpusError: two would be restored under one name.
    """
    names = [name for name in folder.names if is_jsonl(name)]
    for name in folder.names:
        if not is_jsonl(name):
            ignored[extension(name)] = ignored.get(extension(name), 0) + 1
    plain: dict[str, str] = {}
    for name in names:
        other = plain.setdefault(plain_name(name), name)
        if other != name:
            raise CorpusError(
                f"{show_path(join(folder.base, other))} and {show_path(join(folder.base, name))}"
                " would be restored as one file; remove or rename one"
            )
    return names


def _at(name: str, locator: bytes) -> str:
    return f"{name} at byte {os.fsdecode(locator.partition(b':')[0])}"


def _reject_of(split: str, base: str, prefix: bytes, reason: str) -> Run:
    """The one entry of a file that has no lines to list; lines have other locators and keys."""
    return Run(split, base, None, [_REJECT + os.fsencode(reason)], [prefix], [0], [0])


def _run_of(pieces: Pieces, split: str, base: str, prefix: bytes, stamp: int) -> Run:
    return Run(
        split=split,
        base=base,
        locators=[b"%d:%d" % piece for piece in pieces],
        keys=[b"%s/%012d" % (prefix, offset) for offset, _ in pieces],
        sizes=[size for _, size in pieces],
        stamps=[stamp] * len(pieces),
    )


def _text(held: Any, field: str) -> bytes:
    keys = list(held) if isinstance(held, dict) else None
    _check_field(keys, type(held[field]).__name__ if keys and field in held else None, field)
    try:
        return str(held[field]).encode()
    except UnicodeEncodeError as error:
        raise half_a_pair(error.reason, field) from error


def _huge_value(line: memoryview, field: str | None, scratch: Path) -> Value:
    """What :meth:`JsonlCorpus._value` makes of a mapped line, in a mapped file."""
    found = scan_json(line, field)
    if field is None:
        return line
    place = found.value
    _check_field(found.keys, place.kind if place else None, field)
    try:
        return mapped_copy(unescape(line, place), scratch) if place else b""
    except UnicodeEncodeError as error:
        raise half_a_pair(error.reason, field) from error


def _check_field(keys: list[str] | None, kind: str | None, field: str) -> None:
    """Raise SampleError unless an object, of these keys (None: it is none), has a string there."""
    if keys is None:
        raise SampleError(f"is no JSON object, so it has no field {field!r}")
    if kind is None:
        raise SampleError(
            f"has no field {field!r}; it has {', '.join(map(repr, keys)) or 'none'}"[:300]
        )
    if kind != "str":
        raise no_string(field, kind)
