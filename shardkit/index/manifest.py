"""The manifest: what a dataset says about itself in ``shardkit.json``.

It is written last: its presence means that the dataset is whole. Nothing in it is trusted: it is
checked when it is opened.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from shardkit.errors import DatasetMissingError, FormatError, IndexFileError
from shardkit.formats import FORMATS
from shardkit.index.provenance import Provenance
from shardkit.memory.whole_files import read_file
from shardkit.samples.encoding import Encoding
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.storage.base import Storage
from shardkit.storage.folder import Folder
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

VERSION = 2
"""Version 1 had no checksums in its row index; it was never released, so nothing reads it."""

INDEX_NAME = "shardkit.json"
REJECTED_NAME = "rejected.jsonl"
WORK_NAME = ".packing"
PART_NAME = "part.json"
"""In the work folder of a part of a pack that is finished."""

INDEX_KINDS = ("rows", "names", "find", "sums")
"""Endings of the files that index a split."""

MAX_INDEX_BYTES = 256 << 20
"""A shardkit.json of 40,000 shards has about 4 MB; far more than that is an attack or a mistake."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SUFFIX = "|".join(made.suffix for made in FORMATS.values())
SHARD_FILE = re.compile(rf"[A-Za-z0-9_.-]{{1,64}}-\d{{5,}}\.[A-Za-z0-9_.-]{{0,99}}\b({_SUFFIX})")
"""What a file of a shard may be called; nothing else in the folder of a dataset is called so."""

DALI_INDEX = re.compile(r"(.+)-\d{5,}\.idx")
"""What DALI's index of a shard is called; others may make such files, too."""

SIGNPOSTS = frozenset(name for made in FORMATS.values() for name in made.signpost_names)
"""What files for other tools may be called: see :meth:`shardkit.formats.base.Format.signposts`."""

_SEAL = ',\n "xxh3": "%016x"\n}\n'
_SEAL_BYTES = len(_SEAL % 0)


def is_field_name(name: object) -> bool:
    """Whether a field or split name is safe in file names, tar members and HDF5 paths."""
    return (
        isinstance(name, str)
        and _NAME.fullmatch(name) is not None
        and name != "__key__"
        and not name.endswith((".offsets", ".present", ".start", ".size"))
        and name not in ("name", "xxh3", "key")
    )


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

    @property
    def has_checksums(self) -> bool:
        """False for tars made by others: a scan does not read their values."""
        return self.files[f"{self.name}.sums"][0] > 0


@dataclass(frozen=True)
class DatasetInfo:
    """The contents of ``shardkit.json``.

    ``signposts`` maps the files for other tools that lie beside the shards to (bytes, XXH3-64).
    """

    container: str
    fields: list[str]
    classes: list[str] | None
    provenance: Provenance
    splits: dict[str, SplitInfo] = field(default_factory=dict)
    signposts: dict[str, tuple[int, int]] = field(default_factory=dict)

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
            "shards": [[s.num_rows, s.layout, s.file_bytes] for s in split.shards],
        }
    raw = {
        "format": "shardkit",
        "version": VERSION,
        "container": info.container,
        "fields": info.fields,
        "classes": info.classes,
        "corpus": info.provenance.to_json(),
        **({"signposts": _sizes_to_json(info.signposts)} if info.signposts else {}),
        "splits": splits,
    }
    body = json.dumps(raw, indent=1).removesuffix("\n}").encode()
    return body + _seal(body)


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
        if version > VERSION:
            raise IndexFileError(
                f"{where} has version {version}, this shardkit reads {VERSION}; upgrade shardkit"
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
    info = DatasetInfo(raw["container"], fields, classes, provenance, signposts=known)
    for name, split in raw["splits"].items():
        _check(is_field_name(name), "split name")
        info.splits[name] = _parse_split(name, split, fields)
    return info


def _parse_split(name: str, raw: dict[str, Any], fields: list[str]) -> SplitInfo:
    layouts = [{f: Encoding.from_json(e) for f, e in lay.items()} for lay in raw["layouts"]]
    _check(all(lay.keys() <= set(fields) for lay in layouts), "layouts")
    shards: list[ShardInfo] = []
    for rows, layout, sizes in raw["shards"]:
        _check(_count(layout) < len(layouts), "layout")
        for file in sizes:
            _check(is_shard_file(name, len(shards), file), f"shard file {file!r}")
        shards.append(ShardInfo(_count(rows), layout, {f: _count(b) for f, b in sizes.items()}))
    total = _count(raw["rows"])
    _check(sum(s.num_rows for s in shards) == total, "row count")
    files = _sizes_from_json(raw["files"])
    _check(files.keys() == {f"{name}.{kind}" for kind in INDEX_KINDS}, "files")
    _check(isinstance(raw["fingerprint"], str), "fingerprint")
    return SplitInfo(name, total, raw["fingerprint"], layouts, shards, files)


def is_shard_file(split: str, shard: int, name: object) -> bool:
    """Whether a file of this name may belong to that shard."""
    return (
        isinstance(name, str)
        and name.startswith(stem := f"{split}-{shard:05d}.")
        and (SHARD_FILE.fullmatch(name) is not None or name == f"{stem}idx")
    )


def strays(info: DatasetInfo, names: Iterable[str]) -> list[str]:
    """Those file names, sorted, that only a file of a dataset may bear, and none of this one does.

    ``train-*.tar`` would take a stray shard for one of the dataset's.
    """
    listed = info.file_bytes
    ours = {f"{name}.{kind}" for name in SPLIT_NAMES for kind in INDEX_KINDS}
    return sorted(n for n in names if n not in listed and (n in ours or SHARD_FILE.fullmatch(n)))


def read_info(folder: Path, *, sealed: bool = False) -> DatasetInfo:
    """:func:`stored_info` of a folder on this machine.

    Raises:
        DatasetMissingError: there is none. IndexFileError: it is damaged.
    """
    _refuse_without_index(folder)
    return stored_info(Folder(folder), sealed=sealed)


def read_index(folder: Path) -> bytes:
    """The bytes of ``shardkit.json``; errors as of :func:`read_info`."""
    _refuse_without_index(folder)
    return stored_index(Folder(folder))


def stored_info(storage: Storage, *, sealed: bool = False) -> DatasetInfo:
    """What ``shardkit.json`` says, which may have been edited, if not ``sealed``.

    Raises:
        ShardMissingError: there is none. IndexFileError: it is damaged.
    """
    data, where = stored_index(storage), storage.show(INDEX_NAME)
    info = parse_info(data, where)
    if sealed and not is_sealed(data):
        raise IndexFileError(
            f"{where}: its bytes differ from those written; restore it, or open with verify=False"
        )
    return info


def stored_index(storage: Storage) -> bytes:
    """The bytes of ``shardkit.json``; errors as of :func:`stored_info`."""
    size = storage.size(INDEX_NAME)
    if size > MAX_INDEX_BYTES:
        where = storage.show(INDEX_NAME)
        raise IndexFileError(f"{where} is over {MAX_INDEX_BYTES} bytes; refusing to read")
    return bytes(storage.contents(INDEX_NAME, size, copied=True))


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
    return read_file(path, MAX_INDEX_BYTES) if os.path.lexists(path) else b""


def _hint(folder: Path) -> str:
    if (folder / WORK_NAME / PART_NAME).exists():
        return "it is a part of one: `shardkit merge` makes it of all parts"
    if (folder / WORK_NAME).is_dir():
        return "its packing has not finished: run the same command again"
    if folder.suffix in (".bin", ".idx") and folder.is_file():
        return "ids of nanoGPT or Megatron open with shardkit.TokenDataset, or `shardkit convert`"
    return "pack one with `shardkit pack`" if folder.exists() else "no such folder"
