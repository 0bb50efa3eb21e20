"""Third-party LMDB files: each key and its value is a sample, and the key stays.

They are read by their pages, not by the library, which a damaged file can crash.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.formats.lmdb_pages import MAGIC, read_entries
from shardkit.inputs.files import extension, input_stamp
from shardkit.inputs.folders import list_names, pass_over
from shardkit.inputs.lines import Pieces
from shardkit.inputs.look import Claim, Look
from shardkit.inputs.sample_files import (
    BYTES,
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
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.storage.folder import Folder
from shardkit.system.full_reads import pread
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

_DATA = "data.mdb"
"""The file in a folder that the library made."""

_LOCK = "lock.mdb"
"""The library's own file next to it, a table of readers: it holds no data."""

_ENDINGS = frozenset({".lmdb", ".mdb"})

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
        names = [""]
        if source.is_dir():
            top = list_names(source, "", None, self._ignored)
            held = [name for name in top.folders if (source / name / _DATA).is_file()]
            # A name that leads nowhere may have been a folder of one: reading refuses it.
            lost = [name for name in top.names if not (source / name).exists()]
            names = _databases(top.names, held, lost)
            for name in {*top.names} - {*names, _LOCK}:
                pass_over(name, self._ignored)
        self._files = _in_splits(names)
        self._is_one = len(self._files) == 1
        self._hows: dict[str, str] = {}
        self._joined: list[str] = []
        for file in self._files:
            path = self._path(file.base)
            with os_errors(f"opening {show_path(path)}"), suppress(FormatError):
                input_stamp(path)  # listing says what is wrong
                self._look(_Keys(path), path)
                break
        if self.splits() == ["train"]:
            self.notes += mixed_names([*map(_title, names)])

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        held = {each.base for each in look.folders if _DATA in each.names}
        names = _databases(look.top.names, sorted(held & {*look.top.folders}))
        num_own = look.count(_ENDINGS)  # with lock.mdb
        return claim_files(look, cls, _in_splits(names), num_own, is_database)

    def _take(self, spec: dict[str, Any]) -> None:
        self._hows, self._joined = spec["values"], spec.get("joined", [])
        self._is_one = spec["is_one"]

    def spec(self) -> dict[str, Any]:
        by_kind = bool(self._hows) and "" not in self._hows
        made = {"values": self._hows, "by_kind": by_kind, "is_one": self._is_one}
        return {"kind": self.kind, **made, **({"joined": self._joined} if self._joined else {})}

    def _look(self, keys: _Keys, path: Path) -> None:
        """Decide by the first undamaged file what the values of each kind of key are."""
        with path.open("rb", buffering=0) as file:
            for kind, rows in keys.kinds.items():
                places = [keys.place(row) for row in rows[:LOOK_VALUES]]
                values = [pread(file.fileno(), size, start) for start, size in places]
                if any(map(is_pickled, values)):
                    raise CorpusError(
                        f"{show_path(path)} holds pickles, which can run any code, so shardkit"
                        " never reads them; if you trust whoever made it:"
                        " docs/recipes/records.md, LMDB of pickles"
                    )
                self._hows[kind.decode("latin-1")] = what_holds(values)
        if keys.are_alike and len({*self._hows.values()}) == len(self._hows):
            self._joined = [*self._hows]
        numbered = [kind for kind in self._hows if "#" in kind]
        if len(numbered) > 1:
            how = "those of one number are a sample" if self._joined else "each is a sample"
            self.notes.append(f"keys are of several kinds, {first_few(numbered)}: {how}")
        if keys.about:
            names = first_few(sorted(keys.about))
            self.notes.append(f"passed over: keys that say something of the whole file: {names}")

    def _entries(self, file: SampleFile, path: Path) -> Iterator[tuple[bytes, Pieces]]:
        keys = _Keys(path)
        kinds = [kind.decode("latin-1") for kind in keys.kinds]
        if self._joined and not (keys.are_alike and kinds == self._joined):
            raise CorpusError(
                f"{show_path(path)} is not all {' and '.join(self._joined)} of the same numbers, as"
                " the first file is; pack it apart"
            )
        with path.open("rb", buffering=0) as opened:
            if self._joined:
                for rows in zip(*keys.kinds.values(), strict=True):
                    number = number_of_key(keys.key(opened.fileno(), rows[0]))
                    yield number, [keys.place(row) for row in rows]
                return
            for row in sorted(row for rows in keys.kinds.values() for row in rows):
                yield shown_key(keys.key(opened.fileno(), row)), [keys.place(row)]

    def _sample(self, name: str, key: bytes, values: list[Value]) -> list[tuple[str, bytes, Value]]:
        folder = b"" if self._is_one else os.fsencode(_title(name)) + b"/"
        names = [kind.encode("latin-1").replace(b"#", key) for kind in self._joined] or [key]
        sample = []
        for own, value in zip(names, values, strict=True):
            how = self._hows.get("") or self._hows.get(kind_of_key(own).decode("latin-1"), BYTES)
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


def _databases(names: list[str], folders: list[str], lost: Sequence[str] = ()) -> list[str]:
    """Return the files of a source, by names of its top folder and of folders with a database:
    the one in it, or several."""
    if _DATA in names:
        return [_DATA]
    files = [n for n in names if n in lost or (extension(n) in _ENDINGS and n != _LOCK)]
    return [*(f"{name}/{_DATA}" for name in folders), *files]


def _in_splits(names: list[str]) -> list[SampleFile]:
    splits = splits_by_words([*map(_title, names)]) or ["train"] * len(names)
    made = [SampleFile(split, name) for split, name in zip(splits, names, strict=True)]
    return sorted(made, key=lambda file: (file.split, file.base))


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
