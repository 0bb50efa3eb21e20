"""Third-party LMDB files: each key and its value is a sample, and the key stays.

They are read by their pages, not by the library, which a damaged file can crash.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.formats.lmdb_pages import MAGIC, read_entries
from shardkit.inputs.files import extension, input_stamp
from shardkit.inputs.lines import Pieces
from shardkit.inputs.look import Claim, Look
from shardkit.inputs.sample_files import (
    LOCK,
    PICTURE,
    TEXT,
    RecordFiles,
    SampleFile,
    claim_files,
    is_text,
    require_picture,
    what_holds,
)
from shardkit.samples.sample import Value
from shardkit.storage.folder import Folder
from shardkit.system.full_reads import pread
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

_DATA = "data.mdb"
"""The file in a folder that the library made."""

LOOK_VALUES = 20
"""Values of a kind of key that say what it holds."""

MAX_KINDS = 64
"""Kinds of keys: where there are more, keys are names, and all are of one kind."""

_DIGITS = re.compile(rb"[0-9]+")
_ABOUT = re.compile(rb"__.+__|num-samples|num_samples|length")
"""Keys whose value says something of the file."""


class LmdbCorpus(RecordFiles):
    """A key with a NUL in it is written in hexadecimal, after ``0x``. If kinds of key (``image-#``,
    ``label-#``: digits count alike) have the same numbers, and hold different fields, the values of
    one number are a sample: the number is its key, and its locator has a place for each kind.

    The first values of each kind say what it holds: pictures, named by their content, else
    ``txt``, else ``bin``.
    """

    kind = "lmdb"
    noun = "LMDB files"
    has_pictures = True
    has_text = True

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self._files = self._find(_is_database_name)
        self._is_one = len(self._files) == 1
        self._hows: dict[str, str] = {}
        for file in self._files:
            path = self._path(file.base)
            with os_errors(f"opening {show_path(path)}"), suppress(FormatError):
                input_stamp(path)  # listing says what is wrong
                self._look(_Keys(path), path)
                break
        self.notes += self._notes_on_names()

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        return claim_files(look, cls, _is_database_name, is_database)

    def _take(self, spec: dict[str, Any]) -> None:
        self._hows, self._is_one = spec["values"], spec["is_one"]

    def spec(self) -> dict[str, Any]:
        return {"kind": self.kind, "values": self._hows, "is_one": self._is_one}

    def _look(self, keys: _Keys, path: Path) -> None:
        """Decide by the first undamaged file what values are: of each kind of key if they make a
        sample, else under ``""`` of all."""
        held: dict[str, list[bytes]] = {}
        with path.open("rb", buffering=0) as file:
            for kind, rows in keys.kinds.items():
                places = [keys.place(row) for row in rows[:LOOK_VALUES]]
                values = [pread(file.fileno(), size, start) for start, size in places]
                held[kind.decode("latin-1")] = values
        every = [value for values in held.values() for value in values]
        if any(map(is_pickled, every)):
            raise CorpusError(
                f"{show_path(path)} holds pickles, which can run any code, so shardkit never reads"
                " them; if you trust whoever made it: docs/recipes/records.md, LMDB of pickles"
            )
        self._hows = {kind: what_holds(values) for kind, values in held.items()}
        found, kinds = {*self._hows.values()}, f"keys are of several kinds, {first_few([*held])}"
        if keys.are_alike and len(found) == len(held):
            self.notes.append(f"{kinds}: those of one number are a sample")
        elif PICTURE in found and len(found) > 1:
            raise CorpusError(
                f"{show_path(path)}: {kinds}, and images are not all of one number with the others:"
                " docs/recipes/records.md, LMDB of several values a sample"
            )
        else:
            self._hows = {"": what_holds(every)}
            if keys.are_alike:
                self.notes.append(f"{kinds}: each is a sample")
        if keys.about:
            names = first_few(sorted(keys.about))
            self.notes.append(f"passed over: keys that say something of the whole file: {names}")

    def _entries(self, file: SampleFile, path: Path) -> Iterator[tuple[bytes, Pieces]]:
        keys = _Keys(path)
        is_joined = "" not in self._hows
        kinds = [kind.decode("latin-1") for kind in keys.kinds]
        if is_joined and not (keys.are_alike and kinds == [*self._hows]):
            raise CorpusError(
                f"{show_path(path)} is not all {' and '.join(self._hows)} of the same numbers, as"
                " the first file is; pack it apart"
            )
        every = [sorted(row for rows in keys.kinds.values() for row in rows)]
        with path.open("rb", buffering=0) as opened:
            for rows in zip(*(keys.kinds.values() if is_joined else every), strict=True):
                key = keys.key(opened.fileno(), rows[0])
                shown = number_of_key(key) if is_joined else shown_key(key)
                yield shown, [keys.place(row) for row in rows]

    def _sample(self, name: str, key: bytes, values: list[Value]) -> list[tuple[str, bytes, Value]]:
        folder = b"" if self._is_one else os.fsencode(_title(name)) + b"/"
        sample = []
        for (kind, how), value in zip(self._hows.items(), values, strict=True):
            own = kind.encode("latin-1").replace(b"#", key) or key
            field = require_picture(value) if how == PICTURE else how
            if how == TEXT and not is_text(value):
                raise SampleError("holds text in the first values, and here no UTF-8")
            sample.append((field, b"%s%s.%s" % (folder, own, field.encode()), value))
        return sample

    def _at(self, name: str, key: bytes) -> str:
        return f"{name} at key {show_path(key)}"


class _Keys:
    """The keys of a file. Reading them raises FormatError or OSError.

    Attributes:
        kinds: rows of each kind of key, under ``b""`` where kinds are too many. are_alike: True if
            there are several kinds with one number in their keys, and the same ones. about: keys
            that say something of the file.
    """

    def __init__(self, path: Path) -> None:
        self._entries = read_entries(Folder(path.parent), path.name)
        self.about: set[bytes] = set()
        kinds: dict[bytes, array[int]] = {}
        numbers: dict[bytes, xxhash.xxh3_128] = {}
        with path.open("rb", buffering=0) as file:
            for row in range(len(self._entries.start)):
                key = self.key(file.fileno(), row)
                if _ABOUT.fullmatch(key) is not None:
                    self.about.add(key)
                    continue
                kind = b"" if b"" in kinds else kind_of_key(shown_key(key))
                kinds.setdefault(kind, array("q")).append(row)
                numbers.setdefault(kind, xxhash.xxh3_128()).update(number_of_key(key) + b" ")
                if len(kinds) > MAX_KINDS:
                    rows = array("q", sorted(row for own in kinds.values() for row in own))
                    kinds.clear()
                    kinds[b""] = rows
        is_numbered = len(kinds) > 1 and all(kind.count(b"#") == 1 for kind in kinds)
        self.kinds = kinds
        self.are_alike = is_numbered and len({own.digest() for own in numbers.values()}) == 1

    def key(self, fd: int, row: int) -> bytes:
        return pread(fd, int(self._entries.key_size[row]), int(self._entries.key_start[row]))

    def place(self, row: int) -> tuple[int, int]:
        return int(self._entries.start[row]), int(self._entries.size[row])


def is_database(head: bytes) -> bool:
    """Return True if a file begins as LMDB's: with its magic, behind a page's header."""
    return head[16:20] == MAGIC.to_bytes(4, "little")


def _is_database_name(name: str) -> bool:
    return extension(name) in (".lmdb", ".mdb") and name != LOCK


def _title(path: str) -> str:
    """Return what a database is called: the folder that ``data.mdb`` lies in, or the file."""
    return path.removesuffix(f"/{_DATA}")


def kind_of_key(key: bytes) -> bytes:
    """Return the kind of a key: of ``image-000001`` it is ``image-#``."""
    return _DIGITS.sub(b"#", key)


def number_of_key(key: bytes) -> bytes:
    """Return the digits in a key."""
    return b"-".join(_DIGITS.findall(key))


def shown_key(key: bytes) -> bytes:
    """Return the sample's key: one without NUL."""
    return b"0x" + key.hex().encode() if b"\0" in key else key


def is_pickled(value: Value) -> bool:
    """Return True if bytes are framed as pickles of protocol 2 to 5 are."""
    begins = len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5
    return begins and bytes(value[-1:]) == b"."
