"""What keys and values of LMDB files of others are, told by the first values of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import xxhash

from shardkit.errors import CorpusError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.containers.tfrecord_schema import is_text
from shardkit.samples.sample import Value
from shardkit.system.paths import show_path

LOOK_VALUES = 20
"""Values of a kind of key that say what it holds."""

MAX_KINDS = 64
"""Kinds of keys: where there are more, keys are names, and all are of one kind."""

PICTURE, TEXT, BYTES = "picture", "txt", "bin"

_DIGITS = re.compile(rb"[0-9]+")


Place = tuple[int, int]
"""(start, size) of a value in its file."""


def kind_of_key(key: bytes) -> bytes:
    """``image-000001`` is of the kind ``image-#``."""
    return _DIGITS.sub(b"#", key)


def is_about_file(key: bytes) -> bool:
    """Whether a key is one like ``__len__``, or ``num-samples`` as sets of words in pictures have
    it, whose value says something of the file."""
    return key in _COUNTS or (len(key) > 4 and key.startswith(b"__") and key.endswith(b"__"))


_COUNTS = frozenset({b"num-samples", b"num_samples", b"length"})


def number_of_key(key: bytes) -> bytes:
    """Return the digits in a key."""
    return b"-".join(_DIGITS.findall(key))


def first_values(items: Iterable[tuple[bytes, Place]]) -> tuple[dict[bytes, list[Place]], bool]:
    """Return places of the first values of each kind of key, under ``b""`` where kinds are too
    many; and whether each kind of several has one number in its keys, and the same ones."""
    found: dict[bytes, list[Place]] = {}
    numbers: dict[bytes, xxhash.xxh3_128] = {}
    first: list[Place] = []
    for key, place in items:
        kind = kind_of_key(shown_key(key))
        own = found.setdefault(kind, [])
        numbers.setdefault(kind, xxhash.xxh3_128()).update(number_of_key(key) + b" ")
        for places in (own, first):
            if len(places) < LOOK_VALUES:
                places.append(place)
        if len(found) > MAX_KINDS:
            return {b"": first}, False
    are_same = len({each.digest() for each in numbers.values()}) == 1
    return found, len(found) > 1 and are_same and all(kind.count(b"#") == 1 for kind in found)


def how_of(values: Sequence[bytes], path: Path, name: str, is_folder: bool) -> str:
    """What values are. ``name``: what the library opens, a folder or a file.

    Raises:
        CorpusError: they are pickles; it says how to make files of them.
    """
    if any(map(is_pickled, values)):
        raise _pickled(path, name, is_folder)
    held = [value for value in values if value]
    if held and all(image_field(value[:HEAD_BYTES]) for value in held):
        return PICTURE
    return TEXT if all(map(is_text, values)) else BYTES


def is_pickled(value: Value) -> bool:
    """Whether bytes are framed as pickles of protocol 2 to 5 are."""
    begins = len(value) > 2 and value[0] == 0x80 and 2 <= value[1] <= 5
    return begins and bytes(value[-1:]) == b"."


def _pickled(path: Path, name: str, is_folder: bool) -> CorpusError:
    """What to raise, with lines of Python as its note."""
    error = CorpusError(
        f"{show_path(path)} holds pickles, which can run any code when they are opened, so shardkit"
        " never reads them; if you trust whoever made it, the lines below make files of them in a"
        " folder called plain, parts of tuples and dicts apart"
    )
    error.add_note(_MADE_SAFE.format(name=name, is_folder=is_folder))
    return error


_MADE_SAFE = """import lmdb, os, pathlib, pickle, numpy as np
os.makedirs("plain", exist_ok=True)
def save(key, v):
    if isinstance(v, (dict, tuple)):
        for name, part in v.items() if isinstance(v, dict) else enumerate(v):
            save(key + "." + str(name), part)
    elif isinstance(v, (str, bytes)):
        kind = "txt" if isinstance(v, str) else "jpg" if v[:2] == b"\\xff\\xd8" else "bin"
        data = v.encode() if isinstance(v, str) else v
        pathlib.Path("plain", key + "." + kind).write_bytes(data)
    else:
        np.save("plain/" + key + ".npy", v, allow_pickle=False)
with lmdb.open({name!r}, subdir={is_folder}, readonly=True, lock=False) as env, env.begin() as old:
    for k, v in old.cursor():
        save(k.decode(), pickle.loads(v) if v[:1] == b"\\x80" else v)"""


def shown_key(key: bytes) -> bytes:
    """The sample's key: one without NUL."""
    return b"0x" + key.hex().encode() if b"\0" in key else key
