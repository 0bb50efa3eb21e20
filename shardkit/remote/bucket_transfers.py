"""Objects below a URL as files, and files as objects: the server's part in packing from and to a
bucket.

A file that is whole has its last name, and as its time of change a number made of the object's
size, ETag and time: one that is there already is not fetched again, and one replaced meanwhile is.
Each is read on condition of the ETag that was listed.

An object counts as written when it is there with the size and the contents that were meant. S3 says
the MD5 of what it has as an object's ETag; where that is not to be had, the object is read back.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Hashes, Integers
from shardkit.errors import (
    ChecksumError,
    CorpusError,
    DestinationError,
    ShardMissingError,
    StorageError,
)
from shardkit.remote.connection import CLAIM
from shardkit.remote.object_store import RemoteFolder, version_of
from shardkit.remote.urls import Url
from shardkit.system.file_io import BLOCK_BYTES, pread_full
from shardkit.system.paths import show_path

TASKS = 64
"""Files that are fetched at once."""

PART = ".shardkit-part-"
"""What the name of a file that is being written begins with; beside the folder, not in it."""

LONGEST = 255
"""Bytes of the name of a file or folder."""

_held: dict[str, asyncio.Lock] = {}


async def fetch_bucket(asked: dict[str, Any]) -> dict[str, Any]:
    """Make the folder hold what lies behind the URL, and nothing else. One call a folder at a time:
    the server may still be at work for a process that was killed.

    Raises:
        CorpusError: there is nothing, or keys that are no paths. StorageError: the network, the
            disk, or an object that changed since it was listed.
    """
    place, folder = asked["place"], Path(asked["folder"])
    remote = RemoteFolder(Url(place["url"]), place["settings"], place["retry_s"])
    async with _held.setdefault(str(folder), asyncio.Lock()):
        wanted = _as_files(remote.url, await remote.list())
        folder.mkdir(parents=True, exist_ok=True)
        _remove_others(folder, wanted)
        missing = [each for name, each in wanted.items() if not _is_there(folder / name, each)]
        num_bytes, free = sum(each["size"] for each in missing), shutil.disk_usage(folder).free
        if num_bytes > free:
            raise StorageError(
                f"{remote.url} has {num_bytes:,} bytes to fetch, and {folder} has {free:,} free;"
                " choose a destination on a larger disk"
            )
        queue = iter(missing)

        async def fetch(part: Path) -> None:
            for each in queue:
                await remote.copy_to(part, each)
                time_ns, path = _time_of(each), folder / each["path"]
                os.utime(part, ns=(time_ns, time_ns))
                path.parent.mkdir(parents=True, exist_ok=True)
                part.replace(path)

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(TASKS):
                    group.create_task(fetch(folder.parent / f"{PART}{number}"))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return {"files": len(wanted), "fetched": len(missing)}


def _as_files(url: Url, listed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return path -> object. Objects of no bytes that stand for a folder are none."""
    wanted: dict[str, dict[str, Any]] = {}
    folders: set[str] = set()
    for each in listed:
        name = each["path"]
        if not name and not each["size"]:  # stands for the folder itself
            continue
        parts = name.split("/")
        if "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
            raise CorpusError(f"{url}: the key {name!r} cannot be a path; rename that object")
        if max(len(os.fsencode(part)) for part in parts) > LONGEST:
            raise CorpusError(
                f"{url}: the key {name[:80]!r}... has a part of over {LONGEST} bytes, which no file"
                " can be called; rename that object"
            )
        if name in wanted:
            raise CorpusError(f"{url}: two keys would be the one path {name!r}; rename one")
        wanted[name] = each
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
    for name in folders & wanted.keys():
        if wanted.pop(name)["size"]:
            raise CorpusError(
                f"{url}: {name!r} is an object, and the folder of others; rename one of them"
            )
    if not wanted:
        raise CorpusError(f"there is no object below {url}/; check the URL")
    return wanted


def _time_of(each: dict[str, Any]) -> int:
    text = f"{each['size']} {each['e_tag']} {each['last_modified'].timestamp()}"
    return xxhash.xxh3_64_intdigest(text.encode()) % 10**18


def _is_there(path: Path, each: dict[str, Any]) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        status = path.lstat()
        return (status.st_size, status.st_mtime_ns) == (each["size"], _time_of(each))
    return False


def _remove_others(folder: Path, wanted: dict[str, dict[str, Any]]) -> None:
    """Remove files and folders that no object stands for by now."""
    for base, folders, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(base, name)
            if str(path.relative_to(folder)) not in wanted:
                path.unlink()
        for name in folders:
            if not os.listdir(Path(base, name)):
                Path(base, name).rmdir()


# --- to a bucket --------------------------------------------------------------------------

WHOLE_BYTES = 32 << 20
"""Files up to this size are put by one request; larger ones in parts, of which some are under way
at once, and each is sent again by itself."""

PART_BYTES = 8 << 20
MOST_PARTS = 9_000
"""S3 takes 10,000."""

PARTS_AT_ONCE = 4
TRIES = 3
"""Times that an object is put that is then found to be another."""

READ_BYTES = 4 << 20

REMOVED_AT_ONCE = 100
"""The claim is looked at before so many are removed: before each it would be twice the requests."""


@dataclass(frozen=True)
class Contents:
    """What a file of this machine holds. ``etag`` is what S3 calls it, put in such parts."""

    num_bytes: int
    sums: Hashes
    etag: str
    part_bytes: int


def contents_of(path: Path) -> Contents:
    """Read a file once, for all that it is compared by."""
    size, part = path.stat().st_size, WHOLE_BYTES
    if size > WHOLE_BYTES:
        part = max(PART_BYTES, -(-size // MOST_PARTS // BLOCK_BYTES) * BLOCK_BYTES)
    digests, sums, at = [hashlib.md5(usedforsecurity=False)], [], 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while got := pread_full(file.fileno(), buffer, at):
            if at and at % part == 0:
                digests.append(hashlib.md5(usedforsecurity=False))
            sums.append(xxhash.xxh3_64_intdigest(buffer[:got]))
            digests[-1].update(buffer[:got])
            at += got
    etag = digests[0].hexdigest()
    if size > WHOLE_BYTES:
        joined = b"".join(digest.digest() for digest in digests)
        etag = f"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(digests)}"
    return Contents(at, np.array(sums, np.uint64), etag, part)


class WritableFolder(RemoteFolder):
    """What lies behind a URL, to be written. Errors as of :meth:`RemoteFolder.read`."""

    REQUEST_S = 300.0
    MAKES_FOLDERS = True

    async def put(self, name: str, path: Path, sums: Hashes, only_if_absent: bool) -> str:
        """Put a file there, check it, and return what the store calls this version of it.

        Raises:
            ChecksumError: the file is not what was packed, or the store spoils it.
            DestinationError: it was to be put only if absent, and another is there.
        """
        meant = await asyncio.to_thread(contents_of, path)
        if not np.array_equal(meant.sums, sums):
            raise ChecksumError(
                f"{show_path(path)} is not what was written there; the disk is bad, or another"
                " program wrote to it"
            )
        for _ in range(TRIES):
            is_put = await self._send(name, path, meant, only_if_absent)
            found = await self._head(f"looking at {self.url / name}", name)
            version = version_of(found)
            if found["size"] == meant.num_bytes and (
                version == meant.etag or await self._holds(name, meant)
            ):
                return version
            if not is_put:
                raise DestinationError(f"{self.url / name} is there already, written by another")
        raise ChecksumError(
            f"{self.url / name}: what the store has is not what was sent, {TRIES} times"
        )

    async def _send(self, name: str, path: Path, meant: Contents, only_if_absent: bool) -> bool:
        """Return True if it was put: not if it was there."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._errors(f"writing {self.url / name}"), suppress(AlreadyExistsError):
            await obstore.put_async(
                self._store,
                name,
                path,
                mode="create" if only_if_absent else "overwrite",
                use_multipart=meant.num_bytes > WHOLE_BYTES and not only_if_absent,
                chunk_size=meant.part_bytes,
                max_concurrency=PARTS_AT_ONCE,
            )
            return True
        return False

    async def _holds(self, name: str, meant: Contents) -> bool:
        sums: list[int] = []
        for start in range(0, meant.num_bytes, READ_BYTES):
            data = await self.read(name, start, min(READ_BYTES, meant.num_bytes - start))
            blocks = (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))
            sums.extend(map(xxhash.xxh3_64_intdigest, blocks))
        return np.array_equal(np.array(sums, np.uint64), meant.sums)

    async def text(self, name: str, *, is_first: bool = False) -> str | None:
        """Return a small object's text; None if it is not there. ``is_first``: as of
        :meth:`size`."""
        try:
            size = await self.size(name, is_first=is_first)
            return str(await self.read(name, 0, size), "utf-8", "replace")
        except ShardMissingError:
            return None

    async def versions(self) -> dict[str, list[Any]]:
        """Return name -> size and version of all objects; folders in it have a size of -1."""
        import obstore

        try:
            with self._errors(f"listing {self.url}"):
                found = await obstore.list_with_delimiter_async(self._store)
        except ShardMissingError as error:
            raise StorageError(f"listing {self.url}: there is no such bucket") from error
        folders = {path.rpartition("/")[2] + "/": [-1, ""] for path in found["common_prefixes"]}
        objects = {one["path"]: [one["size"], version_of(one)] for one in found["objects"]}
        return folders | {name: told for name, told in objects.items() if name}

    async def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        import obstore

        with suppress(ShardMissingError), self._errors(f"removing {self.url / name}"):
            await obstore.delete_async(self._store, name)

    async def refuse_ousted(self, claim: str | None) -> None:
        """Raise DestinationError if the claim there is not this one; None is for who has none."""
        if claim is not None and await self.text(CLAIM) != claim:
            raise DestinationError(
                f"{self.url} was taken over by another that writes a dataset there, or its {CLAIM}"
                " was removed; what is there is now the other's to finish"
            )


_changing: dict[str, set[asyncio.Task[str]]] = {}


async def write_to_bucket(asked: dict[str, Any], numbers: Integers) -> dict[str, Any]:
    """Answer those who write datasets. One at a time writes to a URL, by its lock. Errors as of
    :class:`WritableFolder`."""
    place, what = asked["place"], asked["what"]
    folder = WritableFolder(Url(place["url"]), place["settings"], place["retry_s"])
    running = _changing.setdefault(place["url"], set())
    if what == "text":
        return {"text": await folder.text(asked["file"], is_first=asked["is_first"])}
    if what == "list":
        return {"versions": await folder.versions()}
    if what == "stop":  # what a writer began that was killed since
        tasks = [*running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return {}
    task = asyncio.ensure_future(_change(folder, asked, numbers.view(np.uint64)))
    running.add(task)
    try:
        return {"version": await task}
    except asyncio.CancelledError as error:
        raise DestinationError(f"writing to {folder.url} was stopped") from error
    finally:
        running.discard(task)


async def _change(folder: WritableFolder, asked: dict[str, Any], sums: Hashes) -> str:
    """Put a file, and return its version; or remove some."""
    claim = asked["claim"]
    if asked["what"] == "put":
        await folder.refuse_ousted(claim)
        path = Path(asked["path"])
        return await folder.put(asked["file"], path, sums, asked["only_if_absent"])
    names = asked["files"]
    for at in range(0, len(names), REMOVED_AT_ONCE):
        await folder.refuse_ousted(claim)
        await asyncio.gather(*map(folder.remove, names[at : at + REMOVED_AT_ONCE]))
    return ""
