"""TFRecord files of ``tf.train.Example``: one, or a folder of them. Each record is a sample."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkit.errors import FormatError, SampleError
from shardkit.inputs.base import Run
from shardkit.inputs.containers.chosen_fields import ChosenFields
from shardkit.inputs.containers.tf_example import Feature, parse_example
from shardkit.inputs.containers.tfrecord_file import (
    Place,
    data_of,
    first_records,
    is_gzip,
    is_record_name,
    record_places,
)
from shardkit.inputs.containers.tfrecord_schema import Schema, make_schema
from shardkit.inputs.files import input_stamp
from shardkit.inputs.folders import Root, nothing_found, walk_named
from shardkit.inputs.lines import plain_copy, plain_name, read_pieces
from shardkit.inputs.names import join
from shardkit.inputs.whole_sets import notes_on_splits, refuse_missing
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.stamps import stamp_of_open

RUN_RECORDS = 65_536

LOOK_RECORDS = 100
"""Records that the schema is made of."""

LOOK_BYTES = 32 << 20
"""Of them, about as much is read."""

_REJECT = b"!"
"""Begins a locator that holds, in place of an offset, why no record is read from there on."""


@dataclass(frozen=True)
class _File:
    """A file of records; ``base`` is relative to the source, and ``""`` where it is the source."""

    split: str
    base: str
    prefix: str


class TfRecordCorpus(ChosenFields):
    """A locator is ``offset:size``, in the file, or in its decompressed copy.

    Keys carry the file's name, without ``.gz``, and the record's number; paths that and the field.
    """

    kind = "tfrecord"
    noun = "TFRecord files"

    def _find(self) -> None:
        self._ignored: dict[str, int] = {}
        self._files = _in_splits(find_files(self.source, self._ignored), self.source.name)
        refuse_missing([file.base for file in self._files if file.base], self.source)

    def _look(self) -> None:
        self._schema, notes = self._first_schema()
        self.notes = [*notes, *notes_on_splits(self.splits())]
        if self.splits() == ["train"]:
            self.notes += mixed_names([file.base.rpartition("/")[2] for file in self._files])
        self.has_text = bool(self._texts())
        self.has_pictures = ["", "picture"] in self._schema.fields.values()

    def _texts(self) -> list[str]:
        return [name for name, (field, _) in self._schema.fields.items() if field == "txt"]

    def _take(self, spec: dict[str, Any]) -> None:
        self._ignored, self._files = {}, []
        self._schema = Schema.from_json(spec["schema"])

    def _own_spec(self) -> dict[str, Any]:
        return {"schema": self._schema.to_json()}

    def splits(self) -> list[str]:
        return list(dict.fromkeys(file.split for file in self._files))

    def _first_schema(self) -> tuple[Schema, list[str]]:
        """That of the first file that has good records."""
        for file in self._files:
            path = self._path(file.base)
            with os_errors(f"opening {show_path(path)}"):
                try:
                    input_stamp(path)
                except FormatError:
                    continue  # listing says what is wrong
                examples = _examples(first_records(path, LOOK_RECORDS, LOOK_BYTES))
            if examples:
                return make_schema(examples, show_path(path), self._fields)
        return Schema({}, self._fields is not None), []

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self.ignored.update(self._ignored)
        found = False
        for file in self._files:
            for run in self._file_runs(file, scratch):
                found = True
                yield run
        if not found:
            raise nothing_found(self.noun, self.source, self.ignored)

    def _file_runs(self, file: _File, scratch: Path) -> Iterator[Run]:
        path = self._path(file.base)
        prefix = os.fsencode(plain_name(file.prefix))
        number = 0
        with os_errors(f"listing the records of {show_path(path)}"):
            try:
                stamp = input_stamp(path)
                with self._plain(file.base, stamp, scratch).open("rb", buffering=0) as plain:
                    for places, reason in _batches(plain.fileno()):
                        if places:
                            yield _run_of(file, places, prefix, number, stamp)
                        number += len(places)
                        if reason:
                            yield _reject_of(file, prefix, number, reason)
            except FormatError as error:
                yield _reject_of(file, prefix, number, str(error))

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        name = run.base or self.source.name
        if run.locators and run.locators[0].startswith(_REJECT):
            return SampleBatch(rejects=[(name, os.fsdecode(run.locators[0].removeprefix(_REJECT)))])
        name = plain_name(name)
        batch, rows = SampleBatch(), []
        for key, record in zip(run.keys, self._records(run, scratch), strict=True):
            number = key.rpartition(b"/")[2]
            try:
                fields = self._schema.sample(parse_example(_checked(record)))
            except (SampleError, FormatError) as error:
                batch.rejects.append((_at(name, key), str(error)))
                continue
            rows.append(fields)
            stem = b"%s/%s." % (os.fsencode(name), number)
            paths = [stem + os.fsencode(field) for field in sorted(fields)]
            batch.keys.append(key)
            batch.paths.append(pack_paths(key, paths))
        batch.columns = _columns(rows)
        return batch

    def entry_name(self, run: Run, i: int) -> str:
        return _at(plain_name(run.base or self.source.name), run.keys[i])

    def _plain(self, base: str, stamp: int, scratch: Path) -> Path:
        path = self._path(base)
        return plain_copy(path, base or path.name, stamp, scratch) if is_gzip(path) else path

    def _records(self, run: Run, scratch: Path) -> Iterator[Value | None]:
        """Each entry's record; None if the file changed since it was listed."""
        pieces = [
            (int(start), int(size)) for start, _, size in (x.partition(b":") for x in run.locators)
        ]
        stamp = run.stamps[0] if run.stamps else 0
        path = self._path(run.base)
        with os_errors(f"reading {show_path(path)}"):
            try:
                plain = self._plain(run.base, stamp, scratch)
                file = plain.open("rb", buffering=0)
            except FileNotFoundError:
                yield from [None] * len(pieces)
                return
            with file:
                if plain != path or stamp_of_open(file.fileno(), path) == stamp:
                    yield from read_pieces(file.fileno(), pieces)
                else:
                    yield from [None] * len(pieces)


def _at(name: str, key: bytes) -> str:
    return f"{name} at record {int(key.rpartition(b'/')[2])}"


def find_files(source: Path, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
    """Every file of records, relative to the source, and names that lead nowhere; others are
    counted in ``ignored``."""
    if not source.is_dir():
        yield Root("train", ""), ""
        return
    for root, folder in walk_named(source, is_record_name, ignored):
        for name in sorted([*folder.names, *folder.lost]):
            yield root, join(folder.base, name)


def _in_splits(found: Iterator[tuple[Root, str]], name: str) -> list[_File]:
    """Files with their splits, which folders tell, or else names; those of one split together.
    ``name`` is that of the source."""
    files = [*found]
    told = splits_by_words([base.rpartition("/")[2] for _, base in files])
    splits = [
        root.split if root.base or told is None else told[i] for i, (root, _) in enumerate(files)
    ]
    made = [
        _File(split, base, root.key_base(base or name))
        for split, (root, base) in zip(splits, files, strict=True)
    ]
    order = list(dict.fromkeys(splits))
    return sorted(made, key=lambda file: order.index(file.split))


def _examples(records: list[Value]) -> list[dict[str, Feature]]:
    """Those that are some; reading says what is wrong with the others."""
    found = []
    for record in records:
        try:
            found.append(parse_example(record))
        except FormatError:
            continue
    return found


def _batches(fd: int) -> Iterator[tuple[list[Place], str]]:
    """Places of records, some at a time; and, at the last, why there are no more of them."""
    held: list[Place] = []
    reason = ""
    try:
        for place in record_places(fd, os.fstat(fd).st_size):
            held.append(place)
            if len(held) == RUN_RECORDS:
                yield held, ""
                held = []
    except FormatError as error:
        reason = str(error)
    yield held, reason


def _reject_of(file: _File, prefix: bytes, number: int, reason: str) -> Run:
    """The one entry for all that cannot be listed; no record has its key."""
    key, locator = b"%s/%012d" % (prefix, number), _REJECT + os.fsencode(reason)
    return Run(file.split, file.base, None, [locator], [key], [0], [0])


def _run_of(file: _File, places: list[Place], prefix: bytes, first: int, stamp: int) -> Run:
    return Run(
        split=file.split,
        base=file.base,
        locators=[b"%d:%d" % place for place in places],
        keys=[b"%s/%012d" % (prefix, number) for number in range(first, first + len(places))],
        sizes=[size for _, size in places],
        stamps=[stamp] * len(places),
    )


def _checked(record: Value | None) -> memoryview:
    if record is None:
        raise SampleError("the file changed or vanished while packing")
    return data_of(record)


def _columns(rows: list[dict[str, Value]]) -> dict[str, list[Value | None]]:
    names = sorted({name for row in rows for name in row})
    return {name: [row.get(name) for row in rows] for name in names}
