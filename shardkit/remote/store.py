"""Objects behind a URL, by obstore: the one place that uses the network.

Only the keeper of a cache imports this, in a process of its own: whoever has used obstore and forks
has children that wait for ever.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from shardkit.errors import ShardMissingError, StorageError, UsageError
from shardkit.formats.writev import write_all
from shardkit.remote import causes
from shardkit.remote.gate import BUSY, Gate, Patience, next_pause
from shardkit.remote.hugging_face import address_of, token_of
from shardkit.remote.options import ENDPOINTS, check_endpoint, check_keys, settings_of
from shardkit.remote.profiles import of_profile
from shardkit.remote.urls import Url

FIRST_S = 5.0
"""How long a server may be out of reach for a command's first request: its name may be wrong."""

WRITE_TRIES = 10
"""Of one request, where an object takes many."""

REQUEST_S, WRITE_S = 60, 300
"""How long one try may take, to read or to write, however slow the place."""

KEYS = 50
"""Of a listing, taken at a time: those taken are not listed again after an error."""

PIECE_BYTES, PIECES = 8 << 20, 8
"""Of an object that becomes a file: of one request, and how many of these are under way at once."""

T = TypeVar("T")


class ForbiddenError(StorageError):
    """The credentials are not enough."""


@cache
def _gate_of(host: str) -> Gate:
    """One for each place, whatever lies there: it is the place that bears so many requests."""
    return Gate()


class RemoteFolder:
    """What lies behind a URL, by name.

    Attributes:
        WRITES: whether obstore tries requests again by itself, of which a large object has many.

    Args:
        settings: of :func:`settings_of`; all else that finds credentials is the platform's own.
        retry_s: how long a request is tried again after errors of the server or the network.

    Raises:
        StorageError: the settings make no sense. UsageError: an endpoint is no address.
    """

    WRITES = False

    def __init__(self, url: Url, settings: dict[str, str], retry_s: float) -> None:
        from obstore.store import from_url

        self.url = url
        self.retry_s = retry_s
        self._gate = _gate_of(url.text.split("/")[2])
        self._secrets = [
            value for key, value in settings.items() if causes.SECRET.match(key) and value
        ]
        # How long a try may take is measured; this is for what goes on when nobody waits any more.
        within = WRITE_S if self.WRITES else REQUEST_S
        options: dict[str, Any] = {"timeout": f"{within}s", "connect_timeout": "10s"}
        options["pool_max_idle_per_host"] = "64"
        # Its own retries leave out bodies that are cut off, so ours are all there are but to send.
        retry: Any = {"max_retries": 0, "retry_timeout": timedelta(0)}
        is_here = url.text.startswith("file:")
        if is_here and not self.WRITES and not os.path.isdir(unquote(url.text[7:])):
            raise ShardMissingError(f"{url}: there is no such folder")
        given: Any = {"mkdir": True} if is_here and self.WRITES else {}
        given |= {} if is_here else {"client_options": options, "retry_config": retry}
        with with_environment(settings), self._errors(f"opening {url}"):
            where = url.text
            if where.startswith("s3:"):
                given |= of_profile(settings)
            check_keys(settings)
            for name in ENDPOINTS:
                if name in settings:
                    check_endpoint(name, settings[name])
            if "endpoint" in given:
                check_endpoint("endpoint_url of the profile", given["endpoint"])
            if where.startswith("hf:"):
                where, token = address_of(url, settings), token_of(settings)
                if token:
                    self._secrets.append(token)
                    options["default_headers"] = {"Authorization": f"Bearer {token}"}
            servers = [where, given.get("endpoint", ""), *settings.values()]
            if any(server.startswith("http://") for server in servers):
                options["allow_http"] = True
            self._store = from_url(where, **given)
            if self.WRITES and not is_here:
                for_long = timedelta(seconds=retry_s)
                given["retry_config"] = {"max_retries": WRITE_TRIES, "retry_timeout": for_long}
            self._sender = from_url(where, **given) if self.WRITES else self._store

    def patience(self, *, is_first: bool = False) -> Patience:
        """For what takes several requests, and should fail no later than one. ``is_first``: nothing
        has been asked of that place by this command."""
        return Patience(self.retry_s, FIRST_S if is_first else math.inf)

    def holding(self, num_bytes: int) -> AbstractContextManager[None]:
        """What was read stays in memory: see :meth:`shardkit.remote.gate.Gate.holding`."""
        return self._gate.holding(num_bytes)

    async def size(self, name: str, patience: Patience | None = None) -> int:
        """Bytes of an object. Errors as of :meth:`read`."""
        what = f"asking for the size of {self.url / name}"
        return int((await self._head(what, name, patience))["size"])

    async def _head(self, what: str, name: str, patience: Patience | None = None) -> Any:
        import obstore

        async def head() -> Any:
            try:
                return await obstore.head_async(self._store, name)
            except Exception as error:
                is_first = patience is not None and patience.first_s < math.inf
                is_missing = is_first and isinstance(error, FileNotFoundError)  # or the bucket is
                if is_missing or causes.UNTOLD.search(str(error)):
                    await obstore.get_range_async(self._store, name, start=0, length=1)
                raise

        return await self._tried(what, head, 0, patience)

    async def read(
        self, name: str, start: int, count: int, patience: Patience | None = None
    ) -> memoryview:
        """So many bytes from there on.

        Raises:
            ShardMissingError: there is no such object. StorageError: the network, the server or the
                credentials say no; or the object is shorter.
        """
        import obstore

        if not count:
            return memoryview(b"")
        what = f"reading bytes {start} to {start + count} of {self.url / name}"
        request = partial(obstore.get_range_async, self._store, name, start=start, length=count)
        got = memoryview(await self._tried(what, request, count, patience))
        if len(got) != count:
            raise StorageError(f"{what}: got {len(got)} bytes; it may have been replaced")
        return got

    async def list(self) -> list[dict[str, Any]]:
        """All objects below, page by page. After an error it goes on behind the last key, where
        keys came in order; some buckets list in none, and then it begins anew."""
        import obstore

        found: list[dict[str, Any]] = []
        pages: Any = None
        patience: Patience | None = self.patience(is_first=True)

        async def has_more() -> bool:
            nonlocal pages
            if pages is None:
                keys = [each["path"] for each in found]
                if keys != sorted(keys):
                    keys.clear()
                    found.clear()
                pages = obstore.list(
                    self._store, offset=keys[-1] if keys else None, chunk_size=KEYS
                )
            try:
                found.extend(map(dict, await anext(pages)))
            except StopAsyncIteration:
                return False
            except BaseException:
                pages = None
                raise
            return True

        while await self._tried(f"listing {self.url}", has_more, 0, patience, is_alone=True):
            patience = None
        return found

    async def copy_to(self, path: Path, listed: dict[str, Any]) -> None:
        """An object as a file, if it is still the one that was listed; a large one in pieces.

        Raises:
            StorageError: it is not, or as of :meth:`read`.
        """
        size = listed["size"]
        with path.open("wb") as file:
            for first in range(0, max(size, 1), PIECES * PIECE_BYTES):
                starts = range(first, min(first + PIECES * PIECE_BYTES, max(size, 1)), PIECE_BYTES)
                await asyncio.gather(
                    *(
                        self._copy_piece(file.fileno(), listed, at, min(at + PIECE_BYTES, size))
                        for at in starts
                    )
                )

    async def _copy_piece(self, fd: int, listed: dict[str, Any], start: int, stop: int) -> None:
        """Bytes [start, stop) of an object, to the same place of a file."""
        import obstore

        name, what, size = listed["path"], f"reading {self.url / listed['path']}", listed["size"]
        options: Any = {"range": (start, stop)} if stop - start < size else {}

        async def piece() -> memoryview | str:
            try:
                got = await obstore.get_async(self._store, name, options=options)
            except FileNotFoundError:
                return "it vanished (or its key ends in /, which no file's name does)"
            if len({version_of(got.meta), version_of(listed)} - {""}) > 1:
                return "it was replaced"
            if got.meta["size"] != size:
                return f"{got.meta['size']} bytes, and not {size}"
            data = memoryview(await got.bytes_async())
            if len(data) != stop - start:
                raise ConnectionError(f"the body ended after {len(data)} bytes")
            return data

        got = await self._tried(what, piece, stop - start)
        if isinstance(got, str):
            raise StorageError(f"{what}: {got} since it was listed; run the same command again")
        write_all(fd, [got], start)

    async def _tried(
        self,
        what: str,
        request: Callable[[], Awaitable[T]],
        num_bytes: int = 0,
        patience: Patience | None = None,
        *,
        is_alone: bool = False,
    ) -> T:
        """The answer to a request, made again after errors that may pass. ``is_alone``: as of
        :meth:`shardkit.remote.gate.Gate.answer`; else it may be under way twice.

        Raises:
            As of :meth:`read`.
        """
        patience, tries, pause = patience or self.patience(), 0, 0.0
        while True:
            tries += 1
            try:
                return await self._gate.answer(request, num_bytes, patience, is_alone=is_alone)
            except Exception as error:
                text = str(error)
                pause = next_pause(pause, is_busy=bool(BUSY.search(text)))
                is_final, is_lost = _is_final(error, tries), pause >= patience.left()
                if causes.UNREACHABLE.search(text) and pause >= patience.first_s - patience.spent():
                    is_final = True  # for this command; others that were answered wait longer
                if is_lost and not is_final:
                    self._gate.give_up()
                if is_final or is_lost or self._gate.is_given_up(patience):
                    tried = f"{what} ({tries} times in {patience.spent():.0f} s)"
                    with self._errors(tried if tries > 1 else what):
                        raise
            await asyncio.sleep(pause)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (StorageError, UsageError):
            raise
        except Exception as error:
            whole = str(error)
            if isinstance(error, FileNotFoundError) and not causes.NO_BUCKET.search(whole):
                raise ShardMissingError(f"{what}: there is no such object") from error
            advice, kind = causes.advice_on(error), StorageError
            if not advice and causes.DENIED.search(whole):
                scheme, kind = self.url.text.partition(":")[0], ForbiddenError
                advice = causes.ADVICE_TO_DENIED.get(scheme, "web servers get no credentials")
            text = causes.said(error, self._secrets).rstrip(".: ")
            raise kind(f"{what}: {text}{'; ' if advice else ''}{advice}") from error


def version_of(meta: Any) -> str:
    """Return the entity tag of an object, without quotes, and as a strong one: Azure's listings
    leave out the quotes that its other answers have."""
    return (meta["e_tag"] or "").removeprefix("W/").strip('"')


def _is_final(error: Exception, tries: int) -> bool:
    """Whether the same request would end the same way."""
    text = str(error)
    if causes.FEW_TRIES.search(text):
        return tries >= 5
    return isinstance(error, FileNotFoundError) or bool(causes.FINAL.search(text))


@contextmanager
def with_environment(settings: dict[str, str]) -> Iterator[None]:
    """The reader's own settings instead of those that the keeper was started with."""
    before = settings_of(dict(os.environ))
    for key in before:
        del os.environ[key]
    os.environ.update(settings)
    try:
        yield
    finally:
        for key in settings:
            os.environ.pop(key, None)
        os.environ.update(before)
