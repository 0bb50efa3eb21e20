"""URLs of folders in buckets and on web servers, told from paths.

And options of those who read there: how it is reached, and where its blocks are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from shardkit.errors import DestinationError, UsageError
from shardkit.system.byte_sizes import parse_size
from shardkit.system.paths import SCHEMES, as_path, is_url, show_path, user_cache


@dataclass(frozen=True)
class Url:
    """A folder behind a URL, without its last slash. :func:`as_url` lets nothing secret in."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def host(self) -> str:
        """Return the server or the bucket."""
        return self.text.split("/")[2]

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text}/{quote(name)}")


def as_place(path: object, what: str) -> Path | Url:
    """Return the folder that a user gave, on this machine or behind a URL.

    Raises:
        UsageError: neither a path nor a URL of a kind that can be read; says what it was for.
    """
    if isinstance(path, Url):
        return path
    if isinstance(path, str) and is_url(path):
        return as_url(path, what)
    return as_path(path, what)


def show_place(place: Path | Url) -> str:
    """Return it for one line of a message."""
    return str(place) if isinstance(place, Url) else show_path(place)


def as_url(text: str, what: str) -> Url:
    """Check a URL, which may hold nothing that could be a secret.

    Raises:
        UsageError: it is of a kind that cannot be read, holds a password or a query (both may be
            secrets, and would be printed), names no host or bucket, or has parts that are no
            folder's name (``..``, or ``%2e%2e``): what is fetched would lie elsewhere than it says.
    """
    if any(ord(char) < 32 for char in text):  # which urlsplit leaves out without a word
        raise UsageError(f"{what}: a tab, a line's end or the like in a URL; leave it out")
    try:
        parts = urlsplit(text)
    except ValueError:  # says the host, which may hold a password
        raise UsageError(f"{what}: what follows :// cannot be a host; check the URL") from None
    if parts.scheme not in SCHEMES:
        raise UsageError(
            f"{what}: {parts.scheme}:// is no kind of URL that shardkit reads; it reads"
            f" {', '.join(f'{scheme}://' for scheme in SCHEMES)}"
        )
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UsageError(
            f"{what}: a URL of {parts.scheme}:// with a user, a query or a fragment; credentials"
            " come from the environment, and nothing else belongs behind a folder's name"
        )
    host = parts.netloc
    if parts.scheme == "file":
        if host not in ("", "localhost"):
            raise UsageError(
                f"{what}: {text!r} has {host!r} for a host, and only files of this machine are"
                " read so; a path has three slashes: file:///path"
            )
        host = ""
    elif not host:
        raise UsageError(f"{what}: {text!r} names no bucket or host")
    folders = [unquote(part) for part in parts.path.strip("/").split("/")]
    for folder in folders if parts.path.strip("/") else []:
        if folder in ("", ".", "..") or "/" in folder or "\0" in folder:
            raise UsageError(f"{what}: {text!r} has a part {folder!r}, which names no folder")
    return Url(f"{parts.scheme}://{host}{parts.path.rstrip('/')}")


def require_obstore(url: Url) -> None:
    """Raise UsageError unless that library is installed. Only the cache server may import it."""
    if find_spec("obstore") is None:
        raise UsageError(f"{url} needs the obstore library: pip install 'shardkit[cloud]'")


def refuse_overlap(dest: Path | Url, source: Path | Url) -> None:
    """Raise DestinationError if one of these is the other, or lies in it: what is written would
    take the place of what is read. Of a place in a bucket, other names are not seen."""
    one, other = _where(dest), _where(source)
    if one[: len(other)] == other or other[: len(one)] == one:
        raise DestinationError(
            f"the destination {show_place(dest)} and the source {show_place(source)} overlap;"
            " choose a destination outside the source"
        )


def _where(place: Path | Url) -> list[str]:
    """Return the names on the way there."""
    if isinstance(place, Url):
        scheme, host, path = urlsplit(place.text)[:3]
        if scheme != "file":
            return [scheme, host, *filter(None, unquote(path).split("/"))]
        place = Path(unquote(path))
    return list(place.resolve().parts)


# --- options of those who read ------------------------------------------------------------

CACHE_DIR = "SHARDKIT_CACHE_DIR"
CACHE_BYTES = "SHARDKIT_CACHE_BYTES"
"""Variables of the environment that stand for arguments which are not given."""

SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "OBJECT_STORE_", "HF_")
"""Prefixes of variables of the environment that say how to reach a bucket."""

STANDS_FOR = {
    "endpoint": ("AWS_ENDPOINT_URL", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT"),
    "anonymous": ("AWS_SKIP_SIGNATURE", "GOOGLE_SKIP_SIGNATURE", "AZURE_SKIP_SIGNATURE"),
    "profile": ("AWS_PROFILE",),
    "region": ("AWS_REGION",),
}
"""Of ``storage_options``: the variables that each has the meaning of."""

ENDPOINTS = (
    *STANDS_FOR["endpoint"],
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT",
    "AZURE_ENDPOINT",
    "HF_ENDPOINT",
)
"""Variables that hold the address of a server."""

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""These count before a profile that the environment names, but not before one that is given."""


@dataclass(frozen=True)
class RemoteOptions:
    """As of :class:`shardkit.Dataset`. ``settings``: variables in place of the environment's."""

    cache_dir: Path | None = None
    cache_bytes: int | None = None
    settings: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        cache_dir: str | Path | None,
        cache_bytes: int | str | None,
        storage_options: Mapping[str, Any] | None,
    ) -> RemoteOptions:
        """Return those that a caller gave. Raises UsageError."""
        return cls(
            None if cache_dir is None else as_path(cache_dir, "cache_dir"),
            None if cache_bytes is None else parse_size(cache_bytes),
            as_settings(storage_options or {}),
        )

    @property
    def most_bytes(self) -> int | None:
        """Return the bound on blocks in the cache; None for what is free. Raises UsageError."""
        if self.cache_bytes is not None:
            return self.cache_bytes
        told = os.environ.get(CACHE_BYTES)
        return parse_size(told) if told else None


def default_cache() -> Path:
    """Return the folder of the cache. Raises UsageError for a user without a home."""
    told = os.environ.get(CACHE_DIR)
    if told:
        return as_path(told, CACHE_DIR)
    folder = user_cache()
    if folder is None:
        raise UsageError("there is no home for a cache of what is fetched: give cache_dir")
    return folder / "remote"


def settings_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return those of an environment. They may hold secrets, and are kept nowhere."""
    return {key: value for key, value in environment.items() if value and key.startswith(SETTINGS)}


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change variables of the environment meanwhile; None removes one."""
    before = {name: os.environ.get(name) for name in changes}
    _set_variables(changes)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def check_endpoint(name: str, text: str) -> None:
    """Raise UsageError for what is no address of a server, or holds a password, which messages of
    the network would print."""
    try:
        parts = urlsplit(text)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address or "@" in text or parts.query or parts.fragment:
        raise UsageError(
            f"{name}: an address begins with http:// or https://, then comes the host, and maybe"
            " :port; without a user or a query, as credentials have variables of their own"
        )


def check_keys(settings: Mapping[str, str]) -> None:
    """Raise UsageError for a key or token with the end of a line in it, as a file has it: no
    request could be made with it."""
    for name in (*_KEYS, "HF_TOKEN"):
        if set(settings.get(name, "")) & {"\r", "\n"}:
            raise UsageError(f"{name} has the end of a line in it; leave that out")


def as_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """Return ``storage_options`` as variables of an environment.

    Raises:
        UsageError: there is no such option; says no value, which may be a secret.
    """
    found: dict[str, str] = {}
    if not isinstance(options, Mapping):
        raise UsageError(f"storage_options must be a dict, not a {type(options).__name__}")
    for name, value in options.items():
        if "\0" in str(value):
            raise UsageError(f"storage_options: {name!r} has a NUL in its value")
        if value is None or value is False:
            continue
        if name in STANDS_FOR:
            found |= dict.fromkeys(_KEYS if name == "profile" else (), "")
            text = "true" if value is True else str(value)
            found |= dict.fromkeys(STANDS_FOR[name], text)
        elif str(name).startswith(SETTINGS):
            found[name] = str(value)
        else:
            raise UsageError(
                f"storage_options has no {name!r}: give {', '.join(STANDS_FOR)}, or variables as"
                f" of the environment, which begin with {', '.join(SETTINGS)}"
            )
    return found
