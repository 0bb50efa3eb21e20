"""All objects below a URL, as files: the server's part in packing what lies in a bucket.

A file that is whole has its last name, and as its time of change a number made of the object's
size, ETag and time: one that is there already is not fetched again, and one replaced meanwhile is.
Each is read on condition of the ETag that was listed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import xxhash

from shardkit.errors import CorpusError, StorageError
from shardkit.remote.store import RemoteFolder
from shardkit.remote.urls import Url

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
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (status.st_size, status.st_mtime_ns) == (each["size"], _time_of(each))


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
