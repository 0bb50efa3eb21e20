"""Samples of a tar that somebody else made, grouped as the webdataset library groups them.

Members that follow one another and share a key are one sample. Where a key comes back later the
library makes another sample of it; here :mod:`shardkit.tars.scattered` decides. The key is the
member's name up to the first dot of its *file* name, the field is the rest, in lower case. Names
without a dot, names in ``__double_underscores__`` and hidden files are not part of any sample (the
library makes samples of hidden files in folders, so that macOS's ``._a.jpg`` would tear the real
ones apart).
"""

from __future__ import annotations

import os
import re
import tarfile
from array import array
from collections import Counter
from pathlib import Path

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import FormatError
from shardkit.formats.format import Extents
from shardkit.index.file_names import is_field_name
from shardkit.samples.encoding import BYTES
from shardkit.samples.sample import Value, pack_paths
from shardkit.system.file_io import pread
from shardkit.system.paths import show_path
from shardkit.tars.members import tar_members
from shardkit.tars.scattered import regroup

MAX_FIELDS = 256
"""Fields a dataset may have: the row index spends 16 bytes on each in every sample, even where it
is absent. ``frame.0001.jpg``, ``frame.0002.jpg`` ... would be one sample with a field a picture."""

MAX_CLS_BYTES = 1024
"""No integer is read from a longer ``cls``."""

_META = re.compile(rb"__[^/]*__($|/)")


def read_tar(path: Path) -> TarSamples:
    """Scan one tar.

    Raises:
        FormatError: damaged, or of members that cannot be samples; names tar and member.
        UsageError: compressed. OSError: it cannot be read.
    """
    where = show_path(path)
    samples = TarSamples()
    with path.open("rb") as file:
        for member in tar_members(file, where):
            name = member.name.encode("utf-8", "surrogateescape")
            found = split_name(name)
            if found is None:
                samples.pass_over(member)
            if found is None or not _is_file(member, where):
                continue
            try:
                samples.add(*found, name, member.offset_data, member.size)
            except ValueError as error:
                raise FormatError(f"{where}: member {show_path(name)}: {error}") from error
            if found[1] == "cls" and member.size <= MAX_CLS_BYTES:
                value = pread(file.fileno(), member.size, member.offset_data)
                samples.cls[len(samples.keys) - 1] = value
    try:
        samples.close()
    except ValueError as error:
        raise FormatError(f"{where}: {error}") from error
    return samples


def split_name(name: bytes) -> tuple[bytes, str] | None:
    """(key, field) of a member, or None if it is no part of a sample.

    The key is not decoded in any way: percent signs in it are percent signs.
    """
    folder, slash, file = name.rpartition(b"/")
    stem, dot, field = file.partition(b".")
    if not stem or not dot or _META.match(name):
        return None
    return folder + slash + stem, field.decode("utf-8", "surrogateescape").lower()


def _is_file(member: tarfile.TarInfo, where: str) -> bool:
    """Whether a member holds data. Folders, devices and FIFOs never do; a link says there should
    be some, elsewhere."""
    if member.islnk() or member.issym():
        raise FormatError(
            f"{where}: member {show_path(member.name)} is a link to {show_path(member.linkname)},"
            " not a file; make the tar with --dereference --hard-dereference"
        )
    return member.isreg()


class TarSamples:
    """The samples of one tar, as they are found; :meth:`close` says that all are.

    Attributes:
        keys, paths: one a sample; paths as :func:`shardkit.samples.sample.pack_paths` packs them.
        cls: number of a sample in this tar -> its ``cls`` value.
        passed: members that are no part of a sample, by their endings.
    """

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.paths: list[bytes] = []
        self.cls: dict[int, bytes] = {}
        self.passed: Counter[str] = Counter()
        self._places: dict[str, array[int]] = {}
        self._names: dict[str, bytes] = {}

    def add(self, key: bytes, field: str, name: bytes, start: int, size: int) -> None:
        """Take one member in. Raises ValueError with the reason if it fits no sample."""
        if not self.keys or key != self.keys[-1]:
            self._end_piece()
            if b"\0" in name:
                raise ValueError("its name holds a NUL")
            self.keys.append(key)
        if field in self._names:
            raise ValueError(f"its sample has a field {field!r} already; rename one of the two")
        places = self._places.get(field)
        if places is None:
            places = self._places[field] = self._new_field(field)
        self._names[field] = name
        places.extend((len(self.keys) - 1, start, size))

    def pass_over(self, member: tarfile.TarInfo) -> None:
        """Count a member that is no part of a sample; folders are none."""
        name = member.name.rpartition("/")[2]
        if not member.isdir() and name:
            hidden = name.startswith(".")
            self.passed["hidden" if hidden else os.path.splitext(name)[1].lower()] += 1

    def _new_field(self, field: str) -> array[int]:
        if not is_field_name(field):
            raise ValueError(
                f"what follows the first dot, {field!r}, cannot be a field name; rename it"
            )
        check_num_fields(len(self._places) + 1)
        return array("q")

    def close(self) -> None:
        """Join samples whose members do not lie together.

        Raises:
            ValueError: members of one key fit together in no one way.
        """
        self._end_piece()
        fields = sorted(self._places)
        sample_of = regroup(self.keys, fields, [self._table(field)[:, 0] for field in fields])
        if sample_of is not None:
            self._join(sample_of, fields)

    def _join(self, sample_of: Integers, fields: list[str]) -> None:
        firsts = np.unique(sample_of, return_index=True)[1].tolist()
        is_joined = np.bincount(sample_of)[sample_of] > 1
        paths = {int(i): iter(self.paths[i].split(b"\0")) for i in np.flatnonzero(is_joined)}
        joined: dict[int, list[bytes]] = {}
        for field in fields:
            pieces = self._table(field)[:, 0]
            for piece in pieces[is_joined[pieces]].tolist():
                joined.setdefault(int(sample_of[piece]), []).append(next(paths[piece]))
            pieces[:] = sample_of[pieces]
        self.keys = [self.keys[first] for first in firsts]
        self.paths = [
            b"\0".join(joined[i]) if i in joined else self.paths[first]
            for i, first in enumerate(firsts)
        ]
        self.cls = {int(sample_of[piece]): value for piece, value in self.cls.items()}

    def _table(self, field: str) -> Integers:
        """(n, 3): number of the sample, start and size of each member of a field; writable."""
        return np.frombuffer(self._places[field], np.int64).reshape(-1, 3)

    def _end_piece(self) -> None:
        if self._names:
            files = [plain_path(self._names[field]) for field in sorted(self._names)]
            self.paths.append(pack_paths(self.keys[-1], files))
            self._names = {}

    def extents(self) -> dict[str, Extents]:
        """Where each field lies in the tar, by sorted name."""
        return {field: self._extent(self._table(field)) for field in sorted(self._places)}

    def _extent(self, places: Integers) -> Extents:
        row, start, size = places.T
        starts, sizes = np.full((2, len(self.keys)), -1, np.int64)
        starts[row], sizes[row] = start, size
        return Extents(starts, sizes, BYTES)

    def columns(self) -> dict[str, list[Value | None]]:
        """The values that the row index holds itself: ``cls``, if there is any."""
        return {"cls": [self.cls.get(row) for row in range(len(self.keys))]}


def check_num_fields(num_fields: int) -> None:
    """Raise ValueError where there are too many."""
    if num_fields > MAX_FIELDS:
        raise ValueError(
            f"over {MAX_FIELDS} different fields; WebDataset cuts names at the first dot of the"
            " file name: frame.0001.jpg is the field 0001.jpg of the sample frame"
        )


def plain_path(name: bytes) -> bytes:
    """The path that ``tar xf`` would give a member: ``tar cf x.tar .`` puts ``./`` before all."""
    while name.startswith(b"./"):
        name = name[2:].lstrip(b"/")
    return name
