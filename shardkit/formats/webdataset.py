"""webdataset: a plain tar, members of a sample one after another, ``{key}.{field}``.

Written by hand: tarfile makes 41,000 members a second, this over a million. Headers of a block of
samples are one NumPy matrix of 512-byte rows; small values are copied between them; large ones
are handed to the kernel where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardkit.arrays import Bytes, Integers
from shardkit.formats.columns import sizes_of
from shardkit.formats.format import Extents, Format
from shardkit.formats.huggingface_card import CARD, card_of
from shardkit.formats.member_names import key_of_member, member_key, member_keys
from shardkit.formats.writev import Buffer, write_all
from shardkit.samples.encoding import BYTES, Encoding
from shardkit.samples.sample import Value
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

__all__ = ["WebDatasetFormat", "headers", "key_of_member", "member_key", "pax_rows"]

ROW = 512
"""A tar is made of rows of this many bytes."""

MAX_NAME = 100
MAX_SIZE = 8**11 - 1
"""Longer names, and values of 8 GiB and more, need a pax header in front."""

BLOCK_MEMBERS = 2048
"""Members a block: its rows, some 3 MiB, still fit the caches."""

TRAILER = bytes(2 * ROW)
"""The end of a tar. GNU tar pads on to 10,240 bytes for tapes; no reader needs it."""


class WebDatasetFormat(Format):
    """One tar a shard; see :class:`shardkit.formats.format.Format`."""

    name = "webdataset"
    aliases = ("wds", "tar")
    suffix = "tar"
    library = "webdataset"
    has_dali_reader = True
    signpost_names = frozenset({CARD})

    def open_with(self, path: str) -> str:
        return f"webdataset.WebDataset({path!r}, shardshuffle=False)"

    def example(self, folder: str, stems: Sequence[str], field: str, encoding: Encoding) -> str:
        count = len(stems)
        shards = "1 shard" if count == 1 else f"{count} shards"
        return (
            "import webdataset\n"
            f"# {shards}, dealt out whole: of more workers, on all GPUs together, some get\n"
            "# none. WebDataset(urls, resampled=True) gives all of them samples without end.\n"
            "dataset = webdataset.WebDataset(\n"
            f"    {urls_of(folder, stems)},\n"
            f"    shardshuffle={count if count > 1 else False},\n"
            "    nodesplitter=webdataset.split_by_node,\n"
            "    empty_check=False,\n"
            ")\n"
            "sample = next(iter(dataset))"
        )

    def signposts(self, fields: Sequence[str], classes: Sequence[str] | None) -> dict[str, bytes]:
        card = card_of(fields, classes)
        return {} if card is None else {CARD: card}

    def write(
        self,
        folder: Path,
        stem: str,
        keys: list[bytes],
        columns: dict[str, list[Value | None]],
        compression: int | None,
    ) -> dict[str, Extents]:
        fields = sorted(columns)
        path = folder / f"{stem}.{self.suffix}"
        start = np.zeros((len(fields), len(keys)), np.int64)
        size = np.full_like(start, -1)
        step = max(1, BLOCK_MEMBERS // max(1, len(fields)))
        with os_errors(f"writing {show_path(path)}"), path.open("wb") as out:
            offset = 0
            for row in range(0, len(keys), step):
                block = slice(row, row + step)
                made = _block(keys[block], fields, [columns[f][block] for f in fields], offset)
                start[:, block], size[:, block] = made.start.T, made.size.T
                offset = write_all(out.fileno(), made.buffers, offset)
            write_all(out.fileno(), [TRAILER], offset)
        return {f: Extents(start[i], size[i], BYTES) for i, f in enumerate(fields)}


def urls_of(folder: str, stems: Sequence[str]) -> str:
    """A Python expression for the tars of these shards: in braces, as people write it, unless the
    library would read the path of the folder as something else."""
    paths = [os.path.join(folder, f"{stem}.tar") for stem in stems]
    split, _, first = stems[0].rpartition("-")
    last = stems[-1].rpartition("-")[2]
    if any(mark in folder for mark in ("{", "}", "$", "::", "\\")) or len(paths) == 1:
        return repr(paths)
    return repr(os.path.join(folder, f"{split}-{{{first}..{last}}}.tar"))


# --- headers ------------------------------------------------------------------------------

_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)
_BLANK_CHECKSUM = 8 * ord(" ")


def _template(kind: bytes) -> Bytes:
    """A header without name, size and checksum: mode 0644, nobody's, of the year 1970."""
    number = b"0000000\0"
    head = bytes(100) + b"0000644\0" + number + number + b"0" * 11 + b"\0" + b"0" * 11 + b"\0"
    head += bytes(6) + b"\0 " + kind + bytes(100) + b"ustar\00000" + bytes(80)
    return np.frombuffer(head.ljust(ROW, b"\0"), np.uint8)


_FILE = _template(b"0")
_PAX = _template(b"x")


def _octal(numbers: Integers, digits: int) -> Bytes:
    shifts = np.arange(3 * (digits - 1), -1, -3)
    return ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def headers(names: Sequence[bytes], sizes: Integers, template: Bytes = _FILE) -> Bytes:
    """(n, 512): a ustar header a member. Names are cut at 100 bytes, sizes taken modulo 8 GiB."""
    width = min(MAX_NAME, max(map(len, names), default=0)) or 1
    rows = np.empty((len(names), ROW), np.uint8)
    rows[:] = template
    rows[:, :width] = np.array(names, f"S{width}").view(np.uint8).reshape(-1, width)
    rows[:, _SIZE] = _octal(sizes, 11)
    constant = (
        int(template.sum()) - 11 * ord("0") - int(template[_CHECKSUM.stop + 1]) + _BLANK_CHECKSUM
    )
    total = rows[:, :width].sum(1, np.int64) + rows[:, _SIZE].sum(1, np.int64) + constant
    rows[:, _CHECKSUM] = _octal(total, 6)
    return rows


def pax_rows(name: bytes, size: int) -> bytes:
    """The extended header of a member, or nothing where the plain one can say it all."""
    records = b""
    if len(name) > MAX_NAME:
        records += _pax_record(b"path", name)
    if size > MAX_SIZE:
        records += _pax_record(b"size", b"%d" % size)
    if not records:
        return b""
    header = headers([b"././@PaxHeader"], np.array([len(records)]), _PAX)
    return header.tobytes() + records + bytes(-len(records) % ROW)


def _pax_record(key: bytes, value: bytes) -> bytes:
    """``length key=value\\n``, where the length counts its own digits."""
    body = b" " + key + b"=" + value + b"\n"
    length = len(body) + len(str(len(body)))
    length = len(body) + len(str(length))
    return b"%d%s" % (length, body)


# --- blocks -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """Samples ready to write: ``start`` and ``size`` are (samples, fields)."""

    buffers: Iterator[Buffer]
    start: Integers
    size: Integers


def _block(
    keys: list[bytes], fields: list[str], columns: list[list[Value | None]], offset: int
) -> _Block:
    names: list[bytes] = [b""] * (len(keys) * len(fields))
    values: list[Value | None] = [None] * len(names)
    encoded = member_keys(keys)
    for i, (field, column) in enumerate(zip(fields, columns, strict=True)):
        suffix = b"." + field.encode()
        names[i :: len(fields)] = [key + suffix for key in encoded]
        values[i :: len(fields)] = column
    size = sizes_of(values)
    present = size >= 0
    if not present.all():
        names = [name for name, value in zip(names, values, strict=True) if value is not None]
    start = np.zeros_like(size)
    members = _Members(names, [v for v in values if v is not None], size[present])
    start[present] = members.starts(offset)
    shape = len(keys), len(fields)
    return _Block(members.buffers(), start.reshape(shape), size.reshape(shape))


class _Members:
    """Members of one block. Each takes, in a matrix of 512-byte rows: its pax header, if any; its
    header; then, if its value is small (at most one row), the value; if it is large, one row of
    zeros, of which the end serves as padding behind the value."""

    def __init__(self, names: list[bytes], values: list[Value], size: Integers) -> None:
        self.names = names
        self.values = values
        self.size = size
        length = np.fromiter(map(len, names), np.int64, len(names))
        special = np.flatnonzero((length > MAX_NAME) | (size > MAX_SIZE)).tolist()
        self.pax = {i: pax_rows(names[i], int(size[i])) for i in special}
        self.header = np.ones_like(size)
        """Rows in front of the value."""
        for i, rows in self.pax.items():
            self.header[i] += len(rows) // ROW

    def starts(self, offset: int) -> Integers:
        """Where the values lie, in a tar that goes on at ``offset``."""
        before = self.header * ROW
        whole = before + (self.size + ROW - 1) // ROW * ROW
        starts: Integers = offset + np.cumsum(whole) - whole + before
        return starts

    def buffers(self) -> Iterator[Buffer]:
        behind = np.cumsum(self.header + (self.size > 0))
        body = behind - (self.size > 0)
        rows = np.zeros((int(behind[-1]) if len(behind) else 0, ROW), np.uint8)
        self._fill_headers(rows, body)
        self._fill_small(rows, body)
        return self._interleave(rows.reshape(-1).data, body)

    def _fill_headers(self, rows: Bytes, body: Integers) -> None:
        rows[body - 1] = headers(self.names, self.size)
        for i, pax in self.pax.items():
            first = int(body[i] - self.header[i])
            rows[first : int(body[i]) - 1] = np.frombuffer(pax, np.uint8).reshape(-1, ROW)

    def _fill_small(self, rows: Bytes, body: Integers) -> None:
        small = np.flatnonzero((self.size > 0) & (self.size <= ROW))
        if len(small):
            width = int(self.size[small].max())
            joined = np.array([bytes(self.values[i]) for i in small.tolist()], f"S{width}")
            rows[body[small], :width] = joined.view(np.uint8).reshape(-1, width)

    def _interleave(self, rows: memoryview, body: Integers) -> Iterator[Buffer]:
        large = np.flatnonzero(self.size > ROW)
        stops = body[large] * ROW
        starts = stops + ROW - -self.size[large] % ROW
        done = 0
        for i, stop, start in zip(large.tolist(), stops.tolist(), starts.tolist(), strict=True):
            yield rows[done:stop]
            yield self.values[i]
            done = start
        yield rows[done:]
