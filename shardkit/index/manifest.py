"""The manifest: what a dataset says about itself in ``shardkit.json``.

It is written last: its presence means that the dataset is whole. Nothing in it is trusted: it is
checked when it is opened.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardkit.commit.work_folder import WORK_NAME
from shardkit.errors import DatasetMissingError, FormatError, IndexFileError, UsageError
from shardkit.index.file_names import (
    INDEX_KINDS,
    INDEX_NAME,
    PART_NAME,
    REJECTED_NAME,
    SIGNPOSTS,
    VERSIONED,
    index_name,
    is_field_name,
    is_file_of,
)
from shardkit.index.provenance import Provenance
from shardkit.index.version_line import VersionLine
from shardkit.memory.maps import read_file
from shardkit.samples.encoding import LABEL, Encoding
from shardkit.storage.interface import Storage
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tokens.spec import TokenizerSpec

VERSION = 2
"""Of what is packed. Version 1 had no checksums in its row index; it was never released, so nothing
reads it."""

CHANGED_VERSION = 3
"""Of what was changed after it was packed: readers of version 2 know neither a second row index,
nor shards of which a split leaves samples out, nor labels that stand in the row index alone."""

MAX_INDEX_BYTES = 256 << 20
"""A shardkit.json of 40,000 shards has about 4 MB; far more than that is an attack or a mistake."""

MAX_REJECTED_BYTES = 4 << 30
"""Some 30 million lines of rejected.jsonl: of all inputs left out as duplicates, too."""

READ_TRIES = 5

_FINGERPRINT = re.compile("(scan:)?[0-9a-f]{32}")
_SHARD_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}-\d{5,}")

_SEAL = ',\n "xxh3": "%016x"\n}\n'
_SEAL_BYTES = len(_SEAL % 0)


@dataclass(frozen=True)
class ShardInfo:
    """One shard: its number of rows, its layout, and the size of each of its files (bytes).

    Attributes:
        stem: what its files are called before their endings; ``""`` for what split and number say.
        num_left_out: samples that its files hold besides, and the split does not have.
        has_restarts: False if its JPEGs, unlike those of other shards, were given no markers.
    """

    num_rows: int
    layout: int
    file_bytes: dict[str, int]
    stem: str = ""
    num_left_out: int = 0
    has_restarts: bool = True


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
        return self.shards[shard].stem or f"{self.name}-{shard:05d}"

    def index_file(self, kind: str) -> str:
        """Name of one of the split's own files: of ``rows``, ``names``, ``find`` or ``sums``."""
        return next(name for name in self.files if name.endswith(f".{kind}"))

    @property
    def num_left_out(self) -> int:
        """Samples in files of its shards that it does not have."""
        return sum(shard.num_left_out for shard in self.shards)

    @property
    def is_view(self) -> bool:
        """Whether who reads its shards by themselves sees other samples, or labels, than it has."""
        encodings = (encoding for layout in self.layouts for encoding in layout.values())
        return self.num_left_out > 0 or any(encoding.kind == LABEL for encoding in encodings)

    @property
    def has_checksums(self) -> bool:
        """False for tars made by others: a scan does not read their values."""
        return self.files[self.index_file("sums")][0] > 0


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of ``shardkit.json``.

    ``signposts`` maps the files for other tools that lie beside the shards to (bytes, XXH3-64).
    ``history`` has a line for each version, the first included, once it was changed.
    """

    container: str
    fields: list[str]
    classes: list[str] | None
    provenance: Provenance
    splits: dict[str, SplitInfo] = field(default_factory=dict)
    signposts: dict[str, tuple[int, int]] = field(default_factory=dict)
    history: list[VersionLine] = field(default_factory=list)

    @property
    def version(self) -> int:
        """The number of this version; the first is 1."""
        return self.history[-1].number if self.history else 1

    @property
    def tokenizer(self) -> TokenizerSpec | None:
        """The tokenizer; None if there are no tokens. Raises FormatError: what is said of it is
        damaged."""
        tokens = self.provenance.tokens
        return None if tokens is None else TokenizerSpec.from_json(tokens)

    @property
    def num_rows(self) -> dict[str, int]:
        """Split -> its samples."""
        return {name: split.num_rows for name, split in self.splits.items()}

    @property
    def fingerprints(self) -> dict[str, str]:
        """Split -> its fingerprint."""
        return {name: split.fingerprint for name, split in self.splits.items()}

    @property
    def file_bytes(self) -> dict[str, int]:
        """Name -> size, in bytes, of all files but shardkit.json and rejected.jsonl."""
        found = {name: num_bytes for name, (num_bytes, _) in self.signposts.items()}
        if self.provenance.tokenizer_file is not None:
            found[self.provenance.tokenizer_file] = self.provenance.tokenizer_bytes
        for split in self.splits.values():
            found |= {name: num_bytes for name, (num_bytes, _) in split.files.items()}
            for shard in split.shards:
                found |= shard.file_bytes
        return found


# --- shardkit.json ------------------------------------------------------------------------


def dump_info(info: DatasetInfo) -> bytes:
    """Serialise; :func:`parse_info` is its inverse. The last entry is a hash of all before it."""
    splits = {}
    for name, split in info.splits.items():
        splits[name] = {
            "rows": split.num_rows,
            "fingerprint": split.fingerprint,
            "files": _sizes_to_json(split.files),
            "layouts": [{f: e.to_json() for f, e in lay.items()} for lay in split.layouts],
            "shards": [_shard_to_json(shard) for shard in split.shards],
        }
    raw = {
        "format": "shardkit",
        "version": CHANGED_VERSION if _is_changed(info) else VERSION,
        "container": info.container,
        "fields": info.fields,
        "classes": info.classes,
        "corpus": info.provenance.to_json(),
        **({"signposts": _sizes_to_json(info.signposts)} if info.signposts else {}),
        "splits": splits,
        **({"history": [line.to_json() for line in info.history]} if info.history else {}),
    }
    body = json.dumps(raw, indent=1).removesuffix("\n}").encode()
    return body + _seal(body)


def _is_changed(info: DatasetInfo) -> bool:
    """Whether a reader of version 2 would return something wrong, or call it damaged."""
    splits = info.splits.values()
    is_mixed = any(s.stem or not s.has_restarts for split in splits for s in split.shards)
    return bool(info.history) or is_mixed or any(split.is_view for split in splits)


def _shard_to_json(shard: ShardInfo) -> list[Any]:
    rare = {"stem": shard.stem, "left_out": shard.num_left_out}
    held: dict[str, Any] = {name: value for name, value in rare.items() if value}
    held |= {} if shard.has_restarts else {"restarts": False}
    return [shard.num_rows, shard.layout, shard.file_bytes, *([held] if held else [])]


def _sizes_to_json(files: dict[str, tuple[int, int]]) -> dict[str, dict[str, Any]]:
    return {f: {"bytes": b, "xxh3": f"{h:016x}"} for f, (b, h) in files.items()}


def _sizes_from_json(raw: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {f: (_count(e["bytes"]), int(e["xxh3"], 16)) for f, e in raw.items()}


def _seal(body: bytes) -> bytes:
    return (_SEAL % xxhash.xxh3_64_intdigest(body)).encode()


def is_sealed(data: bytes) -> bool:
    """Whether a ``shardkit.json`` is, to the byte, as it was written.

    Only who verifies asks: one that was edited by hand still opens.
    """
    return data[-_SEAL_BYTES:] == _seal(data[:-_SEAL_BYTES])


def parse_info(data: bytes, where: str) -> DatasetInfo:
    """Check and build.

    Raises:
        IndexFileError: not ours, of another version, or anything out of place in it.
    """
    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or raw.get("format") != "shardkit":
            raise IndexFileError(f"{where} is not a shardkit index")
        version = _count(raw["version"])
        if version > CHANGED_VERSION:
            raise IndexFileError(
                f"{where} has version {version}, this shardkit reads {CHANGED_VERSION}; upgrade"
                " shardkit"
            )
        if version < VERSION:
            raise IndexFileError(
                f"{where} has version {version}, made by an unreleased shardkit; pack again"
            )
        return _parse(raw)
    except IndexFileError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        MemoryError,
        FormatError,
    ) as error:
        what = f"{type(error).__name__} {error}"[:200]
        raise IndexFileError(f"{where} is damaged ({what}); restore it or pack again") from error


def _check(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(f"bad {what}")


def _count(value: Any) -> int:
    _check(type(value) is int and 0 <= value < 2**60, "count")
    return int(value)


def _parse(raw: dict[str, Any]) -> DatasetInfo:
    fields, classes = raw["fields"], raw["classes"]
    _check(all(map(is_field_name, fields)), "field name")
    _check(fields == sorted(set(fields)), "list of fields")
    _check(classes is None or isinstance(classes, list), "classes")
    _check(all(isinstance(name, str) for name in classes or ()), "class name")
    provenance = Provenance.from_json(raw["corpus"])
    _check(isinstance(raw["container"], str), "container")
    _check(len(raw["splits"]) > 0, "splits")
    signposts = _sizes_from_json(raw.get("signposts", {}))
    known = {name: signposts[name] for name in sorted(signposts.keys() & SIGNPOSTS)}
    history = [VersionLine.from_json(line) for line in raw.get("history", [])]
    numbers = [line.number for line in history]
    _check(numbers == list(range(1, len(numbers) + 1)), "history")
    _check(len(numbers) != 1, "history")
    info = DatasetInfo(
        raw["container"], fields, classes, provenance, signposts=known, history=history
    )
    for name, split in raw["splits"].items():
        _check(is_field_name(name), "split name")
        info.splits[name] = _parse_split(name, split, fields)
    return info


def _parse_split(name: str, raw: dict[str, Any], fields: list[str]) -> SplitInfo:
    layouts = [{f: Encoding.from_json(e) for f, e in lay.items()} for lay in raw["layouts"]]
    _check(all(lay.keys() <= set(fields) for lay in layouts), "layouts")
    for layout in layouts:
        labels = {field for field, encoding in layout.items() if encoding.kind == LABEL}
        _check(labels <= {"cls"}, "layouts")
    shards: list[ShardInfo] = []
    for rows, layout, sizes, *rare in raw["shards"]:
        _check(_count(layout) < len(layouts), "layout")
        held = rare[0] if rare else {}
        stem = held.get("stem", "")
        _check(not stem or _SHARD_STEM.fullmatch(stem) is not None, "shard")
        for file in sizes:
            is_own = is_file_of(stem or f"{name}-{len(shards):05d}", file)
            _check(is_own, f"shard file {file!r}")
        file_bytes = {file: _count(num_bytes) for file, num_bytes in sizes.items()}
        left_out = _count(held.get("left_out", 0))
        restarts = held.get("restarts") is not False
        shards.append(ShardInfo(_count(rows), layout, file_bytes, stem, left_out, restarts))
    total = _count(raw["rows"])
    _check(sum(s.num_rows for s in shards) == total, "row count")
    files = _sizes_from_json(raw["files"])
    stems = {file.rpartition(".")[0] for file in files}
    _check({file.rpartition(".")[2] for file in files} == set(INDEX_KINDS), "files")
    _check(len(files) == len(INDEX_KINDS) and len(stems) == 1, "files")
    _check(VERSIONED.fullmatch(stems.pop()).group(1) == name, "files")  # type: ignore[union-attr]
    _check(_FINGERPRINT.fullmatch(raw["fingerprint"]) is not None, "fingerprint")
    return SplitInfo(name, total, raw["fingerprint"], layouts, shards, files)


def read_info(folder: Path, *, sealed: bool = False, version: int | None = None) -> DatasetInfo:
    """:func:`stored_info` of a folder on this machine; of the last version, if none is named.

    Raises:
        DatasetMissingError: there is none. IndexFileError: it is damaged.
        UsageError: there is no such version.
    """
    return read_version(folder, version, sealed=sealed)[0]


def read_version(
    folder: Path, version: int | None, *, sealed: bool = False
) -> tuple[DatasetInfo, str]:
    """As :func:`read_info`, and the name of the file that says it."""
    _refuse_without_index(folder)
    info = stored_info(Folder(folder), sealed=sealed)
    if version is None or version == info.version:
        return info, INDEX_NAME
    if (there := versions_at(folder, info)).count(version) == 0:
        raise UsageError(
            f"{show_path(folder)} has no version {version}, only"
            f" {', '.join(map(str, there))}; `shardkit info` tells of each"
        )
    name = index_name(version)
    return stored_info(Folder(folder), name, sealed=sealed), name


def shared_file(info: DatasetInfo) -> str | None:
    """A file of which several splits have samples, if there is any."""
    if len(info.splits) == 1:  # whoever opens one by URL asks, and it may have 10^5 shards
        return None
    seen: set[str] = set()
    for split in info.splits.values():
        own = {name for shard in split.shards for name in shard.file_bytes}
        if both := own & seen:
            return min(both)
        seen |= own
    return None


def versions_at(folder: Path, info: DatasetInfo) -> list[int]:
    """Numbers of the versions that are there: those before the last may have been pruned."""
    old = (number for number in range(1, info.version))
    return [*(n for n in old if (folder / index_name(n)).is_file()), info.version]


def read_index(folder: Path, name: str = INDEX_NAME) -> bytes:
    """The bytes of ``shardkit.json``; errors as of :func:`read_info`."""
    _refuse_without_index(folder)
    return stored_index(Folder(folder), name)


def stored_info(storage: Storage, name: str = INDEX_NAME, *, sealed: bool = False) -> DatasetInfo:
    """What ``shardkit.json`` says, which may have been edited, if not ``sealed``.

    Raises:
        ShardMissingError: there is none. IndexFileError: it is damaged.
    """
    data, where = stored_index(storage, name), storage.show(name)
    info = parse_info(data, where)
    if sealed and not is_sealed(data):
        raise IndexFileError(
            f"{where}: its bytes differ from those written; restore it, or open with verify=False"
        )
    return info


def stored_index(storage: Storage, name: str = INDEX_NAME) -> bytes:
    """The bytes of ``shardkit.json``; errors as of :func:`stored_info`."""
    for _ in range(READ_TRIES - 1):
        try:
            return _stored_index(storage, name)
        except IndexFileError:  # a next version may have come between its size and its bytes
            pass
    return _stored_index(storage, name)


def _stored_index(storage: Storage, name: str) -> bytes:
    size = storage.size(name)
    if size > MAX_INDEX_BYTES:
        where = storage.show(name)
        raise IndexFileError(f"{where} is over {MAX_INDEX_BYTES} bytes; refusing to read")
    return bytes(storage.contents(name, size, copied=True))


def _refuse_without_index(folder: Path) -> None:
    path = folder / INDEX_NAME
    with os_errors(f"reading {show_path(path)}"):
        if path.is_file():
            return
    raise DatasetMissingError(f"{show_path(folder)} is not a shardkit dataset ({_hint(folder)})")


def read_rejected(folder: Path) -> bytes:
    """The bytes of ``rejected.jsonl``, a line for each input that was skipped; there may be none.

    Raises:
        IndexFileError: it is no regular file, or too large to be one of ours.
    """
    path = folder / REJECTED_NAME
    return read_file(path, MAX_REJECTED_BYTES) if os.path.lexists(path) else b""


def _hint(folder: Path) -> str:
    if (folder / WORK_NAME / PART_NAME).exists():
        return "it is a part of one: `shardkit merge` makes it of all parts"
    if (folder / WORK_NAME).is_dir():
        return "its packing has not finished: run the same command again"
    if folder.suffix in (".bin", ".idx") and folder.is_file():
        return "ids of nanoGPT or Megatron open with shardkit.TokenDataset, or `shardkit convert`"
    if folder.suffix == ".npy" and folder.is_file():
        ids = "ids without a header, as OLMo's, open with shardkit.TokenDataset(..., stored_dtype="
        return f"{ids}'uint16') or 'uint32'; `shardkit pack` packs arrays of NumPy's"
    return "pack one with `shardkit pack`" if folder.exists() else "no such folder"
