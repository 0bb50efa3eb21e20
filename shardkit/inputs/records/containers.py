"""Third-party containers of records, of which each is a sample: TFRecord and LMDB files.

**TFRecord files** of ``tf.train.Example``. The first records decide which field each feature
becomes, so that a field's type never depends on the sample: a later value of another type is a bad
input. Numbers are arrays of one axis, however many there are; the only feature of single integers
that is named as a label is ``cls``. Byte strings are images if all of the first ones are, else text
if all are UTF-8 without control characters, else ``bin``.

**LMDB files**: each key and its value is a sample, and the key stays. They are read by their pages,
not by the library, which a damaged file can crash.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.formats.lmdb_pages import MAGIC, read_entries
from shardkit.inputs.corpus import Claim, Look, Run
from shardkit.inputs.files import extension, join
from shardkit.inputs.guards import notes_on_labels
from shardkit.inputs.lines import max_unpacked, plain_name
from shardkit.inputs.sample_files import (
    BYTES,
    LOCK,
    PICTURE,
    REJECT,
    TEXT,
    Cell,
    RecordFiles,
    SampleFile,
    claim_files,
    field_of,
    has_label_name,
    is_text,
    refuse_equal_fields,
    require_picture,
    what_holds,
)
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import Value, pack_paths
from shardkit.samples.tf_records import (
    HEAD,
    Feature,
    begins_as_records,
    data_of,
    first_records,
    is_gzip,
    parse_example,
    record_places,
)
from shardkit.storage.local_files import Folder
from shardkit.system.file_io import pread
from shardkit.system.paths import first_few, show_path

LOOK_RECORDS = 100
"""Records that the schema is made of."""

LOOK_BYTES = 32 << 20
"""About as many bytes of them are read."""

_ENDING = re.compile(r".\.(tfrecords?|tfrec)(-\d+-of-\d+)?(\.gz)?$", re.IGNORECASE)
_SHARD = re.compile(r"[^.]+-\d{5}-of-\d{5}(\.gz)?")

_ENDINGS = {"int64": "npy", "float": "npy"}
"""Endings of fields of numbers. Strings are ``picture``, ``txt``, ``bin``, or several ``json``."""


class TfRecordCorpus(RecordFiles):
    """Keys carry the file's name, without ``.gz``, and the record's number; paths that and the
    field."""

    kind = "tfrecord"
    noun = "TFRecord files"
    unit = "record"
    options = frozenset({"fields", "tokenized"})
    kept = {"schema": "_schema", "fields": "_fields"}  # noqa: RUF012 (nobody changes it)

    def __init__(
        self, source: Path, fields: Sequence[str] | None = None, tokenized: bool = False
    ) -> None:
        """``fields``: features to pack, None for all. ``tokenized``: if none is chosen, text."""
        super().__init__(source)
        self._fields = None if fields is None else [*fields]
        self._files = self.find()
        seen = self.first_good(_first_examples)
        examples, where = (seen[0], show_path(seen[1])) if seen else ([], "")
        # Feature -> [field, how]; the field of an image lacks its ending.
        self._schema, notes = make_schema(examples, where, self._fields)
        texts = [name for name, (field, _) in self._schema.items() if field == "txt"]
        if tokenized and fields is None and texts:
            self._fields = texts
            self._schema, notes = make_schema(examples, where, texts)
        self.notes = [*notes, *self.notes]
        self.has_text = bool(texts)
        self.has_pictures = ["", "picture"] in self._schema.values()

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        # ImageNet's are called as other tools' shards are: the first bytes decide.
        names = (join(f.base, name) for f in look.folders for name in f.names)
        odd = next((n for n in names if _SHARD.fullmatch(n.rpartition("/")[2])), None)
        is_own = odd is not None and begins_as_records(look.head(odd))
        return claim_files(
            look, cls, cls.is_wanted if is_own else _ENDING.search, begins_as_records
        )

    @classmethod
    def is_wanted(cls, name: str) -> bool:
        """Return True for ``x.tfrecord``, ``x.tfrecord-00000-of-00010`` and the like, or as
        ImageNet's are called, ``train-00000-of-01024``."""
        return _ENDING.search(name) is not None or _SHARD.fullmatch(name) is not None

    def entries(self, file: SampleFile, plain: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        prefix = os.fsencode(plain_name(file.prefix))
        with plain.open("rb") as records:
            places = record_places(records, os.fstat(records.fileno()).st_size)
            for number, place in enumerate(places):
                yield b"%s/%012d" % (prefix, number), place

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        made: dict[str, Value] = {}
        data = data_of(memoryview(value)[HEAD.size :])
        for feature, held in parse_example(data).items():
            if held is None or not len(held):
                continue
            if self._fields is not None and feature not in self._schema:
                continue
            kind = _kind(held)
            try:
                # The first records may lack it: numbers are arrays then, and strings are bytes.
                known = self._schema.get(feature)
                field, how = known or (field_of(feature, _ENDINGS.get(kind, kind)), kind)
                ending, stored = _store(how, kind, held)
            except (SampleError, CorpusError) as error:
                raise SampleError(f"feature {feature!r} {error}") from error
            if field + ending in made:
                raise SampleError(f"two features would be field {field + ending}")
            made[field + ending] = stored
        if not made:
            raise SampleError("has no feature that holds anything")
        return [(field, held, f".{field}".encode()) for field, held in made.items()]

    def is_packed(self, path: Path) -> bool:
        with path.open("rb") as file:
            return is_gzip(file.read(HEAD.size))


# --- features -----------------------------------------------------------------------------


def _first_examples(path: Path) -> list[dict[str, Feature]] | None:
    """Return the good ones among a file's first records; None if there are none."""
    found = []
    with suppress(FormatError):
        for record in first_records(path, LOOK_RECORDS, LOOK_BYTES, max_unpacked):
            with suppress(FormatError):
                found.append(parse_example(record))
    return found or None


def make_schema(
    examples: Sequence[dict[str, Feature]], where: str, fields: Sequence[str] | None = None
) -> tuple[dict[str, list[str]], list[str]]:
    """Return feature -> [field, how] for the first records, and notes on it. ``fields``: features
    to keep.

    Raises:
        CorpusError: a feature has several types, or holds what no field can; or two would be one
        field.
    """
    seen: dict[str, list[Any]] = {name: [] for each in examples for name in sorted(each)}
    for name, own in seen.items():
        values = [each.get(name) for each in examples]
        own += [value for value in values if value is not None and len(value)]
    if unknown := [name for name in fields or () if seen and name not in seen]:
        raise CorpusError(f"{where} has no feature {unknown[0]!r}, only {sorted(seen)}"[:400])
    kept = {name: own for name, own in sorted(seen.items()) if fields is None or name in fields}
    hows = {name: _how(f"{where}: feature {name!r}", own) for name, own in kept.items() if own}
    named = [name for name in hows if has_label_name(name)]
    single = [n for n in named if hows[n] == "int64" and all(len(v) == 1 for v in kept[n])]
    notes = []
    if len(single) == 1:
        hows[single[0]] = "cls"
        numbers = [int(value[0]) for value in kept[single[0]]]
        notes.append(
            f"cls is {single[0]!r} as it is stored: {min(numbers)} to {max(numbers)} in the first"
            " records"
        )
    is_only = [*hows.values()].count("picture") == 1
    made = {n: field_of(n, _ENDINGS.get(how, how), is_only) for n, how in hows.items()}
    refuse_equal_fields(made, where)
    notes += notes_on_labels((), (name for name in named if hows[name] != "cls"))
    if left_out := sorted(seen.keys() - kept):
        notes.append(f"left out: {', '.join(map(repr, left_out))}: not among --fields")
    return {name: [made[name], how] for name, how in hows.items()}, notes


def _kind(feature: Any) -> str:
    """Return ``bin``, ``float`` or ``int64``."""
    if isinstance(feature, list):
        return BYTES
    return "float" if feature.dtype.kind == "f" else "int64"


def _how(where: str, values: Sequence[Any]) -> str:
    kinds = sorted({_kind(value) for value in values})
    if len(kinds) > 1:
        raise CorpusError(
            f"{where} is {' and '.join(kinds)} in its first records; write it as one of them"
        )
    if kinds != [BYTES]:
        return kinds[0]
    how = what_holds([bytes(each) for value in values for each in value])
    if all(len(value) == 1 for value in values):
        return how
    if how != TEXT:
        raise CorpusError(
            f"{where} holds several byte strings that are not text, which no field can hold; write"
            " each as a feature of its own"
        )
    return "json"


def _store(how: str, kind: str, feature: Any) -> tuple[str, Value]:
    """Return what the name of a field lacks, and its value. Raises SampleError for a value of
    another type; the message follows the feature's name."""
    if kind == how != BYTES:
        return "", npy_header(feature.dtype.str, feature.shape) + feature.tobytes()
    if how == "cls" and kind == "int64" and len(feature) == 1:
        return "", b"%d" % int(feature[0])
    if how in ("int64", "float", "cls") or kind != BYTES or (len(feature) != 1 and how != "json"):
        raise SampleError(f"is {len(feature)} x {kind}, and {how} in the first records")
    if how == PICTURE:
        return require_picture(feature[0]), feature[0]
    if how == BYTES:
        return "", feature[0]
    try:
        texts = [str(value, "utf-8") for value in feature]
    except UnicodeDecodeError as error:
        raise SampleError(f"is not UTF-8 ({error}), and text in the first records") from error
    return "", json.dumps(texts, ensure_ascii=False).encode() if how == "json" else feature[0]


# --- LMDB ------------------------------------------------------------------------------------

_DATA = "data.mdb"
"""The file in a folder that the library made."""

LOOK_VALUES = 10
"""Values looked at, of the first keys and of the last."""

_PICKLED = re.compile(rb"\x80[\2-\5].*\.", re.DOTALL)
"""The frame of pickles of protocol 2 to 5."""

_ABOUT = re.compile(rb"__.+__|num-samples|num_samples|length")
"""Keys whose value says something of the file."""


class LmdbCorpus(RecordFiles):
    """A key with a NUL in it is written in hexadecimal, after ``0x``. The first and last values say
    what all are: images, named by their content, else ``txt``, else ``bin``."""

    kind = "lmdb"
    noun = "LMDB files"
    kept = {"values": "_how", "is_one": "_is_one"}  # noqa: RUF012 (nobody changes it)
    has_pictures = True
    has_text = True

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        self._files = self.find()
        self._passed.pop(".mdb", None)  # locks, which hold nothing
        self._is_one = len(self._files) == 1
        seen = self.first_good(self._look)
        self._how = seen[0] if seen else BYTES

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        # LMDB's magic stands behind a page's header.
        magic = MAGIC.to_bytes(4, "little")
        return claim_files(look, cls, cls.is_wanted, lambda head: head[16:20] == magic)

    @classmethod
    def is_wanted(cls, name: str) -> bool:
        return extension(name) in (".lmdb", ".mdb") and name != LOCK

    def _look(self, path: Path) -> str:
        """Return what the values of a file are."""
        about: list[bytes] = []
        first: list[tuple[bytes, tuple[int, int]]] = []
        last: deque[tuple[bytes, tuple[int, int]]] = deque(maxlen=LOOK_VALUES)
        for key, place in _keys_of(path):
            if _ABOUT.fullmatch(key):
                about.append(key)
            else:
                (first if len(first) < LOOK_VALUES else last).append((key, place))
        ends = [*first, *last]
        with path.open("rb", buffering=0) as file:
            values = [pread(file.fileno(), size, start) for _, (start, size) in ends]
        found = {what_holds([value]) for value in values if value}
        kinds = sorted({re.sub(rb"[0-9]+", b"#", key) for key, _ in ends})
        recipe = "docs/recipes/records.md, LMDB of"
        if any(_PICKLED.fullmatch(value) for value in values):
            raise CorpusError(
                f"{show_path(path)} holds pickles, which can run any code, so shardkit never reads"
                f" them; if you trust whoever made it: {recipe} pickles"
            )
        if PICTURE in found and len(found) > 1:
            raise CorpusError(
                f"{show_path(path)} holds images and other values ({first_few(kinds)}), which may"
                f" be parts of samples: {recipe} several values a sample"
            )
        if 1 < len(kinds) < len(ends):
            self.notes.append(f"keys are of several kinds, {first_few(kinds)}: each is a sample")
        if about:
            names = first_few(sorted(about))
            self.notes.append(f"passed over: keys that say something of the whole file: {names}")
        return what_holds(values)

    def entries(self, file: SampleFile, plain: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
        for key, place in _keys_of(plain):
            if not _ABOUT.fullmatch(key):
                yield b"0x" + key.hex().encode() if b"\0" in key else key, place

    def cells(self, base: str, key: bytes, value: Value) -> list[Cell]:
        field = require_picture(value) if self._how == PICTURE else self._how
        if self._how == TEXT and not is_text(value):
            raise SampleError("holds text in the first values, and here no UTF-8")
        return [(field, value, f".{field}".encode())]

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        # The folder that data.mdb lies in, or the file.
        name = run.base or self.source.name
        folder = os.fsencode("" if self._is_one else name.removesuffix(f"/{_DATA}") + "/")
        return lambda key, cells: pack_paths(key, [folder + key + end for _, _, end in cells])

    def entry_name(self, run: Run, i: int) -> str:
        name = run.base or self.source.name
        is_reject = run.locators[i].startswith(REJECT)
        return name if is_reject else f"{name} at key {show_path(run.keys[i])}"


def _keys_of(path: Path) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yield each key, and offset and size of its value. Raises FormatError or OSError."""
    found = read_entries(Folder(path.parent), path.name)
    with path.open("rb", buffering=0) as file:
        for row in range(len(found.start)):
            key = pread(file.fileno(), int(found.key_size[row]), int(found.key_start[row]))
            yield key, (int(found.start[row]), int(found.size[row]))
