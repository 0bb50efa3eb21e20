"""Writing the index of tars made by others: scanned into a journal, assembled as after a pack."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from shardkit.commit.durable_files import atomic_write
from shardkit.errors import FormatError, IndexFileError
from shardkit.formats import TARS
from shardkit.index.assembling import assemble_split
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.journal import FinishedShard, Receipt, journal_path, write_finished
from shardkit.index.making import join_names, make_rows
from shardkit.index.manifest import DatasetInfo, dump_info
from shardkit.index.provenance import Provenance
from shardkit.index.rows import RowIndex
from shardkit.memory.maps import read_file
from shardkit.samples.split_names import splits_by_words
from shardkit.storage.local_files import Folder
from shardkit.system.paths import show_path
from shardkit.system.progress import Progress
from shardkit.system.stamps import size_and_stamp
from shardkit.tars.grouping import TarSamples, check_num_fields, read_tar
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
    stamp: int


def tar_as_found(folder: Path, name: str) -> Tar:
    path = folder / name
    if path.exists() and not path.is_file():  # a FIFO would block for ever
        raise FormatError(f"{show_path(path)} is no regular file; remove it")
    return Tar(name, *size_and_stamp(path))


def tar_splits(names: list[str]) -> list[str]:
    """The split of each tar: the one split name among the words of its folder's name, or else its
    own, if all have one.

    ``imagenet-train-000.tar`` beside ``imagenet-val-000.tar`` must not become one split.
    """
    told = [name.rpartition("/")[0] or name for name in names]
    return splits_by_words(told) or ["train"] * len(names)


def write_tar_index(work: Path, folder: Path, tars: list[Tar], target: str) -> None:
    """Scan the tars and write their index into ``work``, shardkit.json last.

    ``target`` is how ``folder`` reads from there. Each shard is a link to its tar, and none is one
    to a folder: it would lead back to the index, and what follows links would go round for ever.
    """
    journal = work / "journal"
    journal.mkdir()
    receipts: dict[str, list[Receipt]] = {}
    hashes: dict[str, xxhash.xxh3_128] = {}
    names: dict[str, str] = {}
    passed: Counter[str] = Counter()
    with Progress("indexing tars") as progress:
        for tar, split in zip(tars, tar_splits([tar.name for tar in tars]), strict=True):
            samples = _read_unchanged(folder, tar)
            passed += samples.passed
            if not samples.keys:
                continue
            own = receipts.setdefault(split, [])
            finished = _finished(samples, split, len(own), tar)
            write_finished(journal_path(journal, split, len(own)), finished)
            shard = f"{finished.receipt.stem}.tar"
            (work / shard).symlink_to(f"{target}/{tar.name}")
            names[shard] = tar.name
            _hash_finished(hashes.setdefault(split, xxhash.xxh3_128()), finished)
            own.append(finished.receipt)
            progress.add(finished.receipt.num_rows, 0)
    info = _describe(folder, receipts, passed)
    for split, own in receipts.items():
        fingerprint = f"scan:{hashes[split].hexdigest()}"
        made = assemble_split(
            work, journal, split, own, info, unique_keys=False, fingerprint=fingerprint
        )
        refuse_scattered(
            RowIndex(Folder(work), info, made),
            info.fields,
            [names[f"{receipt.stem}.tar"] for receipt in own],
            show_path(folder),
        )
        info.splits[split] = made
    shutil.rmtree(journal)
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
        plain = all(
            n == os.path.normpath(n) and n.partition("/")[0] not in ("", ".", "..")
            for n in names.values()
        )
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
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


def _finished(samples: TarSamples, split: str, shard: int, tar: Tar) -> FinishedShard:
    extents = samples.extents()
    names, entries = join_names(samples.keys, samples.paths)
    # Checksums would need all the data: 0 stands for an unknown one.
    unknown = np.zeros(len(samples.keys), np.uint64)
    rows = make_rows(samples.keys, entries, extents, unknown, samples.columns())
    receipt = Receipt(
        split=split,
        shard=shard,
        segment=0,
        seen=0,
        num_rows=len(samples.keys),
        file_bytes={f"{split}-{shard:05d}.tar": tar.num_bytes},
        encodings={field: e.encoding.to_json() for field, e in extents.items()},
        num_sums=0,
        names_bytes=len(names),
    )
    return FinishedShard(receipt, rows, names, np.zeros(0, np.uint64))


def _hash_finished(digest: xxhash.xxh3_128, finished: FinishedShard) -> None:
    """What is known without reading values: keys, paths, places, sizes and class indices."""
    digest.update(json.dumps([*finished.receipt.encodings]).encode())
    digest.update(finished.rows.tobytes())
    digest.update(finished.names)


def _describe(
    folder: Path, receipts: dict[str, list[Receipt]], passed: dict[str, int]
) -> DatasetInfo:
    every = [receipt for own in receipts.values() for receipt in own]
    fields = sorted({field for receipt in every for field in receipt.encodings})
    if not receipts:
        raise FormatError(
            f"{show_path(folder)}: no samples in its tars; WebDataset members are named KEY.FIELD,"
            " as 0001.jpg and 0001.cls"
        )
    try:
        check_num_fields(len(fields))
    except ValueError as error:
        raise FormatError(f"{show_path(folder)}: {error}") from error
    spec = {"kind": "tars", **({"passed": dict(sorted(passed.items()))} if passed else {})}
    return DatasetInfo(TARS, fields, None, Provenance(spec))
