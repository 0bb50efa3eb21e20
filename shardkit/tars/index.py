"""The index of tars made by others: scanned into parts, assembled as after a pack."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from shardkit.errors import FormatError, IndexFileError
from shardkit.index.assembling import assemble_split
from shardkit.index.making import join_names, make_rows
from shardkit.index.manifest import INDEX_NAME, DatasetInfo, dump_info
from shardkit.index.parts import Part, PartHead, part_path, write_part
from shardkit.index.rows import RowIndex
from shardkit.memory.whole_files import read_file
from shardkit.samples.sample import SPLIT_NAMES
from shardkit.storage.folder import Folder
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress
from shardkit.system.writing import atomic_write
from shardkit.tars.samples import TarSamples, check_num_fields, read_tar
from shardkit.tars.scattered import refuse_scattered

NAMES_NAME = "tars.json"
"""In an index, the file that says which tar each shard is. Its link says so too, but a copy of the
folder may hold files in place of links."""

MAX_NAMES_BYTES = 64 << 20
"""File names have 255 bytes at most: those of over 100,000 tars."""


@dataclass(frozen=True)
class Tar:
    """A tar as it was found; as long as these are the same, it is taken for unchanged."""

    name: str
    num_bytes: int
    mtime_ns: int


def tar_as_found(folder: Path, name: str) -> Tar:
    found = (folder / name).stat()
    return Tar(name, found.st_size, found.st_mtime_ns)


def tar_splits(names: list[str]) -> list[str]:
    """The split of each tar: the one split name among the words of its own, if all have one.

    ``imagenet-train-000.tar`` beside ``imagenet-val-000.tar`` must not become one split.
    """
    found = [SPLIT_NAMES.intersection(re.findall("[a-z]+", name.lower())) for name in names]
    if all(len(words) == 1 for words in found):
        return [word for words in found for word in words]
    return ["train"] * len(names)


def write_index(work: Path, folder: Path, tars: list[Tar], target: str) -> None:
    """Scan the tars and write their index into ``work``, shardkit.json last.

    ``target`` is how ``folder`` reads from there. Each shard is a link to its tar, and none is one
    to a folder: it would lead back to the index, and what follows links would go round for ever.
    """
    parts = work / "parts"
    parts.mkdir()
    heads: dict[str, list[PartHead]] = {}
    hashes: dict[str, xxhash.xxh3_128] = {}
    names: dict[str, str] = {}
    with Progress("indexing tars") as progress:
        for tar, split in zip(tars, tar_splits([tar.name for tar in tars]), strict=True):
            samples = _read_unchanged(folder, tar)
            if not samples.keys:
                continue
            own = heads.setdefault(split, [])
            part = _part(samples, split, len(own), tar)
            write_part(part_path(parts, split, len(own)), part)
            shard = f"{part.head.stem}.tar"
            (work / shard).symlink_to(f"{target}/{tar.name}")
            names[shard] = tar.name
            _hash_part(hashes.setdefault(split, xxhash.xxh3_128()), part)
            own.append(part.head)
            progress.add(part.head.num_rows, 0)
    info = _describe(folder, heads)
    for split, own in heads.items():
        fingerprint = f"scan:{hashes[split].hexdigest()}"
        made = assemble_split(
            work, parts, split, own, info, unique_keys=False, fingerprint=fingerprint
        )
        refuse_scattered(
            RowIndex(Folder(work), info, made),
            info.fields,
            [names[f"{head.stem}.tar"] for head in own],
            show_path(folder),
        )
        info.splits[split] = made
    shutil.rmtree(parts)
    atomic_write(work / NAMES_NAME, [json.dumps(names, indent=1).encode()])
    atomic_write(work / INDEX_NAME, [dump_info(info)])


def read_names(index: Path) -> dict[str, str]:
    """Which tar each shard of an index is: name of the shard -> name of the tar.

    Raises:
        IndexFileError: the file that says so is missing or damaged.
    """
    path = index / NAMES_NAME
    try:
        names = json.loads(read_file(path, MAX_NAMES_BYTES))
        plain = all(isinstance(n, str) and n == os.path.basename(n) and n for n in names.values())
    except (ValueError, AttributeError, RecursionError) as error:
        raise IndexFileError(_damaged(path)) from error
    if not plain:
        raise IndexFileError(_damaged(path))
    return dict(names)


def _damaged(path: Path) -> str:
    return f"{show_path(path)} is damaged; remove {show_path(path.parent)}, it is made again"


def _read_unchanged(folder: Path, tar: Tar) -> TarSamples:
    samples = read_tar(folder / tar.name)
    if tar_as_found(folder, tar.name) != tar:
        raise FormatError(
            f"{show_path(folder / tar.name)} changed while it was indexed; open it again when it"
            " has been written"
        )
    return samples


def _part(samples: TarSamples, split: str, shard: int, tar: Tar) -> Part:
    extents = samples.extents()
    names, entries = join_names(samples.keys, samples.paths)
    # Checksums would need all the data: 0 stands for an unknown one.
    unknown = np.zeros(len(samples.keys), np.uint64)
    rows = make_rows(samples.keys, entries, extents, unknown, samples.columns())
    head = PartHead(
        split=split,
        shard=shard,
        segment=0,
        num_rows=len(samples.keys),
        file_bytes={f"{split}-{shard:05d}.tar": tar.num_bytes},
        encodings={field: e.encoding.to_json() for field, e in extents.items()},
        num_sums=0,
        names_bytes=len(names),
    )
    return Part(head, rows, names, np.zeros(0, np.uint64))


def _hash_part(digest: xxhash.xxh3_128, part: Part) -> None:
    """What is known without reading values: keys, paths, places, sizes and class indices."""
    digest.update(json.dumps([*part.head.encodings]).encode())
    digest.update(part.rows.tobytes())
    digest.update(part.names)


def _describe(folder: Path, heads: dict[str, list[PartHead]]) -> DatasetInfo:
    fields = sorted({field for own in heads.values() for head in own for field in head.encodings})
    if not heads:
        raise FormatError(
            f"{show_path(folder)}: no samples in its tars; WebDataset members are named KEY.FIELD,"
            " as 0001.jpg and 0001.cls"
        )
    try:
        check_num_fields(len(fields))
    except ValueError as error:
        raise FormatError(f"{show_path(folder)}: {error}") from error
    return DatasetInfo("webdataset", fields, None, {"kind": "tars"})
