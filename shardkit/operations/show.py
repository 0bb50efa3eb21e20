"""``show``: some samples of a dataset, as a person wants to look at them."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardkit.arguments import integer
from shardkit.arrays import Array
from shardkit.commit.durable_files import write_output
from shardkit.errors import DataError, ShardkitError, UsageError
from shardkit.images import sheet
from shardkit.images.decode import header
from shardkit.images.naming import RAW_FIELD
from shardkit.images.sheet import Tile, contact_sheet
from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, IMAGE_FIELDS, image_field
from shardkit.index.rows import NO_INT
from shardkit.order.epochs import Order
from shardkit.reading.dataset import Dataset
from shardkit.samples.encoding import TOKENS, parse_npy
from shardkit.samples.sample import Value
from shardkit.shards.stored import Gather
from shardkit.system.paths import as_path, show_path
from shardkit.tokens.load import open_tokenizer
from shardkit.tokens.tokenizer import Tokenizer

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


@dataclass(frozen=True)
class Looker:
    """Looks at samples of one split."""

    dataset: Dataset
    tokenizer: Tokenizer | None
    has_thumbnails: bool

    def look(self, row: int) -> list[FieldView]:
        """Return what there is of each field that the sample has."""
        reader = self.dataset.reader
        batch = reader.gather(np.array([row], np.int64))
        looks = []
        for name in self.dataset.fields:
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
        reader = self.dataset.reader
        (stored,) = reader.stored(batch, name)
        (encoding,) = reader.encodings(batch.shards, name)
        value: Value = stored if stored is not None else b""
        if encoding.dtype:
            return self._array(name, encoding.as_array(value))
        if encoding.kind == "int" or name == "cls":
            value = encoding.canonical(value)
            number = int(batch.table[0, reader.index.column["cls"]])
            if number == NO_INT:
                return _text(name, value)
            classes = self.dataset.classes or []
            what = f"{number} {classes[number]}" if 0 <= number < len(classes) else f"{number}"
            return FieldView(ShownField(name, "class", what, len(value)))
        if name == TOKENS or _ending(name) == "npy":
            return self._array(name, parse_npy(value))
        kind = None if _ending(name) in _TEXTS else image_field(bytes(value[:HEAD_BYTES]))
        if kind is None and _ending(name) not in _PICTURES:
            return _text(name, value)
        small = sheet.thumbnail(value) if self.has_thumbnails else None
        try:
            head = header(value)
            what = f"{head.field} {head.width} x {head.height}"
        except UsageError:  # a JPEG needs no Pillow for this, all others do
            what = f"{kind}, its size unknown without Pillow"
        return FieldView(ShownField(name, "picture", what, len(value)), True, small)

    def _array(self, name: str, array: Array) -> FieldView:
        if name == RAW_FIELD and array.dtype == np.uint8 and array.shape[2:] == (3,):
            small = sheet.thumbnail_of_pixels(array) if self.has_thumbnails else None
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
            if self.tokenizer is not None:
                decoded = bytes(self.tokenizer.decode(array[:NUM_TOKENS]))
                text, is_cut = decoded.decode("utf-8", "backslashreplace"), len(array) > NUM_TOKENS
        field = ShownField(name, kind, what, array.nbytes, text, is_cut, numbers, array.size)
        return FieldView(field)


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _text(name: str, value: Value) -> FieldView:
    """Return the value as text, if its name says it is, or if it decodes and holds no NUL."""
    head, is_cut = bytes(value[:TEXT_BYTES]), len(value) > TEXT_BYTES
    decoder = codecs.getincrementaldecoder("utf-8")
    try:
        is_text = "\0" not in decoder().decode(head, final=not is_cut)
    except UnicodeDecodeError:
        is_text = False
    if not is_text and _ending(name) not in _TEXTS:
        what = f"begins {head[:16].hex(' ')}"
        return FieldView(ShownField(name, "bytes", what, len(value), None, is_cut))
    text = decoder("backslashreplace").decode(head, final=not is_cut)
    return FieldView(ShownField(name, "text", "", len(value), text, is_cut))


def _tokenizer(dataset: Dataset, notes: list[str]) -> Tokenizer | None:
    """Return the one that made the tokens; None, and a note why, where none can decode them."""
    if TOKENS not in dataset.fields:
        return None
    try:
        spec = dataset.info.tokenizer
        if spec is None:
            notes.append("its tokens stay numbers: it does not say which tokenizer made them")
            return None
        if spec.file is not None:  # behind a URL it comes now
            dataset.located.storage.contents(spec.file, spec.num_bytes)
        return open_tokenizer(dataset.located.folder, spec)
    except ShardkitError as error:
        notes.append(f"its tokens stay numbers: {error}")
        return None


NUM_SHOWN = 3
NUM_DRAWN = 24
"""Samples, if nobody says how many: what fits on a screen, and on a sheet."""


@dataclass(frozen=True)
class ShownSample:
    """One sample, by its row in the split."""

    row: int
    key: str
    fields: list[ShownField]


@dataclass(frozen=True)
class Shown:
    """What ``shardkit show`` prints.

    Attributes:
        num_samples: of the split. sheet: the picture that was written. notes: what could not be
            shown, and why.
    """

    path: str
    split: str
    num_samples: int
    samples: list[ShownSample]
    sheet: str | None
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Return True if all that was looked at is whole; ``verify`` looks at every byte."""
        return all(field.kind != "broken" for each in self.samples for field in each.fields)


def show(
    dataset: str | Path,
    *,
    split: str | None = None,
    rows: Sequence[int] | None = None,
    num: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Shown:
    """Look at some samples: text and tokens as text, pictures by kind and size.

    Only the beginnings of values are read, so that samples of any size are shown at once.

    Args:
        dataset: its folder, or tars made by others. split: may be left out where there is one, or
            one called ``train``. rows: which samples. num: or how many, drawn by ``seed`` and
            listed by row; 3, or 24 with ``out``. out: draw their pictures, too, on one sheet: a
            .png file, replaced if it is there.

    Raises:
        UsageError: no such rows, or nothing to draw. DataError: the dataset's index is damaged; a
            sample that is damaged is shown as ``broken``.
    """
    if rows is not None and num is not None:
        raise UsageError("give either rows or num: those samples, or so many")
    target = None if out is None else as_path(out, "out")
    if target is not None and target.suffix.lower() != ".png":  # no slip overwrites a shard
        raise UsageError(f"a sheet is a .png file, got {show_path(target)}")
    source = Dataset(dataset, split)
    if rows is None:  # of all over the split: many a corpus lies in the order of its classes
        count = (NUM_DRAWN if target else NUM_SHOWN) if num is None else integer("num", num, 1)
        positions = np.arange(min(count, len(source)), dtype=np.int64)
        chosen = sorted(Order(len(source), "full", seed).rows(positions).tolist())
    else:
        chosen = [integer("a row", row, None) for row in rows]
    for row in chosen:
        if not 0 <= row < len(source):
            raise UsageError(f"row {row} is outside 0..{len(source) - 1} of {source.split}")
    notes: list[str] = []
    looker = Looker(source, _tokenizer(source, notes), has_thumbnails=target is not None)
    samples, tiles = [], list[Tile]()
    for row, key in zip(chosen, source.keys(chosen), strict=True):
        looks = looker.look(row)
        sample = ShownSample(row, key, [look.field for look in looks])
        samples.append(sample)
        tiles += _tiles(sample, looks) if target else []
    if target is not None:
        if not tiles:
            raise UsageError("these samples have no pictures to draw: leave out the sheet")
        write_output(target, contact_sheet(tiles))
    sheet = None if target is None else str(target)
    return Shown(str(dataset), source.split, len(source), samples, sheet, notes)


def _tiles(sample: ShownSample, looks: list[FieldView]) -> list[Tile]:
    """Return one a picture, those that do not decode among them."""
    pictures = [look for look in looks if look.is_picture]
    note = [f"row {sample.row}"]
    note += [f"class {field.what}" for field in sample.fields if field.kind == "class"]
    return [
        Tile(look.thumbnail, sample.key, ", ".join(note + [look.field.name][len(pictures) == 1 :]))
        for look in pictures
    ]
