"""One sample at a glance: what each value is, and how it begins."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import DataError, ShardkitError, UsageError
from shardkit.images import sheet
from shardkit.images.decode import header
from shardkit.images.naming import RAW_FIELD
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, IMAGE_FIELDS, image_field
from shardkit.index.rows import NO_INT
from shardkit.reading.dataset import Dataset
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.samples.sample import Value
from shardkit.shards.stored import Gather

TEXT_BYTES = 2000
"""Of a text that are read."""

NUM_TOKENS = 500
"""Of a document that are decoded: about as much text."""

NUM_NUMBERS = 12
"""Of an array, or of a document's tokens, that are listed."""

_TEXTS = frozenset({"txt", "json"})
_PICTURES = IMAGE_FIELDS | {extension[1:] for extension in IMAGE_EXTENSIONS}

Kind = Literal["text", "class", "tokens", "array", "picture", "bytes", "broken"]


@dataclass(frozen=True)
class ShownField:
    """One value.

    Attributes:
        kind: how it was read; ``broken``, where ``what`` says why it was not. what: it, in a few
            words. num_bytes: size of the value itself, or of the numbers in it. text: how it
            begins, undecodable bytes as ``\\xff``. is_cut: whether that is not all of it.
        numbers: how its numbers begin. num_numbers: how many there are.
    """

    name: str
    kind: Kind
    what: str
    num_bytes: int
    text: str | None = None
    is_cut: bool = False
    numbers: list[Any] | None = None
    num_numbers: int | None = None


@dataclass(frozen=True)
class FieldView:
    """A field, and its picture in small, if there is one to draw."""

    field: ShownField
    is_picture: bool = False
    thumbnail: Any = None


class Looker:
    """Looks at samples of one split. ``notes`` say what could not be shown at all."""

    def __init__(self, dataset: Dataset, *, thumbnails: bool) -> None:
        self._dataset = dataset
        self._thumbnails = thumbnails
        self.notes: list[str] = []
        self._tokenizer = _tokenizer(dataset, self.notes)

    def look(self, row: int) -> list[FieldView]:
        """What there is of each field that the sample has."""
        reader = self._dataset.reader
        batch = reader.gather(np.array([row], np.int64))
        looks = []
        for name in self._dataset.fields:
            size = int(reader.places(batch, name)[1][0])
            if size < 0:
                continue
            is_picture = _ending(name) in _PICTURES or name == RAW_FIELD
            try:
                looks.append(self._look(batch, name))
            except DataError as error:  # the others may be whole
                broken = ShownField(name, "broken", str(error), size)
                looks.append(FieldView(broken, is_picture))
        return looks

    def _look(self, batch: Gather, name: str) -> FieldView:
        reader = self._dataset.reader
        (stored,) = reader.stored(batch, name)
        (encoding,) = reader.encodings(batch.shards, name)
        value: Value = stored if stored is not None else b""
        if encoding.dtype:
            return self._array(name, encoding.as_array(value))
        if encoding.kind == "int" or name == "cls":
            return self._class(batch, name, encoding.canonical(value))
        if name == TOKENS or _ending(name) == "npy":
            return self._array(name, parse_npy(value))
        return self._bytes(name, value)

    def _class(self, batch: Gather, name: str, value: Value) -> FieldView:
        number = int(batch.table[0, self._dataset.reader.index.column["cls"]])
        classes = self._dataset.classes or []
        if number == NO_INT:
            return _text(name, value)
        what = f"{number} {classes[number]}" if 0 <= number < len(classes) else f"{number}"
        return FieldView(ShownField(name, "class", what, len(value)))

    def _array(self, name: str, array: Array) -> FieldView:
        if name == RAW_FIELD and array.dtype == np.uint8 and array.shape[2:] == (3,):
            small = sheet.thumbnail_of_pixels(array) if self._thumbnails else None
            what = f"{array.shape[1]} x {array.shape[0]} pixels"
            return FieldView(ShownField(name, "picture", what, array.nbytes), True, small)
        numbers = array.flat[:NUM_NUMBERS].tolist()
        if array.dtype.kind == "c":  # no JSON has complex numbers
            numbers = [str(number) for number in numbers]
        kind: Kind = "tokens" if name == TOKENS and array.dtype.kind == "u" else "array"
        what = f"{array.dtype} {' x '.join(map(str, array.shape))}".strip()
        text, is_cut = None, False
        if kind == "tokens":
            what = f"{array.size:,} of {array.dtype}"
        if kind == "tokens" and self._tokenizer is not None:
            text, is_cut = self._decoded(array[:NUM_TOKENS]), len(array) > NUM_TOKENS
        field = ShownField(name, kind, what, array.nbytes, text, is_cut, numbers, array.size)
        return FieldView(field)

    def _decoded(self, ids: Array) -> str:
        return bytes(self._tokenizer.decode(ids)).decode("utf-8", "backslashreplace")

    def _bytes(self, name: str, value: Value) -> FieldView:
        kind = None if _ending(name) in _TEXTS else image_field(bytes(value[:HEAD_BYTES]))
        if kind is not None or _ending(name) in _PICTURES:
            small = sheet.thumbnail(value) if self._thumbnails else None
            return FieldView(
                ShownField(name, "picture", _size(value, kind), len(value)), True, small
            )
        return _text(name, value)


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _size(value: Value, kind: str | None) -> str:
    """Raises BadImageError for what is no picture, or a damaged one."""
    try:
        head = header(value)
    except UsageError:  # a JPEG needs no Pillow for this, all others do
        return f"{kind}, its size unknown without Pillow"
    return f"{head.field} {head.width} x {head.height}"


def _text(name: str, value: Value) -> FieldView:
    """The value as text, if its name says it is, or if it decodes and holds no NUL."""
    head, is_cut = bytes(value[:TEXT_BYTES]), len(value) > TEXT_BYTES
    if _ending(name) not in _TEXTS and not _is_text(head, is_cut):
        what = f"begins {head[:16].hex(' ')}"
        return FieldView(ShownField(name, "bytes", what, len(value), None, is_cut))
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    text = decoder.decode(head, final=not is_cut)
    return FieldView(ShownField(name, "text", "", len(value), text, is_cut))


def _is_text(head: bytes, is_cut: bool) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head, final=not is_cut)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def _tokenizer(dataset: Dataset, notes: list[str]) -> Any:
    """The one that made the tokens; None, and a note why, where there is none to decode with."""
    if TOKENS not in dataset.fields:
        return None
    from shardkit.tokens.load import open_tokenizer
    from shardkit.tokens.spec import TokenizerSpec

    raw = dataset.info.provenance.tokens
    if raw is None:
        notes.append("its tokens stay numbers: it does not say which tokenizer made them")
        return None
    try:
        spec = TokenizerSpec.from_json(raw)
        if spec.file is not None:  # behind a URL it comes now
            dataset.located.storage.contents(spec.file, spec.num_bytes)
        return open_tokenizer(dataset.located.folder, spec)
    except ShardkitError as error:
        notes.append(f"its tokens stay numbers: {error}")
        return None
