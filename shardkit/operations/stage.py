"""``stage``: a copy of a dataset on a faster medium, checked, and never half there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.commit.durable_files import temp_name
from shardkit.commit.own_files import create
from shardkit.errors import ChecksumError, DestinationError
from shardkit.index.file_names import REJECTED_NAME
from shardkit.operations.file_damage import RecordedSums
from shardkit.packing.remote_destination import RemoteDestination, open_destination
from shardkit.remote.urls import as_place, refuse_overlap, show_place
from shardkit.shards.locate import Located, locate_place
from shardkit.storage.interface import Sliceable
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.file_io import BLOCK_BYTES, block_sums, open_file, pread_full
from shardkit.system.file_systems import is_in_memory
from shardkit.system.page_cache import evict
from shardkit.system.paths import as_path, show_path
from shardkit.system.progress import Progress
from shardkit.system.refusals import os_errors
from shardkit.system.resources import allowance

BYTES_AT_ONCE = 16 << 20
"""Of a file behind a URL, asked for at once."""

_KEPT = "copy.part"
"""Tells the destination that what was copied before an error is worth going on from."""


@dataclass(frozen=True)
class StageResult:
    """What a copy took.

    Attributes:
        dest: the copy's folder, or its URL as a str. num_files, num_bytes: in it. copied_bytes: by
            this call; the rest was there from one that was interrupted. seconds: from the first
            look to the last sync.
    """

    dest: Path | str
    num_files: int
    num_bytes: int
    copied_bytes: int
    seconds: float


class _File(NamedTuple):
    """A file to copy. ``sums``, of its blocks, or ``digest``, of all of it, is what was recorded
    of it; tars made by others have neither. ``num_rows`` count for the bar. ``remote``: its bytes,
    where it lies behind a URL."""

    name: str
    source: Path
    num_bytes: int
    sums: Hashes | None = None
    digest: int | None = None
    num_rows: int = 0
    remote: Sliceable | None = None


def stage(
    dataset: str | Path,
    dest: str | Path,
    *,
    overwrite: bool = False,
    progress: bool | None = None,
    staging: str | Path | None = None,
) -> StageResult:
    """Copy a dataset, all splits, and compare what was written with the dataset's checksums.

    Interrupted, even by a kill -9, it leaves nothing that opens as a dataset; called again, it goes
    on. Tars made by others are copied with their index; they have no checksums, so that the copy
    is compared with what was read.

    Args:
        dataset: its folder, or its URL. dest: a folder to make, or the URL of one in a bucket.
            overwrite: replace a dataset there, when the copy is whole (until then there is room for
            both); behind a URL it goes when the copy begins.
        staging: folder in which what was sent to a URL is noted, and in which files lie on their
            way from one URL to another, some at a time; default: in the user's cache.

    Raises:
        DestinationError: it is taken, or has too little space. ChecksumError: the dataset is
            damaged, or the medium is. StorageError: the disk refused; call again to go on.
    """
    source, target = as_place(dataset, "the dataset"), as_place(dest, "the destination")
    refuse_overlap(target, source)
    started = time.perf_counter()
    place = locate_place(source)
    what = f"copying {show_place(source)} to {show_place(target)}"
    notes = None if staging is None else as_path(staging, "staging")
    with os_errors(what), open_destination(target, place.folder, overwrite, notes) as held:
        # By this, a copy that was begun of another dataset is refused.
        samples = ", ".join(map(" ".join, place.info.fingerprints.items()))
        spec = {"kind": f"copy of {place.info.container}", "samples": samples}
        made = {"inputs": {}, "corpus": spec, "options": {}}
        if finished := held.finished(made, StageResult):
            return finished
        held.prepare(made)
        files = list(_files(place))
        if isinstance(held, RemoteDestination):
            left = _upload_all(files, held, progress)
        else:
            left = [file for file in files if not _is_there(held.stage / file.name, file)]
            refuse_little_space(held.dest, sum(file.num_bytes for file in left))
            _copy_all(left, held.stage, held.work / _KEPT, progress)
        num_bytes, copied_bytes = (sum(file.num_bytes for file in some) for some in (files, left))
        seconds = time.perf_counter() - started
        result = StageResult(held.name, len(files) + 1, num_bytes, copied_bytes, seconds)
        held.finish(place.info, made, {**asdict(result), "dest": ""})
        return replace(result, seconds=time.perf_counter() - started)


def _files(place: Located) -> Iterator[_File]:
    """Yield all files but shardkit.json, those of the index first: they hold the checksums."""
    splits, spec = place.info.splits.values(), place.info.tokenizer
    whole = [entry for split in splits for entry in split.files.items()]
    whole += place.info.signposts.items()
    if spec is not None and spec.file is not None:
        whole.append((spec.file, (spec.num_bytes, int(spec.xxh3, 16))))
    for name, (num_bytes, digest) in whole:
        if place.url is not None:  # then it is in the folder
            place.storage.contents(name, num_bytes)
        yield _File(name, place.folder / name, num_bytes, digest=digest)
    recorded = RecordedSums()
    for split in splits:
        if split.has_checksums:
            recorded.add(place.storage, split)
        for shard in split.shards:
            num_rows = shard.num_rows
            for name, num_bytes in shard.file_bytes.items():
                remote = None
                if place.url is not None:
                    remote = place.storage.files([name], [num_bytes]).piece(0, 0, num_bytes)
                sums, path = recorded.get(name), place.folder / name
                yield _File(name, path, num_bytes, sums, num_rows=num_rows, remote=remote)
                num_rows = 0
    rejected = place.folder / REJECTED_NAME
    if rejected.is_file():
        yield _File(REJECTED_NAME, rejected, rejected.stat().st_size)


def _is_there(path: Path, file: _File) -> bool:
    """Return True if an earlier call copied it, and nothing has happened to it since."""
    if not path.is_file() or path.stat().st_size != file.num_bytes:
        return False
    expected = block_sums(file.source) if file.sums is None else file.sums
    return np.array_equal(block_sums(path), expected)


def refuse_little_space(folder: Path, needed: int) -> None:
    """Raise DestinationError if there is too little. One in memory may promise more than it has."""
    free = shutil.disk_usage(folder).free
    if is_in_memory(folder):
        free = min(free, allowance().memory_bytes)
    if needed > free:
        raise DestinationError(
            f"{show_path(folder)} has {format_bytes(free)} free, and"
            f" {format_bytes(needed)} are needed; free some space, or choose another place"
        )


def _copy_all(files: Sequence[_File], folder: Path, kept: Path, progress: bool | None) -> None:
    with Progress("copying", progress) as bar:
        bar.expect(sum(file.num_rows for file in files))
        for file in files:
            _copy(file, folder)
            create(kept).close()
            bar.add(file.num_rows, file.num_bytes)


def _upload_all(
    files: Sequence[_File], held: RemoteDestination, progress: bool | None
) -> list[_File]:
    """Upload what is not there yet, from where it lies, or by the stage from behind a URL; which
    that was."""
    left = []
    with Progress("uploading", progress) as bar:
        bar.expect(sum(file.num_rows for file in files))
        for file in files:
            sums = _read(file) if file.sums is None else file.sums
            if not held.is_sent(file.name, file.num_bytes, sums):
                left.append(file)
                path = file.source
                if file.remote is not None:
                    held.wait_for_room(file.num_bytes)
                    _copy(file, held.stage)
                    path = held.stage / file.name
                held.send(file.name, path, file.num_bytes, sums)
            bar.add(file.num_rows, file.num_bytes)
    return left


def _read(file: _File, out: IO[bytes] | None = None) -> Hashes:
    """Return the checksums of a file's blocks, which are written to ``out``.

    Raises:
        ChecksumError: they, or all of it, are not as recorded.
    """
    whole, sums, num_bytes = xxhash.xxh3_64(), [], 0
    for block in _blocks(file):
        whole.update(block)
        sums.append(xxhash.xxh3_64_intdigest(block))
        num_bytes += len(block)
        if out is not None:
            out.write(block)
    found = np.array(sums, np.uint64)
    is_same = num_bytes == file.num_bytes and file.digest in (None, whole.intdigest())
    if not is_same or (file.sums is not None and not np.array_equal(found, file.sums)):
        raise ChecksumError(
            f"{show_path(file.source)} is damaged: its bytes are not those that were written;"
            " `shardkit verify` tells more"
        )
    return found


def _copy(file: _File, folder: Path) -> None:
    """Copy under another name, compare, and only then give it its own."""
    temp = folder / temp_name(file.name)
    try:
        with create(temp) as out:
            sums = _read(file, out)
            out.flush()
            os.fsync(out.fileno())
        evict(temp)  # else the cache would be read, not the medium
        if not np.array_equal(block_sums(temp), sums):
            raise ChecksumError(
                f"{show_path(folder)}: what was read back of {file.name} is not what was written;"
                " the medium is bad, choose another"
            )
    except ChecksumError:
        temp.unlink()
        raise
    temp.replace(folder / file.name)


def _blocks(file: _File) -> Iterator[memoryview]:
    """Yield the blocks; each is good until the next is asked for."""
    if file.remote is not None:
        for start in range(0, file.num_bytes, BYTES_AT_ONCE):
            several = file.remote[start : start + BYTES_AT_ONCE]
            for at in range(0, len(several), BLOCK_BYTES):
                yield memoryview(several[at : at + BLOCK_BYTES])
        return
    with closing(open_file(file.source)) as held:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        for start in range(0, held.num_bytes, BLOCK_BYTES):
            yield buffer[: pread_full(held.fd, buffer, start)]
