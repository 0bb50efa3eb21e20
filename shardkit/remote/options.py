"""What a caller says of how a place behind a URL is reached, and where its blocks are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from shardkit.errors import UsageError
from shardkit.system.byte_sizes import parse_size
from shardkit.system.paths import as_path, user_cache

CACHE_DIR = "SHARDKIT_CACHE_DIR"
CACHE_BYTES = "SHARDKIT_CACHE_BYTES"
"""Variables of the environment that stand for arguments which are not given."""

SETTINGS = ("AWS_", "GOOGLE_", "AZURE_", "OBJECT_STORE_", "HF_")
"""What variables of the environment begin with that say how to reach a bucket."""

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
