"""URLs of folders in buckets and on web servers, told from paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from shardkit.errors import DestinationError, UsageError
from shardkit.system.paths import SCHEMES, as_path, is_url, show_path


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
