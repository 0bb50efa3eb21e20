"""Third-party LMDB files: each key and its value is a sample, and the key stays.

They are read by their pages, not by the library, which a damaged file can crash.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from shardkit.errors import CorpusError, SampleError
from shardkit.formats.lmdb_pages import MAGIC, read_entries
from shardkit.inputs.base import Run
from shardkit.inputs.files import extension
from shardkit.inputs.look import Claim, Look
from shardkit.inputs.sample_files import (
    BYTES,
    LOCK,
    PICTURE,
    REJECT,
    TEXT,
    Cell,
    RecordFiles,
    SampleFile,
    claim_files,
    is_text,
    require_picture,
    what_holds,
)
from shardkit.samples.sample import Value, pack_paths
from shardkit.storage.folder import Folder
from shardkit.system.full_reads import pread
from shardkit.system.paths import first_few, show_path

_DATA = "data.mdb"
"""The file in a folder that the library made."""

LOOK_VALUES = 10
"""Values looked at, of the first keys and of the last."""

_PICKLED = re.compile(rb"\x80[\2-\5].*\.", re.DOTALL)
"""The frame of pickles of protocol 2 to 5."""

_ABOUT = re.compile(rb"__.+__|num-samples|num_samples|length")
"""Keys whose value says something of the file."""


class LmdbCorpus(RecordFiles):
    """A key with a NUL in it is written in hexadecimal, after ``0x``. The first and last values say
    what all are: images, named by their content, else ``txt``, else ``bin``."""

    kind = "lmdb"
    noun = "LMDB files"
    kept = {"values": "_how", "is_one": "_is_one"}  # noqa: RUF012 (nobody changes it)
    has_pictures = True
    has_text = True

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self._files = self.find()
        self._passed.pop(".mdb", None)  # locks, which hold nothing
        self._is_one = len(self._files) == 1
        seen = self.first_good(self._look)
        self._how = seen[0] if seen else BYTES

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        # LMDB's magic stands behind a page's header.
        magic = MAGIC.to_bytes(4, "little")
        return claim_files(look, cls, cls.is_wanted, lambda head: head[16:20] == magic)

    @classmethod
    def is_wanted(cls, name: str) -> bool:
        return extension(name) in (".lmdb", ".mdb") and name != LOCK

    def _look(self, path: Path) -> str:
        """Return what the values of a file are."""
        about: list[bytes] = []
        first: list[tuple[bytes, tuple[int, int]]] = []
        last: deque[tuple[bytes, tuple[int, int]]] = deque(maxlen=LOOK_VALUES)
        for key, place in _keys_of(path):
            if _ABOUT.fullmatch(key):
                about.append(key)
            else:
                (first if len(first) < LOOK_VALUES else last).append((key, place))
        ends = [*first, *last]
        with path.open("rb", buffering=0) as file:
            values = [pread(file.fileno(), size, start) for _, (start, size) in ends]
        found = {what_holds([value]) for value in values if value}
        kinds = sorted({re.sub(rb"[0-9]+", b"#", key) for key, _ in ends})
        recipe = "docs/recipes/records.md, LMDB of"
        if any(_PICKLED.fullmatch(value) for value in values):
            raise CorpusError(
                f"{show_path(path)} holds pickles, which can run any code, so shardkit never reads"
                f" them; if you trust whoever made it: {recipe} pickles"
            )
        if PICTURE in found and len(found) > 1:
            raise CorpusError(
                f"{show_path(path)} holds images and other values ({first_few(kinds)}), which may"
                f" be parts of samples: {recipe} several values a sample"
            )
        if 1 < len(kinds) < len(ends):
            self.notes.append(f"keys are of several kinds, {first_few(kinds)}: each is a sample")
        if about:
            names = first_few(sorted(about))
            self.notes.append(f"passed over: keys that say something of the whole file: {names}")
        return what_holds(values)

    def entries(self, file: SampleFile, plain: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        for key, place in _keys_of(plain):
            if not _ABOUT.fullmatch(key):
                yield b"0x" + key.hex().encode() if b"\0" in key else key, place

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        field = require_picture(value) if self._how == PICTURE else self._how
        if self._how == TEXT and not is_text(value):
            raise SampleError("holds text in the first values, and here no UTF-8")
        return [(field, value, f".{field}".encode())]

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        # The folder that data.mdb lies in, or the file.
        name = run.base or self.source.name
        folder = os.fsencode("" if self._is_one else name.removesuffix(f"/{_DATA}") + "/")
        return lambda key, cells: pack_paths(key, [folder + key + end for _, _, end in cells])

    def entry_name(self, run: Run, i: int) -> str:
        name = run.base or self.source.name
        is_reject = run.locators[i].startswith(REJECT)
        return name if is_reject else f"{name} at key {show_path(run.keys[i])}"


def _keys_of(path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield each key, and offset and size of its value. Raises FormatError or OSError."""
    found = read_entries(Folder(path.parent), path.name)
    with path.open("rb", buffering=0) as file:
        for row in range(len(found.start)):
            key = pread(file.fileno(), int(found.key_size[row]), int(found.key_start[row]))
            yield key, (int(found.start[row]), int(found.size[row]))
