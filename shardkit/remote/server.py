"""The server of a cache: the one process of a machine that fetches, and that writes to the cache.

Readers ask it over a socket in the cache's folder: ranks and workers, threads, forked or spawned.
It is started by the first, and ends some seconds after the last has gone. Who asks for blocks has
them until it asks again or ends; what else is there may go when space is needed.

``python -m shardkit.remote.server FOLDER LINGER_S`` returns when it is ready, and goes on.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shardkit import errors
from shardkit.arrays import Integers
from shardkit.errors import DataError, ShardkitError
from shardkit.remote import connection
from shardkit.remote.block_cache import BlockCache
from shardkit.remote.bucket_transfers import fetch_bucket, write_to_bucket
from shardkit.remote.connection import LOCK, LOG, SOCKET
from shardkit.remote.private_folder import open_own, open_plain


class Server:
    """Answers readers, until none is left."""

    def __init__(self, cache: BlockCache, linger_s: float, lock: int) -> None:
        self._cache = cache
        self._lock = os.fstat(lock).st_ino
        self._linger_s = linger_s
        self._readers = 0
        self._asked = 0
        self._end: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()

    def count(self, more: int) -> None:
        self._readers += more
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self._readers:
            self._end = asyncio.get_running_loop().call_later(self._linger_s, self.ended.set)

    def is_still_here(self) -> bool:
        """Return True if nobody has deleted the cache."""
        try:
            return (self._cache.folder / LOCK).stat().st_ino == self._lock
        except FileNotFoundError:
            return False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.count(1)
        self._asked += 1
        number = self._asked
        try:
            while True:
                head = await reader.readexactly(connection.HEAD.size)
                sizes = connection.HEAD.unpack(head)
                if sum(sizes) > connection.MOST_BYTES:
                    return
                asked = json.loads(await reader.readexactly(sizes[0]))
                numbers = np.frombuffer(await reader.readexactly(sizes[1]), np.int64)
                is_open = asked["do"] == "open"
                if is_open and not (self.is_still_here() and self._cache.are_intact()):
                    self.ended.set()  # the reader asks again, of a server of what is there now
                    return
                answering = self._answered(number, asked, numbers)
                answer = await self._with_beats(answering, writer)
                if asked["do"] not in connection.UNANSWERED:
                    writer.write(connection.pack(answer))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._cache.forget(number)
            self.count(-1)
            writer.close()

    async def _answered(
        self, number: int, asked: dict[str, Any], numbers: Integers
    ) -> dict[str, Any]:
        """Return the answer, or an error, which the reader raises."""
        try:
            return await self._do(number, asked, numbers)
        except ShardkitError as error:
            names = [kind.__name__ for kind in type(error).__mro__]
            return {"error": next(filter(vars(errors).get, names)), "message": str(error)}
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "the disk is full; make cache_bytes smaller, or" if full else f"{error};"
            kind, why = "StorageError", f"{what} use another cache_dir"
        except Exception as error:  # noqa: BLE001
            kind, why = "DataError", f"{type(error).__name__}: {error}"
        return {"error": kind, "message": f"the cache {self._cache.folder}: {why}"}

    async def _do(self, number: int, asked: dict[str, Any], numbers: Integers) -> dict[str, Any]:
        cache, what = self._cache, asked["do"]
        if what == "open":
            return {"name": (await cache.open(asked["place"])).folder.name}
        if what == "write":
            return await write_to_bucket(asked, numbers)
        if what == "fetch bucket":
            return await fetch_bucket(asked)
        if what == "at":
            cache.move(asked["loop"], asked["step"], asked["is_resting"])
            return {}
        if what == "clear":
            cache.clear(asked["names"])
            return {}
        dataset = await cache.use(asked["name"], asked["place"])
        if what == "stats":
            return {"bytes": cache.num_bytes, "capacity": cache.evictor.capacity()}
        if what == "index file":
            await dataset.fetch_index_file(asked["file"])
        elif what == "unlisted":
            await dataset.fetch_unlisted(asked["file"])
        elif what == "forget":
            dataset.forget()
        elif what == "need":
            await cache.need(number, await dataset.split(asked["split"]), numbers)
        elif what == "soon":
            cache.expect(await dataset.split(asked["split"]), numbers)
        elif what == "follow":
            cache.follow(number, asked["loop"], await dataset.split(asked["split"]), numbers)
        else:
            raise DataError(f"no such request: {what!r}; two versions of shardkit share a cache")
        return {}

    async def _with_beats(
        self, answering: Coroutine[Any, Any, dict[str, Any]], writer: asyncio.StreamWriter
    ) -> dict[str, Any]:
        """Return the answer. Until then the reader hears that it comes, and one that has gone is
        noticed.

        Raises:
            ConnectionError: it has gone.
        """
        task = asyncio.ensure_future(answering)
        try:
            while not (await asyncio.wait([task], timeout=connection.BEAT_S))[0]:
                writer.write(connection.pack(connection.BEAT))
                await writer.drain()
            return task.result()
        finally:
            task.cancel()


def main(arguments: Iterable[str]) -> int:
    """Become the server of a cache, unless there is one; then, too, all is well."""
    where, linger_s = arguments
    folder = Path(where)
    at = open_own(folder)
    lock = open_plain(LOCK, os.O_RDWR | os.O_CREAT, at)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 0  # another is there, or is about to be
    os.fchdir(at)  # the name of a socket has at most 107 bytes
    Path(SOCKET).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)
    listening.bind(SOCKET)
    os.umask(before)
    listening.listen(1024)
    # Each split that was ever opened keeps a folder open.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log = open_plain(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, at)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream, fd in ((0, nothing), (1, log), (2, log)):
        os.dup2(fd, stream)
    asyncio.run(_serve(folder, listening, float(linger_s), lock))
    return 0


async def _serve(folder: Path, listening: socket.socket, linger_s: float, lock: int) -> None:
    server = Server(BlockCache(folder), linger_s, lock)
    server.count(0)
    listener = await asyncio.start_unix_server(server.answer, sock=listening)
    await server.ended.wait()
    # Its name goes first: who comes now finds none, and starts another, which waits for the lock.
    if server.is_still_here():  # else it is that of another server, for whom all was deleted
        Path(SOCKET).unlink(missing_ok=True)
    listener.close()
    os._exit(0)  # a thread that writes to a stuck disk would keep the process, and its lock


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
