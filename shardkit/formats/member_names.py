"""How a sample's key is spelled in the names of tar members, and back.

A member is named ``{spelled key}.{field}``. Tools cut that name at the first dot behind the last
slash, unpack it as a path, and pass over some names; so whatever would mislead them is
percent-encoded (``%2E``). Keys of plain names are spelled as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNSAFE = re.compile(
    r"[%\x01-\x1f\x7f\udc80-\udcff./_]"  # one set first: the search then skips from one to the next
    r"(?:(?<=[^./_])"  # the escape itself, control characters, bytes that are not UTF-8
    r"|(?<=\.)(?=[^/\0]*+/*+(?:\0|\Z))"  # dots of the last component: a reader cuts at the first
    r"|(?<=\.)(?<![^/\0]\.)(?=\.?/)"  # the first dot of a folder "." or ".."
    r"|(?<=/)(?<![^/\0]/)|(?<=/)(?=\0|\Z)"  # slashes that begin, end, or follow another
    r"|(?<=_)(?<![^\0]_)(?=_))"  # the webdataset library skips members "__*__"
)
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")
_EMPTY = b"%"
"""Stands for the empty key: no other key gives it."""


def member_key(key: bytes) -> bytes:
    """A sample's key as it stands in member names: percent-encoded where it must be."""
    return member_keys([key])[0]


def member_keys(keys: Sequence[bytes]) -> list[bytes]:
    """The same for many keys at once (a key holds no NUL, so NUL can join them)."""
    text = b"\0".join(keys).decode("utf-8", "surrogateescape")
    names = _UNSAFE.sub(_escaped, text).encode().split(b"\0") if keys else []
    return [name or _EMPTY for name in names] if b"" in names else names


def _escaped(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape"))


def key_of_member(name: bytes) -> bytes:
    """The inverse of :func:`member_key`."""
    if name == _EMPTY:
        return b""
    return _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), name)
