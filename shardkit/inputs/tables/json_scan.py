"""One field of one huge JSON text, without holding the text: what ``json.loads`` would find.

The text is a mapped file. Regular expressions run over it in place, and of the field only a piece
is unescaped at a time.
"""

from __future__ import annotations

import json
import re
import sys
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Iterator
from dataclasses import dataclass

from shardkit.errors import SampleError
from shardkit.memory.chunks import release_pages

PIECE_BYTES = 4 << 20
"""What is decoded or unescaped at a time; at least 12, the length of an escaped surrogate pair."""

MAX_DEPTH = 900
"""Of arrays and objects in one another; ``json.loads`` gives up at about 1,000."""

SHOWN_CHARS = 300
"""Of keys, for a message that says which there are."""

MAX_KEY_BYTES = 4096
"""A longer key is shown as it is written."""

WHITE = frozenset(" \t\n\r")
"""What JSON calls white space."""

_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?P<float>(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+)"
_VALUE = re.compile(
    rb"[ \t\n\r]*+(?:(?P<str>\")|(?P<dict>\{)|(?P<list>\[)|(?P<bool>true|false)"
    rb"|(?P<NoneType>null)|(?P<constant>NaN|-?Infinity)|(?P<number>" + _NUMBER + rb"))"
)
"""The beginning of a value, or all of it; its groups are named after Python's types."""

_KEY = re.compile(rb"[ \t\n\r]*+\"")
_COLON = re.compile(rb"[ \t\n\r]*+:")
_NEXT = re.compile(rb"[ \t\n\r]*+([,\]}])")
_SPACE = re.compile(rb"[ \t\n\r]*+")
_INSIDE = re.compile(rb"(?:[^\"\\\x00-\x1f]++|\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4}))*+")
"""What may stand in a string. Possessive: else each escape would cost memory."""

_UNITS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=[\x00-\xff]{6})))*+"
)
"""Characters and escapes that are whole; half a surrogate pair only if the other is not behind."""

_COMMA, _CLOSE_LIST, _CLOSE_DICT = b",]}"


@dataclass(frozen=True)
class Place:
    """Where a value lies: ``kind`` is the name of its Python type; of a string, what is between its
    quotes."""

    kind: str
    start: int
    end: int


@dataclass
class Scanned:
    """What a JSON text holds: if it is an object, its keys (the first few, and long ones cut), and
    the value of the one that was asked for."""

    keys: list[str] | None = None
    value: Place | None = None


def scan_json(text: memoryview, name: str | None) -> Scanned:
    """Check a whole JSON text and find the last value of key ``name`` in the object it is.

    Raises:
        SampleError: it is not JSON, as ``json.loads`` judges.
    """
    _check_utf8(text)
    start = len(BOM_UTF8) if bytes(text[:3]) == BOM_UTF8 else 0
    begin = _VALUE.match(text, start)
    if begin is None or begin.lastgroup != "dict":
        found, end = Scanned(), _skip(text, start)[1]
    else:
        found = Scanned([])
        end = _scan_object(text, begin.end(), name, found)
    space = _SPACE.match(text, end)
    if space is None or space.end() != len(text):
        raise _bad("more text after the value", end)
    return found


def unescape(text: memoryview, value: Place) -> Iterator[bytes]:
    """The UTF-8 of a string, a piece at a time.

    Raises:
        UnicodeEncodeError: it holds half a surrogate pair.
    """
    start = value.start
    while start < value.end:
        stop = min(start + PIECE_BYTES, value.end)
        if stop < value.end:
            units = _UNITS.match(text, start, stop)
            stop = units.end() if units is not None else start
            while text[stop] & 0xC0 == 0x80:  # inside a character
                stop -= 1
        yield json.loads(f'"{str(text[start:stop], "utf-8")}"').encode()
        release_pages(text)
        start = stop


def _check_utf8(text: memoryview) -> None:
    decoder = getincrementaldecoder("utf-8")()
    for start in range(0, len(text), PIECE_BYTES):
        stop = start + PIECE_BYTES
        try:
            decoder.decode(text[start:stop], stop >= len(text))
        except UnicodeDecodeError as error:
            raise _bad(f"not UTF-8 ({error.reason})", start) from error
        release_pages(text)


def _scan_object(text: memoryview, at: int, name: str | None, found: Scanned) -> int:
    """The members after ``{``; returns where the object ends."""
    keys: dict[str, None] = {}
    shown = 0
    if (close := _NEXT.match(text, at)) and text[close.end() - 1] == _CLOSE_DICT:
        return close.end()
    while True:
        key, at = _key(text, at)
        value, at = _skip(text, at)
        if shown < SHOWN_CHARS:
            found_key = _decoded(text, key, MAX_KEY_BYTES)
            keys[found_key] = None
            shown += len(found_key) + 1
        if name is not None and _decoded(text, key, 12 * len(name)) == name:
            whole = value.kind != "str"
            found.value = Place(value.kind, value.start, at) if whole else value
        at, byte = _next(text, at)
        if byte == _CLOSE_DICT:
            found.keys = [*keys]
            return at
        if byte != _COMMA:
            raise _bad("',' or '}' expected", at - 1)


def _decoded(text: memoryview, key: Place, at_most: int) -> str:
    """A key, or the begin of one of more bytes than that, which is not unescaped."""
    raw = str(text[key.start : min(key.end, key.start + at_most + 1)], "utf-8", "replace")
    return str(json.loads(f'"{raw}"')) if key.end - key.start <= at_most else raw


def _skip(text: memoryview, at: int) -> tuple[Place, int]:
    """The value at ``at``, and where it ends; what it holds is checked, too."""
    closing: list[int] = []
    whole: Place | None = None
    while True:
        kind, start, at = _begin(text, at)
        whole = whole or Place(kind, start, at - (kind == "str"))
        if kind in ("dict", "list"):
            closing.append(_CLOSE_DICT if kind == "dict" else _CLOSE_LIST)
            if len(closing) > MAX_DEPTH:
                raise _bad(f"nested over {MAX_DEPTH} deep", at)
            end = _NEXT.match(text, at)
            if end is None or text[end.end() - 1] != closing[-1]:
                at = _key(text, at)[1] if kind == "dict" else at
                continue
        while closing:
            at, byte = _next(text, at)
            if byte == closing[-1]:
                closing.pop()
            elif byte == _COMMA:
                at = _key(text, at)[1] if closing[-1] == _CLOSE_DICT else at
                break
            else:
                raise _bad(f"',' or '{chr(closing[-1])}' expected", at - 1)
        else:
            return whole, at


def _begin(text: memoryview, at: int) -> tuple[str, int, int]:
    """(kind, start, end) of a value; of an array or object, its first byte alone."""
    found = _VALUE.match(text, at)
    if found is None:
        raise _bad("a value expected", at)
    kind = str(found.lastgroup)
    start, end = found.start(kind), found.end()
    if kind == "str":
        return kind, end, _string_end(text, end)
    if kind == "number":
        kind = "float" if found.end("float") > found.start("float") else "int"
        if kind == "int":
            _check_digits(end - start - (text[start] == ord("-")), at)
    return "float" if kind == "constant" else kind, start, end


def _check_digits(count: int, at: int) -> None:
    most = sys.get_int_max_str_digits()
    if most and count > most:
        raise _bad(f"a number of {count} digits", at)


def _key(text: memoryview, at: int) -> tuple[Place, int]:
    """A key and where its value begins."""
    begin = _KEY.match(text, at)
    if begin is None:
        raise _bad("a key in double quotes expected", at)
    end = _string_end(text, begin.end())
    colon = _COLON.match(text, end)
    if colon is None:
        raise _bad("':' expected", end)
    return Place("str", begin.end(), end - 1), colon.end()


def _string_end(text: memoryview, at: int) -> int:
    """The place after the closing quote of the string whose opening quote is before ``at``."""
    while inside := _INSIDE.match(text, at, at + PIECE_BYTES):
        end = inside.end()
        if bytes(text[end : end + 1]) == b'"':
            return end + 1
        if end == at:  # else it stopped at the end of the piece, or before an escape there
            break
        release_pages(text)
        at = end
    raise _bad("a string without an end, or a bad character in it,", at)


def _next(text: memoryview, at: int) -> tuple[int, int]:
    """What follows a value: where that ends, and which byte it is."""
    found = _NEXT.match(text, at)
    if found is None:
        raise _bad("no ',' and no end of what it is in", at)
    return found.end(), text[found.end() - 1]


def _bad(what: str, at: int) -> SampleError:
    return SampleError(f"is not JSON: {what} at byte {at}")
