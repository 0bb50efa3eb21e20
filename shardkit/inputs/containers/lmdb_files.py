"""LMDB files that others made: each key and its value is a sample, and the key stays.

They are read by their pages, not by the library, which a damaged file can bring down.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Self

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.formats.lmdb_pages import Entries, read_entries
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.base import Input, Run
from shardkit.inputs.containers.lmdb_values import (
    BYTES,
    PICTURE,
    TEXT,
    Place,
    first_values,
    how_of,
    is_about_file,
    is_pickled,
    kind_of_key,
    number_of_key,
    shown_key,
)
from shardkit.inputs.containers.tfrecord_schema import is_text
from shardkit.inputs.endings import LMDB_EXTENSIONS
from shardkit.inputs.files import input_stamp
from shardkit.inputs.folders import list_names, nothing_found
from shardkit.inputs.images import not_image
from shardkit.inputs.lines import read_pieces
from shardkit.inputs.names import extension, join
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.storage.folder import Folder
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import stamp_of_open

DATA_NAME = "data.mdb"
"""The file in a folder that the library made."""

LOCK_NAME = "lock.mdb"
"""Beside it, the library's own file of who reads: it holds nothing of the data."""


RUN_ENTRIES = 65_536

_REJECT = b"!"
"""Begins a locator that holds, in place of a value's place, why a file is refused."""

_Item = tuple[bytes, Place]
"""(key, place of its value)."""


@dataclass(frozen=True)
class _Database:
    split: str
    base: str
    """The file, relative to the source; ``""`` where it is the source."""


class LmdbCorpus(Input):
    """A locator is ``start:size``, in the file, and the key is the database's own; one with a NUL
    in it is written in hexadecimal, after ``0x``. Where kinds of key have the same numbers, and
    values of different fields, those of one number are a sample: the number is its key, and the
    locator has a place for each kind, with commas.

    What values are is decided by the first of them, for each kind of key (``image-#``, ``label-#``:
    digits count alike): pictures, named by what they hold, else ``txt``, else ``bin``.
    """

    kind = "lmdb"
    noun = "LMDB files"
    has_pictures = True
    has_text = True
    is_one_file = True

    def __init__(self, source: Path) -> None:
        self.source = source
        self.classes: list[str] | None = None
        self.ignored: dict[str, int] = {}
        self._ignored: dict[str, int] = {}
        self._about: set[bytes] = set()
        self._databases = find_databases(source, self._ignored)
        self._is_one = len(self._databases) == 1
        self._hows, self._by_kind, are_alike = self._look()
        are_fields = len({*self._hows.values()}) == len(self._hows)
        self._joined = [*self._hows] if are_alike and are_fields else []

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.source, made.classes, made.ignored, made._ignored = source, None, {}, {}
        made._about, made._databases, made._is_one = set(), [], spec["is_one"]
        made._hows, made._by_kind = spec["values"], spec["by_kind"]
        made._joined = spec.get("joined", [])
        return made

    def spec(self) -> dict[str, Any]:
        made = {"values": self._hows, "by_kind": self._by_kind, "is_one": self._is_one}
        return {"kind": self.kind, **made, **({"joined": self._joined} if self._joined else {})}

    def splits(self) -> list[str]:
        return list(dict.fromkeys(each.split for each in self._databases))

    def _look(self) -> tuple[dict[str, str], bool, bool]:
        """Return what the values of each kind of key are, by the first undamaged file, and if kinds
        have the same numbers."""
        for each in self._databases:
            path = self._path(each.base)
            with os_errors(f"opening {show_path(path)}"):
                try:
                    input_stamp(path)
                    entries = read_entries(Folder(path.parent), path.name)
                except FormatError:
                    continue  # listing says what is wrong
                with path.open("rb", buffering=0) as file:
                    values, are_alike = first_values(_items(entries, file.fileno()))
                    held = {
                        kind: [pread(file.fileno(), size, start) for start, size in places]
                        for kind, places in values.items()
                    }
            is_folder = path.name == DATA_NAME
            opened = path.parent.name if is_folder else path.name
            hows = {
                kind.decode("latin-1"): how_of(own, path, opened, is_folder)
                for kind, own in held.items()
            }
            return hows, len(hows) > 1 or b"" not in values, are_alike
        return {}, False, False

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.ignored.update(self._ignored)
        found = False
        self.notes = []
        if self.splits() == ["train"]:
            self.notes += mixed_names([_named(each.base) for each in self._databases])
        for each in self._databases:
            for run in self._file_runs(each):
                found = True
                yield run
        if self._about:
            names = ", ".join(map(show_path, sorted(self._about)))
            told = f"passed over: keys that say something of the whole file: {names}"
            self.notes.append(told[:300])
        if len(numbered := [show_path(kind) for kind in self._hows if "#" in kind]) > 1:
            how = "those of one number are a sample" if self._joined else "each is a sample"
            self.notes.append(f"keys are of several kinds, {', '.join(numbered)[:200]}: {how}")
        if not found:
            raise nothing_found(self.noun, self.source, self.ignored)

    def _file_runs(self, database: _Database) -> Iterator[Run]:
        path = self._path(database.base)
        with os_errors(f"listing the keys of {show_path(path)}"):
            try:
                stamp = input_stamp(path)
                entries = read_entries(Folder(path.parent), path.name)
            except FormatError as error:
                reason = _REJECT + os.fsencode(str(error).removeprefix(f"{show_path(path)}: "))
                key = os.fsencode(database.base or self.source.name)
                yield Run(database.split, database.base, None, [reason], [key], [0], [0])
                return
            with path.open("rb", buffering=0) as file:
                rows = self._rows(entries, file.fileno(), path)
                while part := [*islice(rows, RUN_ENTRIES)]:
                    yield _run_of(database, part, stamp)

    def _rows(self, entries: Entries, fd: int, path: Path) -> Iterator[Sequence[_Item]]:
        """Yield the entries of each sample. Raises CorpusError if a file has other kinds or numbers
        than the first."""
        kinds = [kind.encode("latin-1") for kind in self._joined] or [b""]
        items = [_without({*kinds} - {own}, _items(entries, fd, self._about)) for own in kinds]
        for row in zip_longest(*items, fillvalue=(b"", (0, 0))):
            if self._joined and not _is_one_sample([key for key, _ in row], kinds):
                raise CorpusError(
                    f"{show_path(path)} is not all {' and '.join(self._joined)} of the same"
                    f" numbers, as the first file is: {show_path(max(row)[0])}; pack it apart"
                )
            yield row

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        name = run.base or self.source.name
        if run.locators and run.locators[0].startswith(_REJECT):
            return SampleBatch(rejects=[(name, os.fsdecode(run.locators[0].removeprefix(_REJECT)))])
        batch, rows = SampleBatch(), []
        folder = b"" if self._is_one else os.fsencode(name.removesuffix(f"/{DATA_NAME}")) + b"/"
        values = self._values(run)
        for key in run.keys:
            names = [kind.encode("latin-1").replace(b"#", key) for kind in self._joined] or [key]
            own = [*islice(values, len(names))]
            try:
                held = [self._field(n, value) for n, value in zip(names, own, strict=True)]
            except SampleError as error:
                batch.rejects.append((_at(name, key), str(error)))
                continue
            rows.append(dict(held))
            batch.keys.append(key)
            fields = sorted((field, n) for n, (field, _) in zip(names, held, strict=True))
            paths = [b"%s%s.%s" % (folder, n, field.encode()) for field, n in fields]
            batch.paths.append(pack_paths(key, paths))
        for field in sorted({field for row in rows for field in row}):
            batch.columns[field] = [row.get(field) for row in rows]
        return batch

    def entry_name(self, run: Run, i: int) -> str:
        return _at(run.base or self.source.name, run.keys[i])

    def _path(self, base: str) -> Path:
        return self.source / base if base else self.source

    def _values(self, run: Run) -> Iterator[Value | None]:
        pieces = [
            (int(start), int(size))
            for locator in run.locators
            for start, _, size in (x.partition(b":") for x in locator.split(b","))
        ]
        path = self._path(run.base)
        with os_errors(f"reading {show_path(path)}"), path.open("rb", buffering=0) as file:
            if not run.stamps or stamp_of_open(file.fileno(), path) == run.stamps[0]:
                yield from read_pieces(file.fileno(), pieces)
            else:
                yield from [None] * len(pieces)

    def _field(self, key: bytes, value: Value | None) -> tuple[str, Value]:
        """The field of a value. Raises SampleError if it is another than the first ones."""
        if value is None:
            raise SampleError("the file changed while packing")
        kind = kind_of_key(key) if self._by_kind else b""
        how = self._hows.get(kind.decode("latin-1"), BYTES)
        if is_pickled(value):
            raise SampleError("holds a pickle, which shardkit never reads")
        if how == PICTURE:
            held = image_field(bytes(value[:HEAD_BYTES]))
            if held is None:
                raise SampleError(f"the first values are pictures, and this is {not_image(value)}")
            return held, value
        if how == TEXT and not is_text(value):
            raise SampleError("the first values are text in UTF-8, and this is not")
        return how, value


def _at(name: str, key: bytes) -> str:
    return f"{name} at key {show_path(key)}"


def find_databases(source: Path, ignored: dict[str, int]) -> list[_Database]:
    """The files of a source: itself, the one in its folder, or those in it, one a split perhaps."""
    if not source.is_dir():
        return [_Database("train", "")]
    top = list_names(source, "", None, ignored)
    if DATA_NAME in top.names:
        _count([name for name in top.names if name not in (DATA_NAME, LOCK_NAME)], ignored)
        return [_Database("train", DATA_NAME)]
    bases = [join(name, DATA_NAME) for name in top.folders if (source / name / DATA_NAME).is_file()]
    others: list[str] = []
    for name in top.names:  # what leads nowhere may have been a folder of one
        is_database = extension(name) in LMDB_EXTENSIONS or not (source / name).exists()
        (bases if is_database else others).append(name)
    _count(others, ignored)
    splits = splits_by_words([*map(_named, bases)])
    made = [
        _Database(split, base)
        for split, base in zip(splits or ["train"] * len(bases), bases, strict=True)
    ]
    return sorted(made, key=lambda each: (each.split, each.base))


def _named(base: str) -> str:
    """What a database is called: the folder that ``data.mdb`` lies in, or the file."""
    return base.removesuffix(f"/{DATA_NAME}")


def _count(names: Sequence[str], ignored: dict[str, int]) -> None:
    for name in names:
        ignored[extension(name)] = ignored.get(extension(name), 0) + 1


def _items(entries: Entries, fd: int, about: set[bytes] | None = None) -> Iterator[_Item]:
    """Every key and its value's place. Keys that say something of the file go into ``about``."""
    columns = (entries.key_start, entries.key_size, entries.start, entries.size)
    for key_start, key_size, start, size in zip(*(c.tolist() for c in columns), strict=True):
        key = pread(fd, key_size, key_start)
        if not is_about_file(key):
            yield key, (start, size)
        elif about is not None:
            about.add(key)


def _without(kinds: set[bytes], items: Iterator[_Item]) -> Iterator[_Item]:
    return (item for item in items if not kinds or kind_of_key(item[0]) not in kinds)


def _is_one_sample(keys: list[bytes], kinds: list[bytes]) -> bool:
    is_of_one_number = len({*map(number_of_key, keys)}) == 1
    return is_of_one_number and [*map(kind_of_key, keys)] == kinds


def _run_of(database: _Database, rows: Sequence[Sequence[_Item]], stamp: int) -> Run:
    return Run(
        split=database.split,
        base=database.base,
        locators=[b",".join(b"%d:%d" % place for _, place in row) for row in rows],
        keys=[number_of_key(r[0][0]) if len(r) > 1 else shown_key(r[0][0]) for r in rows],
        sizes=[sum(size for _, (_, size) in row) for row in rows],
        stamps=[stamp] * len(rows),
    )
