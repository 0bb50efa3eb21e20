"""An annotation file as COCO has it: read once, for where each of its records lies.

The file is one JSON object of some hundred megabytes: ``images`` and ``annotations`` are arrays of
records, which are kept as places in the file alone; everything else is small, and parsed. The text
is decoded as Latin-1, so that a place in it is one in the file; a record's own text is UTF-8.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from dataclasses import dataclass, field
from json.decoder import JSONDecodeError, JSONDecoder
from os.path import isfile
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Integers
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.annotations.metadata_files import is_known, shallow_folders
from shardkit.inputs.files import input_stamp
from shardkit.inputs.folders import peek
from shardkit.inputs.names import join
from shardkit.system.full_reads import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MAX_FILES = 32
"""JSON files of one folder that are looked into; more are one a picture."""

HEAD_BYTES = 1 << 20
"""Of a file, looked at to tell whether it is one: ``images`` mostly stand first."""

_FIRST = re.compile(rb'\s*\{\s*"(info|licenses|images|annotations|categories|type|videos)"')
_ARRAY = re.compile(rb'"(images|annotations)"\s*:\s*\[')

_SPACE = re.compile(r"[ \t\n\r]*")

_BOM = b"\xef\xbb\xbf"

Span = tuple[int, int]
"""Where a record begins and ends, in bytes."""


@dataclass
class CocoFile:
    """What an annotation file holds, and where.

    Attributes:
        path: on this machine. stamp: of the file.
        names: the ``file_name`` of each image. images: where each one's record lies.
        annotations: (A, 3) int64: image, begin and end of each annotation, by image, otherwise in
            the file's order; None where the file has none, as that of a test split.
        categories: of each annotation the index of its category, -1 for none. (A,) int64.
        category_names: names of categories by id, in order of id.
        rest: the other entries of the file, parsed.
        num_strays: annotations of images that the file does not list.
    """

    path: Path
    stamp: int
    names: list[str] = field(default_factory=list)
    images: list[Span] = field(default_factory=list)
    annotations: Integers | None = None
    categories: Integers | None = None
    category_names: dict[int | str, str] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    num_strays: int = 0

    def record(self, fd: int, image: int) -> str:
        """The JSON of one image: its own record and those of its annotations, as they stand in the
        open file, and names of the categories that occur."""
        parts = [f'"image": {_text(fd, self.images[image])}']
        if self.annotations is not None and self.categories is not None:
            first, last = np.searchsorted(self.annotations[:, 0], [image, image + 1]).tolist()
            spans = self.annotations[first:last, 1:].tolist()
            found = ", ".join(_text(fd, (start, end)) for start, end in spans)
            parts.append(f'"annotations": [{found}]')
            held = sorted({*self.categories[first:last].tolist()} - {-1})
            if self.category_names:
                names = [*self.category_names.items()]
                parts.append(f'"categories": {json.dumps(dict(names[i] for i in held))}')
        return f"{{{', '.join(parts)}}}"


def _text(fd: int, span: Span) -> str:
    return pread(fd, span[1] - span[0], span[0]).decode()


def find_coco(source: Path) -> list[str]:
    """The annotation files of a source, relative to it: those that begin as COCO's do."""
    found = []
    for base in shallow_folders(source):
        if base and not is_known(base.rpartition("/")[2]):
            continue
        names = [n for n in peek(source, base).names if n.lower().endswith(".json")]
        if len(names) <= MAX_FILES:
            found += [join(base, n) for n in names if looks_like_coco(source / base / n)]
    return found


def looks_like_coco(path: Path) -> bool:
    """Whether a file begins as one of COCO's; its beginning is all that is read."""
    if not isfile(path):
        return False
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES).removeprefix(_BOM)
    except OSError:
        return False
    return _FIRST.match(head) is not None and _ARRAY.search(head) is not None


def read_coco(path: Path) -> CocoFile:
    """Read an annotation file.

    Raises:
        CorpusError: it is none. StorageError: it cannot be read.
    """
    with os_errors(f"reading {show_path(path)}"):
        try:
            stamp = input_stamp(path)
            return _Reader(CocoFile(path, stamp), path.read_bytes()).read()
        except (FormatError, ValueError, RecursionError) as error:
            if isinstance(error, JSONDecodeError):
                error = ValueError(f"{error.msg} at byte {error.pos}")
            raise CorpusError(
                f"{show_path(path)} is no annotation file of COCO's: {error}; mend it or move it"
                " away, or choose another --corpus"
            ) from error


class _Reader:
    """Goes over the text of one file once. Methods raise ValueError for what is no such file."""

    def __init__(self, made: CocoFile, data: bytes) -> None:
        if not data.isascii():
            data.decode()  # raises for what is no UTF-8
        self._made = made
        self._data = data
        self._text = data.decode("latin-1")
        self._decode = JSONDecoder().raw_decode
        self._image_ids: list[int | str] = []
        self._owners: list[int | str] = []
        self._kinds: list[Any] = []
        self._spans = array("q")

    def read(self) -> CocoFile:
        at = self._skip(len(_BOM) if self._data.startswith(_BOM) else 0)
        if self._text[at : at + 1] != "{":
            raise ValueError("it holds no object")
        at = self._skip(at + 1)
        seen: set[str] = set()
        while self._text[at : at + 1] != "}":
            name, at = self._key(at)
            if name in seen:
                raise ValueError(f"it has two entries {name!r}")
            seen.add(name)
            at = self._after(self._entry(name, at), "}")
        if self._skip(at + 1) != len(self._text):
            raise ValueError(f"there is more after its end, at byte {at + 1}")
        if "images" not in seen:
            raise ValueError("it has no entry 'images'")
        self._made.category_names = _category_names(self._made.rest.get("categories", []))
        if "annotations" in seen:
            self._sort()
        _refuse_repeated(self._image_ids)
        return self._made

    def _key(self, at: int) -> tuple[str, int]:
        """A key, and where its value begins."""
        key, end = self._decode(self._text, at)
        colon = self._skip(end)
        if not isinstance(key, str) or self._text[colon : colon + 1] != ":":
            raise ValueError(f"a key and ':' expected at byte {at}")
        return json.loads(self._data[at:end]), self._skip(colon + 1)

    def _entry(self, name: str, at: int) -> int:
        """Take in one entry; returns where it ends."""
        take = {"images": self._image, "annotations": self._annotation}.get(name)
        if take is None:
            end = int(self._decode(self._text, at)[1])
            self._made.rest[name] = json.loads(self._data[at:end])
            return end
        if self._text[at : at + 1] != "[":
            raise ValueError(f"its {name!r} is no array")
        at = self._skip(at + 1)
        while self._text[at : at + 1] != "]":
            record, end = self._decode(self._text, at)
            if not isinstance(record, dict):
                raise ValueError(f"one of its {name} is no object, at byte {at}")
            take(record, at, end)
            at = self._after(end, "]")
        return at + 1

    def _image(self, record: dict[str, Any], start: int, end: int) -> None:
        if not self._data[start:end].isascii():
            record = json.loads(self._data[start:end])
        name = record.get("file_name")
        if not isinstance(name, str):
            raise ValueError(f"an image has no file_name, at byte {start}")
        self._made.names.append(name)
        self._made.images.append((start, end))
        self._image_ids.append(_id(record.get("id"), f"an image has no id, at byte {start}"))

    def _annotation(self, record: dict[str, Any], start: int, end: int) -> None:
        owner = _id(record.get("image_id"), f"an annotation has no image_id, at byte {start}")
        if isinstance(owner, str) and not owner.isascii():
            owner = json.loads(self._data[start:end])["image_id"]
        self._owners.append(owner)
        self._kinds.append(record.get("category_id"))
        self._spans.extend((start, end))

    def _sort(self) -> None:
        """Annotations by image."""
        place = {own: i for i, own in enumerate(self._image_ids)}
        owners = np.array([place.get(owner, -1) for owner in self._owners], np.int64)
        index = {own: i for i, own in enumerate(self._made.category_names)}
        kinds = [index.get(k, -1) if isinstance(k, (int, str)) else -1 for k in self._kinds]
        spans = np.array(self._spans, np.int64).reshape(-1, 2)
        order = np.argsort(owners, kind="stable")
        order = order[owners[order] >= 0]
        self._made.num_strays = len(owners) - len(order)
        self._made.annotations = np.column_stack([owners, spans])[order]
        self._made.categories = np.array(kinds, np.int64)[order]

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return at if found is None else found.end()

    def _after(self, at: int, close: str) -> int:
        """Where the next item begins, or the closing bracket stands."""
        at = self._skip(at)
        found = self._text[at : at + 1]
        if found == ",":
            return self._skip(at + 1)
        if found != close:
            raise ValueError(f"',' or {close!r} expected at byte {at}")
        return at


def _id(held: Any, otherwise: str) -> int | str:
    if isinstance(held, float) and held.is_integer():  # as pandas writes them
        return int(held)
    if isinstance(held, bool) or not isinstance(held, (int, str)):
        raise ValueError(otherwise)
    return held


def _category_names(held: Any) -> dict[int | str, str]:
    """Names by id, in order of id."""
    if not isinstance(held, list) or not all(isinstance(each, dict) for each in held):
        raise ValueError("its 'categories' are no array of objects")
    ids = [_id(each.get("id"), "a category has no id") for each in held]
    _refuse_repeated(ids)
    names = {own: str(each.get("name", own)) for own, each in zip(ids, held, strict=True)}
    return dict(sorted(names.items(), key=lambda item: (isinstance(item[0], str), item[0])))


def _refuse_repeated(ids: list[int | str]) -> None:
    if len({*ids}) < len(ids):
        twice = next(own for own, count in Counter(ids).items() if count > 1)
        raise ValueError(f"two of its records have id {twice!r}")
