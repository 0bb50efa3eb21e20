"""Objects behind a URL, by obstore: the one place that uses the network.

Only the keeper of a cache imports this, in a process of its own: whoever has used obstore and forks
has children that wait for ever.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote
from xml.sax.saxutils import escape

from shardkit.errors import ShardMissingError, StorageError, UsageError
from shardkit.formats.writev import write_all
from shardkit.remote.gate import BUSY, Gate, Patience, next_pause
from shardkit.remote.hugging_face import address_of, token_of
from shardkit.remote.options import ENDPOINTS, check_endpoint, check_keys, settings_of
from shardkit.remote.profiles import of_profile
from shardkit.remote.urls import Url

FEW_TRIES = 5
"""A server that sends whole objects instead of ranges seldom does otherwise when asked again; nor
does a machine that has no credentials."""

OF_THE_MACHINE = re.compile(r"/latest/(api|meta-data)/|/computeMetadata/|/metadata/identity/")
"""Where credentials are asked for that are given nowhere: services of rented machines."""

FINAL = re.compile(
    r"status code: 4(?!08|25|29)|error following redirect|Content-Length Header missing"
    r"|contained empty path segment|Encountered illegal character"
)
"""Answers that stay the same, and keys that obstore cannot name. All else are busy servers, and
networks."""

WRITE_TRIES = 10
"""Of one request, where an object takes many."""

REQUEST_S, WRITE_S = 60, 300
"""How long one try may take, to read or to write, however slow the place."""

KEYS = 50
"""Of a listing, taken at a time: those taken are not listed again after an error."""

PIECE_BYTES, PIECES = 8 << 20, 8
"""Of an object that becomes a file: of one request, and how many of these are under way at once."""

_SECRET = re.compile("KEY|SECRET|TOKEN|PASS|CREDENTIAL", re.IGNORECASE)

_SERVERS_WORDS = re.compile(r"(<\?xml|<Error>).*</Error>", re.DOTALL)
"""What S3 answers; beside its code and message are tokens, and addresses."""

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
        self._secrets = [value for key, value in settings.items() if _SECRET.search(key) and value]
        # How long a try may take is measured; this is for what goes on when nobody waits any more.
        within = WRITE_S if self.WRITES else REQUEST_S
        options: dict[str, Any] = {"timeout": f"{within}s", "connect_timeout": "10s"}
        options["pool_max_idle_per_host"] = "64"
        # Its own retries leave out bodies that are cut off, so ours are all there are to read with.
        retry: Any = {"max_retries": 0, "retry_timeout": timedelta(0)}
        if self.WRITES:
            retry = {"max_retries": WRITE_TRIES, "retry_timeout": timedelta(seconds=retry_s)}
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

    def patience(self) -> Patience:
        """For what takes several requests, and should fail no later than one."""
        return Patience(self.retry_s)

    def holding(self, num_bytes: int) -> AbstractContextManager[None]:
        """What was read stays in memory: see :meth:`shardkit.remote.gate.Gate.holding`."""
        return self._gate.holding(num_bytes)

    async def size(self, name: str, patience: Patience | None = None) -> int:
        """Bytes of an object. Errors as of :meth:`read`."""
        import obstore

        what = f"asking for the size of {self.url / name}"
        request = partial(obstore.head_async, self._store, name)
        return int((await self._tried(what, request, 0, patience))["size"])

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

        while await self._tried(f"listing {self.url}", has_more, is_alone=True):
            pass
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
        from obstore.exceptions import PreconditionError

        name, what, size = listed["path"], f"reading {self.url / listed['path']}", listed["size"]
        options: Any = {"if_match": listed["e_tag"]} if listed["e_tag"] else {}
        if stop - start < size:
            options["range"] = start, stop

        async def piece() -> memoryview | str:
            try:
                got = await obstore.get_async(self._store, name, options=options)
            except PreconditionError:
                return "it was replaced"
            except FileNotFoundError:
                return "it vanished (or its key ends in /, which no file's name does)"
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
                pause = next_pause(pause, is_busy=bool(BUSY.search(str(error))))
                is_final, is_lost = _is_final(error, tries), pause >= patience.left()
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
        except FileNotFoundError as error:
            raise ShardMissingError(f"{what}: there is no such object") from error
        except (StorageError, UsageError):
            raise
        except Exception as error:
            kind = ForbiddenError if _is_denied(error) else StorageError
            text = said(error, self._secrets)
            if kind is ForbiddenError:
                text = f"{text.rstrip(': ')}; these credentials may not do that there"
            if OF_THE_MACHINE.search(text):
                text = (
                    "there are no credentials in the environment, and none in a profile, and this"
                    " machine has none of its own; a public bucket needs --anonymous, or"
                    f' storage_options={{"anonymous": True}} ({text})'
                )
            raise kind(f"{what}: {text}") from error


def _is_denied(error: Exception) -> bool:
    from obstore import exceptions

    return isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)


def _is_final(error: Exception, tries: int) -> bool:
    """Whether the same request would end the same way."""
    from obstore import exceptions

    if isinstance(error, exceptions.NotSupportedError) or OF_THE_MACHINE.search(str(error)):
        return tries >= FEW_TRIES
    is_said = isinstance(error, FileNotFoundError) or _is_denied(error)
    return is_said or bool(FINAL.search(str(error)))


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


def said(error: Exception, secrets: Sequence[str] = ()) -> str:
    """What an error says, on one line, without secrets, and queries, which may hold signatures."""
    text = _SERVERS_WORDS.sub(_code_and_message, str(error).partition("Debug source:")[0])
    for secret in secrets:
        text = text.replace(secret, "***").replace(escape(secret), "***")
    return re.sub(r"\?[^\s\"')]*", "", " ".join(text.split()))[:500] or type(error).__name__


def _code_and_message(found: re.Match[str]) -> str:
    words = (re.search(rf"<{tag}>([^<]*)<", found[0]) for tag in ("Code", "Message"))
    return ": ".join(word[1] for word in words if word)
