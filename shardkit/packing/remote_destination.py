"""A destination behind a URL: packed in a folder of this machine, and uploaded shard by shard.

The staging folder is a destination like any other, but for what becomes of finished shards: each is
uploaded while the next are packed, checked there, recorded as sent, and only then removed. What
records a shard is durable before its file goes, so that a kill -9 anywhere leaves either.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from shardkit.arrays import Hashes
from shardkit.commit.durable_files import atomic_write
from shardkit.commit.records import read_record, write_record
from shardkit.errors import DestinationError, ShardkitError, StorageError, UsageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.index.journal import Receipt, journal_path, read_finished
from shardkit.index.manifest import DatasetInfo, dump_info
from shardkit.packing.destination import Destination, T, dataset_files, left_over
from shardkit.remote.remote_target import RemoteTarget, Versions
from shardkit.remote.urls import Url, refuse_overlap, require_obstore
from shardkit.system.byte_sizes import parse_size
from shardkit.system.file_io import BLOCK_BYTES, block_sums
from shardkit.system.paths import as_path, file_size, show_path, user_cache

STAGING_BYTES = 4 << 30
"""Of finished shards that wait to be uploaded, by default."""

AT_ONCE = 4
"""Files being uploaded. Each large one has several parts under way."""

WRITABLE = ("s3", "gs", "az", "file")
_SENT = ".sent"
_RESULT = "result.json"


class RemoteDestination(Destination):
    """Holds the lock of a staging folder, and a claim on what is behind the URL.

    Raises:
        DestinationError: there is a dataset, or another that writes; or as of Destination.
        StorageError: the network, the server or the credentials say no.
    """

    def __init__(
        self,
        url: Url,
        source: Path,
        overwrite: bool,
        staging: str | Path | None,
        most_bytes: int | None,
        is_shared: bool = False,
    ) -> None:
        refuse_unwritable(url)
        refuse_overlap(url, source)
        at = staging_of(url, staging)
        try:  # else what waits would be taken for a part of the source
            refuse_overlap(at, source)
        except DestinationError as error:
            raise UsageError(
                f"staging {show_path(at.parent)} and the source {show_path(source)} overlap; choose"
                " a folder outside the source"
            ) from error
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        claim = at.parent.resolve() / f"{at.name}.claim"
        self._target = RemoteTarget(url, claim.parent, claim)
        self._most_bytes = STAGING_BYTES if most_bytes is None else most_bytes
        self._waiting: dict[Future[None], int] = {}
        self._sending = ThreadPoolExecutor(AT_ONCE, "shardkit-upload")
        self._is_whole = False
        self._has_begun = False
        super().__init__(at, source, overwrite, is_shared)
        try:
            self._claim()
        except BaseException:
            super().__exit__(DestinationError, None, None)
            raise

    @property
    def name(self) -> str:
        return self._target.url.text

    def _claim(self) -> None:
        """Claim what is behind the URL, and forget files that were sent and are not there any more:
        they are made again."""
        index = self.stage / INDEX_NAME
        own = index.read_bytes() if index.exists() and not self._overwrite else None
        self._is_whole = self._target.take(own, self._overwrite)
        if self._is_whole or not self.work.is_dir():
            return
        there = self._target.versions()
        for path in self.work.glob(f"*{_SENT}"):
            sent = self._sent(path.name.removesuffix(_SENT))
            if sent is None or there.get(sent["name"]) != (sent["bytes"], sent["version"]):
                path.unlink()

    def finished(self, recipe: dict[str, Any], kind: type[T]) -> T | None:
        if not self._is_whole:
            return None
        made = self._result(read_record(self.work / _RESULT) or {}, recipe, kind)
        self._tidy()
        return made

    # --- files on their way -----------------------------------------------------------------

    def deliver(self, receipt: Receipt) -> None:
        """Upload a finished shard beside what comes; waits while too many bytes do."""
        for name, size in receipt.file_bytes.items():
            sent = self._sent(name)
            if sent is None or sent["bytes"] != size or (self.stage / name).exists():
                break  # not sent, or made again since
        else:
            return
        sums = read_finished(journal_path(self.work, receipt.split, receipt.shard)).sums
        at = 0
        for name in sorted(receipt.file_bytes):
            size = receipt.file_bytes[name]
            end = at + -(-size // BLOCK_BYTES)
            self.send(name, self.stage / name, size, sums[at:end])
            at = end

    def send(self, name: str, path: Path, size: int, sums: Hashes) -> None:
        """Upload a file; one in the stage is removed when it is there."""
        self.wait_for_room(size)
        self._has_begun = True
        self._waiting[self._sending.submit(self._send, name, path, size, sums)] = size

    def wait_for_room(self, size: int) -> None:
        """Wait until so many bytes more may wait."""
        while True:
            for done in [one for one in self._waiting if one.done()]:
                del self._waiting[done]
                done.result()
            if not self._waiting or sum(self._waiting.values()) + size <= self._most_bytes:
                return
            wait(self._waiting, return_when=FIRST_COMPLETED)

    def _send(self, name: str, path: Path, size: int, sums: Hashes) -> None:
        if not self.is_sent(name, size, sums):
            version = self._target.put(name, path, sums)
            record = {"name": name, "bytes": size, "version": version, "sums": _digest(sums)}
            write_record(self.work / f"{name}{_SENT}", record)
        if path.parent == self.stage:
            path.unlink(missing_ok=True)

    def is_sent(self, name: str, size: int, sums: Hashes) -> bool:
        """Return True if this very file is there, by what was recorded."""
        sent = self._sent(name)
        return sent is not None and (sent["bytes"], sent["sums"]) == (size, _digest(sums))

    def _sent(self, name: str) -> dict[str, Any] | None:
        try:
            return read_record(self.work / f"{name}{_SENT}")
        except FileNotFoundError:
            return None

    def size_of(self, name: str) -> int:
        """Return the bytes of a finished file, here or there; -1 if it is neither."""
        here = file_size(self.stage / name)
        sent = self._sent(name) if here < 0 else None
        return here if sent is None else int(sent["bytes"])

    # --- the end --------------------------------------------------------------------------

    def finish(self, info: DatasetInfo, recipe: dict[str, Any], result: dict[str, Any]) -> None:
        """Upload what is left, compare all with what is there, and put shardkit.json last."""
        self.folder.check_held()
        self._wait_for_all()
        new = [name for name in dataset_files(info) if self.size_of(name) >= 0]
        for name in new:
            path = self.stage / name
            if path.exists():
                self.send(name, path, file_size(path), block_sums(path))
        self._wait_for_all()
        there = self._compare(new)
        self._target.remove_others(there, new, left_over(there, info))
        write_record(self.work / _RESULT, {"recipe": recipe, "result": result})
        atomic_write(self.stage / INDEX_NAME, [dump_info(info)])
        self._target.put_index(self.stage / INDEX_NAME)
        self._is_whole = True
        self._tidy()

    def _wait_for_all(self) -> None:
        for one in list(self._waiting):
            one.result()
        self._waiting.clear()

    def _compare(self, new: list[str]) -> Versions:
        """Return what lies there. Raises StorageError unless all that was sent does, unchanged."""
        there = self._target.versions()
        for name in new:
            sent = self._sent(name) or {"bytes": -1, "version": ""}
            if there.get(name) != (sent["bytes"], sent["version"]):
                raise StorageError(
                    f"{self._target.url / name} has been removed or replaced since it was uploaded;"
                    " run the same command again"
                )
        return there

    def _tidy(self) -> None:
        self._target.release()
        self.folder.clear()
        self._goes_if_empty = True

    def _is_worth_keeping(self) -> bool:
        """Return True once an upload has begun: an object may be there, which only our claim tells
        from those of others."""
        has_begun = self._has_begun or any(self.work.glob(f"*{_SENT}"))
        return has_begun or super()._is_worth_keeping()

    def __exit__(self, *error: object) -> None:
        for one in self._waiting:
            one.cancel()
        if self._waiting:
            with suppress(ShardkitError):  # the error under way says more
                self._target.stop()
        self._sending.shutdown(wait=True)
        super().__exit__(*error)
        if error[0] is not None and not self.work.exists():
            with suppress(ShardkitError):
                self._target.release()


def refuse_taken(url: Url, staging: str | Path | None, overwrite: bool) -> None:
    """Raise errors as of :class:`RemoteDestination`, before what is packed is fetched; nothing
    happens where an earlier call left what it would go on from."""
    refuse_unwritable(url)
    at = staging_of(url, staging)
    if not at.exists():
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        cache = at.parent.resolve()
        RemoteTarget(url, cache, cache / f"{at.name}.claim").refuse_taken(overwrite)


def _digest(sums: Hashes) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(sums).tobytes())


def refuse_unwritable(url: Url) -> None:
    """Raise UsageError if nothing can be written there."""
    scheme = url.text.partition("://")[0]
    if scheme not in WRITABLE:
        raise UsageError(
            f"the destination {url}: {scheme}:// is only read; datasets are written to"
            f" {', '.join(f'{name}://' for name in WRITABLE)}, or to a folder"
        )
    require_obstore(url)


def staging_of(url: Url, given: str | Path | None) -> Path:
    """Return the folder for what goes to a URL. Raises UsageError if there is no home."""
    cache = user_cache()
    if given is None and cache is None:
        raise UsageError("there is no home for what waits to be uploaded: give staging")
    root = cache / "staging" if given is None and cache else as_path(given, "staging")
    return root / xxhash.xxh3_128_hexdigest(url.text.encode())


def open_destination(
    dest: Path | Url,
    source: Path,
    overwrite: bool,
    staging: str | Path | None = None,
    staging_bytes: str | int | None = None,
    is_shared: bool = False,
) -> Destination:
    """Open one on this machine or behind a URL; errors as of these classes. ``is_shared``: other
    machines write there, too. UsageError: staging is given for what is not uploaded."""
    most = None if staging_bytes is None else parse_size(staging_bytes)
    if isinstance(dest, Url):
        return RemoteDestination(dest, source, overwrite, staging, most, is_shared)
    if staging is not None or most is not None:
        raise UsageError(
            f"staging and staging_bytes are for what is uploaded, and {show_path(dest)} is a folder"
        )
    return Destination(dest, source, overwrite, is_shared)
