"""What a dataset says about itself: ``shardkit.json`` and the row index of each split.

``shardkit.json`` is written last: its presence means that the dataset is whole. The row index is
one memory-mapped table of 64-bit integers for a whole split, so that opening costs a few small
reads however many samples there are. Nothing in either is trusted: sizes and shapes are checked
when opened, byte ranges when used.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.errors import FormatError, IndexFileError, ShardMissingError
from shardkit.sample import Encoding
from shardkit.storage import os_errors, show_path

VERSION = 1
INDEX_NAME = "shardkit.json"
WORK_NAME = ".packing"
MAX_INDEX_BYTES = 256 << 20
"""A shardkit.json of 40,000 shards has about 4 MB; far more than that is an attack or a mistake."""

NO_INT = -(2**63)
"""In the ``cls`` column: the sample has no class index."""

FIXED_COLUMNS = ("xxh3", "key", "name.start", "name.size")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_HEADER_ALIGN = 64


def is_field_name(name: object) -> bool:
    """Whether a field or split name is safe in file names, tar members and HDF5 paths."""
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and name != "__key__"
        and not name.endswith((".offsets", ".present", ".start", ".size"))
        and name not in ("name", "xxh3", "key")
    )


def row_columns(fields: list[str]) -> list[str]:
    """Column names of the row index, in order, for sorted field names."""
    places = [f"{name}.{part}" for name in fields for part in ("start", "size")]
    return [*FIXED_COLUMNS, *places, *(["cls"] if "cls" in fields else [])]


def rows_header(fields: list[str], num_rows: int) -> bytes:
    """The ``.npy`` header of a row index: a structured dtype of 64-bit integers."""
    unsigned = ("xxh3", "key")
    descr = [(name, "<u8" if name in unsigned else "<i8") for name in row_columns(fields)]
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({num_rows},), }}"
    pad = -(12 + len(text) + 1) % _HEADER_ALIGN
    body = (text + " " * pad + "\n").encode()
    return b"\x93NUMPY\x02\x00" + len(body).to_bytes(4, "little") + body


@dataclass(frozen=True)
class ShardInfo:
    """One shard: its number of rows, its layout, and the size of each of its files (bytes)."""

    num_rows: int
    layout: int
    file_bytes: dict[str, int]


@dataclass(frozen=True)
class SplitInfo:
    """One split. ``layouts`` are the distinct field -> Encoding maps that its shards use.

    ``files`` maps the split's own files (rows, names, find, sums) to (bytes, XXH3-64).
    ``fingerprint`` is a hash over keys and sample checksums in row order: equal for equal samples
    in any container.
    """

    name: str
    num_rows: int
    fingerprint: str
    layouts: list[dict[str, Encoding]]
    shards: list[ShardInfo]
    files: dict[str, tuple[int, int]]

    def stem(self, shard: int) -> str:
        return f"{self.name}-{shard:05d}"


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of ``shardkit.json``. ``corpus`` is the kind and options it was packed from."""

    container: str
    fields: list[str]
    classes: list[str] | None
    corpus: dict[str, Any]
    splits: dict[str, SplitInfo] = field(default_factory=dict)


# --- shardkit.json ------------------------------------------------------------------------


def dump_info(info: DatasetInfo) -> bytes:
    """Serialise; :func:`parse_info` is its inverse."""
    splits = {}
    for name, split in info.splits.items():
        splits[name] = {
            "rows": split.num_rows,
            "fingerprint": split.fingerprint,
            "files": {f: {"bytes": b, "xxh3": f"{h:016x}"} for f, (b, h) in split.files.items()},
            "layouts": [{f: e.to_json() for f, e in lay.items()} for lay in split.layouts],
            "shards": [[s.num_rows, s.layout, s.file_bytes] for s in split.shards],
        }
    raw = {
        "format": "shardkit",
        "version": VERSION,
        "container": info.container,
        "fields": info.fields,
        "classes": info.classes,
        "corpus": info.corpus,
        "splits": splits,
    }
    return (json.dumps(raw, indent=1, ensure_ascii=True) + "\n").encode()


def parse_info(data: bytes, where: str) -> DatasetInfo:
    """Check and build.

    Raises:
        IndexFileError: not ours, of a newer version, or anything out of place in it.
    """
    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or raw.get("format") != "shardkit":
            raise IndexFileError(f"{where} is not a shardkit index")
        if raw["version"] != VERSION:
            raise IndexFileError(
                f"{where} has version {raw['version']!r}, this shardkit reads {VERSION}; upgrade shardkit"
            )
        fields = [*raw["fields"]]
        _check(fields == sorted(set(fields)) and all(map(is_field_name, fields)), "fields")
        classes = raw["classes"]
        _check(classes is None or all(isinstance(c, str) for c in classes), "classes")
        _check(isinstance(raw["container"], str) and isinstance(raw["corpus"], dict), "container")
        info = DatasetInfo(raw["container"], fields, classes, raw["corpus"])
        for name, split in raw["splits"].items():
            _check(is_field_name(name), "split name")
            info.splits[name] = _parse_split(name, split, fields)
    except IndexFileError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        FormatError,
    ) as error:
        raise IndexFileError(f"{where} is damaged: {type(error).__name__} {error}") from error
    return info


def _check(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(f"bad {what}")


def _count(value: Any) -> int:
    _check(type(value) is int and 0 <= value < 2**60, f"count {value!r}")
    return int(value)


def _parse_split(name: str, raw: dict[str, Any], fields: list[str]) -> SplitInfo:
    layouts = [{f: Encoding.from_json(e) for f, e in lay.items()} for lay in raw["layouts"]]
    _check(all(lay.keys() <= set(fields) for lay in layouts), "layouts")
    shards = []
    for rows, layout, sizes in raw["shards"]:
        _check(0 <= _count(layout) < len(layouts), "layout")
        for file in sizes:
            _check(is_shard_file(name, len(shards), file), f"shard file {file!r}")
        shards.append(ShardInfo(_count(rows), layout, {f: _count(b) for f, b in sizes.items()}))
    total = _count(raw["rows"])
    _check(sum(s.num_rows for s in shards) == total, "row count")
    files = {f: (_count(e["bytes"]), int(e["xxh3"], 16)) for f, e in raw["files"].items()}
    _check(
        files.keys() == {f"{name}.{kind}" for kind in ("rows", "names", "find", "sums")}, "files"
    )
    _check(isinstance(raw["fingerprint"], str), "fingerprint")
    return SplitInfo(name, total, raw["fingerprint"], layouts, shards, files)


def is_shard_file(split: str, shard: int, name: object) -> bool:
    """Whether a file name may belong to that shard: our prefix, no path in it."""
    return (
        isinstance(name, str)
        and name.startswith(f"{split}-{shard:05d}.")
        and "/" not in name
        and "\0" not in name
        and len(name) < 256
    )


def read_info(folder: Path) -> DatasetInfo:
    """Read ``shardkit.json`` of a dataset folder.

    Raises:
        ShardMissingError: there is none. IndexFileError: it is damaged.
    """
    path = folder / INDEX_NAME
    if not path.is_file():
        hint = (
            "its packing has not finished: run the same command again"
            if (folder / WORK_NAME).is_dir()
            else ("pack one with `shardkit pack`" if folder.exists() else "no such folder")
        )
        raise ShardMissingError(f"{show_path(folder)} is not a shardkit dataset ({hint})")
    with os_errors(f"reading {show_path(path)}"):
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise IndexFileError(
                f"{show_path(path)} is over {MAX_INDEX_BYTES} bytes; refusing to read it"
            )
        data = path.read_bytes()
    return parse_info(data, show_path(path))


# --- the row index ------------------------------------------------------------------------


def map_file(path: Path, expected_bytes: int) -> mmap.mmap | bytes:
    """Memory-map a whole file of a known size (mapping an empty file is not possible).

    Raises:
        ShardMissingError: no such file. IndexFileError: another size than expected.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise ShardMissingError(
            f"{show_path(path)} is missing; restore it or pack again"
        ) from error
    except OSError as error:
        raise ShardMissingError(f"{show_path(path)} cannot be opened: {error.strerror}") from error
    try:
        size = os.fstat(fd).st_size
        if size != expected_bytes:
            raise IndexFileError(
                f"{show_path(path)} has {size} bytes, expected {expected_bytes}: truncated or replaced;"
                " `shardkit verify` tells more"
            )
        return mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
    finally:
        os.close(fd)


class RowIndex:
    """The rows of one split: byte ranges, checksums, keys and paths. Picklable by path.

    Attributes:
        table: (num_rows, num_columns) int64, read-only, memory-mapped.
        column: column name -> position in ``table``.
    """

    def __init__(self, folder: Path, info: DatasetInfo, split: SplitInfo) -> None:
        self.split = split
        self._folder = folder
        columns = row_columns(info.fields)
        self.column = {name: i for i, name in enumerate(columns)}
        header = rows_header(info.fields, split.num_rows)
        name = f"{split.name}.rows"
        expected = len(header) + split.num_rows * len(columns) * 8
        data = map_file(folder / name, expected)
        if data[: len(header)] != header:
            raise IndexFileError(
                f"{show_path(folder / name)}: its header is not the one this index needs"
            )
        flat = np.frombuffer(data, "<i8", offset=len(header))
        self.table = flat.reshape(split.num_rows, len(columns))
        counts = np.array([s.num_rows for s in split.shards], np.int64)
        self.row_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        self._names: memoryview | None = None

    def shard_of(
        self, rows: np.ndarray[Any, np.dtype[np.int64]]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Shard number of each row."""
        return np.searchsorted(self.row_starts, rows, side="right") - 1

    def names(self) -> memoryview:
        if self._names is None:
            name = f"{self.split.name}.names"
            self._names = memoryview(map_file(self._folder / name, self.split.files[name][0]))
        return self._names

    def name(self, row: int) -> tuple[bytes, bytes]:
        """(key, packed paths) of a row."""
        start, size = self.table[row, 2:4].tolist()
        blob = self.names()
        if start < 0 or size < 0 or start + size > len(blob):
            raise IndexFileError(
                f"row {row} of {self.split.name}: its name lies outside the names file"
            )
        key, _, paths = bytes(blob[start : start + size]).partition(b"\0")
        return key, paths

    def find(self, key: bytes) -> int | None:
        """Row of a key by binary search in the rows sorted by key hash, else None."""
        name = f"{self.split.name}.find"
        data = map_file(self._folder / name, self.split.files[name][0])
        order = np.frombuffer(data, "<i8")
        if len(order) != self.split.num_rows:
            raise IndexFileError(f"{name} has {len(order)} entries, expected {self.split.num_rows}")
        hashes = self.table[:, self.column["key"]].view(np.uint64)
        wanted = xxhash.xxh3_64_intdigest(key)
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if int(hashes[self._checked(order, middle)]) < wanted:
                low = middle + 1
            else:
                high = middle
        while low < len(order) and int(hashes[row := self._checked(order, low)]) == wanted:
            if self.name(row)[0] == key:
                return row
            low += 1
        return None

    def _checked(self, order: np.ndarray[Any, Any], position: int) -> int:
        row = int(order[position])
        if not 0 <= row < self.split.num_rows:
            raise IndexFileError(f"{self.split.name}.find names row {row} of {self.split.num_rows}")
        return row
