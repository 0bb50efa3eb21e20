"""Objects behind a URL, by obstore: the one place that uses the network.

Only the keeper of a cache imports this, in a process of its own: whoever has used obstore and forks
has children that wait for ever.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from shardkit.errors import ShardkitError, ShardMissingError, StorageError
from shardkit.remote.urls import Url

SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "OBJECT_STORE_")
"""What variables of the environment begin with that say how to reach a bucket."""

RETRY_S = 120
"""How long a request is tried again after errors of the server or the network."""

REQUEST_S = 60
"""How long one try may take."""


def settings_of(environment: dict[str, str]) -> dict[str, str]:
    """Those of an environment, which may hold secrets: they are passed on, and kept nowhere."""
    return {key: value for key, value in environment.items() if key.startswith(SETTINGS)}


class RemoteFolder:
    """What lies behind a URL, by name.

    Args:
        settings: of :func:`settings_of`; all else that finds credentials is the platform's own.

    Raises:
        StorageError: the settings make no sense.
    """

    def __init__(self, url: Url, settings: dict[str, str]) -> None:
        from obstore.store import from_url

        self.url = url
        options: dict[str, Any] = {"timeout": f"{REQUEST_S}s", "connect_timeout": "10s"}
        if url.text.startswith("http://") or "http://" in settings.get("AWS_ENDPOINT_URL", ""):
            options["allow_http"] = True
        retry: Any = {
            "max_retries": 20,
            "retry_timeout": timedelta(seconds=RETRY_S),
            "backoff": {
                "base": 2,
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=10),
            },
        }
        given: Any = {} if url.text.startswith("file:") else {"client_options": options}
        with _environment(settings), _store_errors(f"opening {url}"):
            self._store = from_url(url.text, **given, **({"retry_config": retry} if given else {}))

    async def size(self, name: str) -> int:
        """Bytes of an object. Errors as of :meth:`read`."""
        import obstore

        with _store_errors(f"asking for the size of {self.url / name}"):
            return int((await obstore.head_async(self._store, name))["size"])

    async def read(self, name: str, start: int, count: int) -> memoryview:
        """So many bytes from there on.

        Raises:
            ShardMissingError: there is no such object. StorageError: the network, the server or the
                credentials say no; or the object is shorter.
        """
        import obstore

        if not count:
            return memoryview(b"")
        what = f"reading bytes {start} to {start + count} of {self.url / name}"
        with _store_errors(what):
            got = memoryview(
                await obstore.get_range_async(self._store, name, start=start, length=count)
            )
        if len(got) != count:
            raise StorageError(f"{what}: got {len(got)} bytes; it may have been replaced")
        return got


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
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


@contextmanager
def _store_errors(what: str) -> Iterator[None]:
    try:
        yield
    except ShardkitError:
        raise
    except FileNotFoundError as error:
        raise ShardMissingError(f"{what}: there is no such object") from error
    except Exception as error:
        raise StorageError(f"{what}: {said(error)}") from error


def said(error: Exception) -> str:
    """What an error says, on one line, without queries, which may hold signatures."""
    text = str(error).partition("Debug source:")[0]
    return re.sub(r"\?[^\s\"')]*", "", " ".join(text.split()))[:500] or type(error).__name__
