"""DALI's own index of a tar: what lies where, so that ``fn.readers.webdataset`` need not scan it.

The format is that of DALI's ``wds2idx``, version 1.2: a line ``v1.2 {samples}``, then for each
sample one line of ``{field} {offset} {bytes} {member}`` for each of its members. DALI parts them
at white space, member names too, which it only uses in messages: white space in them is written
``%XX`` here (``wds2idx`` copies it, and DALI then refuses the file).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardkit.formats.format import Extents

VERSION = b"v1.2"

_SPACE = re.compile(rb"[\t-\r ]")
"""What the C locale calls white space."""


def dali_index_name(stem: str) -> str:
    """Name of the index beside the tar of a shard (``train-00000``)."""
    return f"{stem}.idx"


def open_with_dali(tar: str, index: str, fields: Sequence[str]) -> str:
    """The line of Python with which DALI reads one tar by itself."""
    files = f"paths={tar!r}, index_paths={index!r}"
    return f"nvidia.dali.fn.readers.webdataset({files}, ext={[*fields]})"


def dali_reader(folder: str, split: str, field: str) -> tuple[list[str], str]:
    """Lines of Python that find the tars of a split and their indexes, and DALI's call that reads a
    field of them, or of several the one that a sample has (``"jpg;png"``)."""
    lines = [
        "from pathlib import Path",
        f"tars = sorted(map(str, Path({folder!r}).glob('{split}-*.tar')))",
        "indexes = [tar.removesuffix('.tar') + '.idx' for tar in tars]",
    ]
    files = "paths=tars, index_paths=indexes"
    return lines, f"fn.readers.webdataset({files}, ext=[{field!r}])"


def dali_index(members: Sequence[bytes], extents: Mapping[str, Extents]) -> bytes:
    """The index of one tar.

    Args:
        members: one a sample: names of its members, less ``.{field}``.
        extents: field -> where its values lie, in the order of the members of a sample.
    """
    lines = [line for line in _lines(members, extents) if line]  # no members: no sample for DALI
    return b"\n".join([b"%s %d" % (VERSION, len(lines)), *lines, b""])


def _lines(members: Sequence[bytes], extents: Mapping[str, Extents]) -> Iterator[bytes]:
    places = [(f.encode(), e.start.tolist(), e.size.tolist()) for f, e in extents.items()]
    for i, member in enumerate(members):
        name = _SPACE.sub(_escaped, member)
        yield b" ".join(
            [
                b"%s %d %d %s.%s" % (field, start[i], size[i], name, field)
                for field, start, size in places
                if size[i] >= 0
            ]
        )


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02X" % found[0][0]
