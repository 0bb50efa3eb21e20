"""Arrays of which each row belongs to a sample: ``images.npy`` beside ``labels.npy``, ``.npz``,
``.safetensors`` and HDF5 files of others."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import CorpusError, FormatError, SampleError, StorageError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.base import Run
from shardkit.inputs.containers.chosen_fields import ChosenFields
from shardkit.inputs.containers.open_rows import open_rows
from shardkit.inputs.containers.row_files import BLOCK_BYTES, RowFile
from shardkit.inputs.containers.row_labels import RowLabels, find_label
from shardkit.inputs.containers.row_layout import RowLayout, RowSet
from shardkit.inputs.containers.row_series import files_note, series_notes
from shardkit.inputs.containers.row_sets import (
    CLS,
    Plan,
    find_sets,
    plan_of,
)
from shardkit.inputs.containers.row_sets import stamp_of as stamp_of_set
from shardkit.inputs.endings import CONTAINER_EXTENSIONS
from shardkit.inputs.files import HUGE_BYTES, input_stamp
from shardkit.inputs.folders import nothing_found
from shardkit.inputs.images import not_image
from shardkit.inputs.lines import mapped_copy
from shardkit.inputs.names import extension
from shardkit.inputs.whole_sets import notes_on_splits
from shardkit.samples.encoding import npy_header
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

RUN_ROWS = 65_536

_REJECT = b"!"
"""Begins a locator that holds, in place of a row, why there is nothing under a name."""

_CHUNK_BYTES = 1 << 20

DEFAULT = "train"
"""The split of what no name tells the split of."""


class RowCorpus(ChosenFields):
    """A locator is ``row``, or ``row:split`` where names told splits: the packer may move it to
    another one; ``row:split:number`` where files are numbered parts of columns. A row of column
    ``x`` is field ``x.npy``, exact to the bit; class numbers are ``cls``, texts ``x.txt``, and
    pictures in bytes are named by what they hold.

    A path is the key and the field, as files of one sample lie side by side: that is what rows are
    restored as.
    """

    kind = "rows"
    noun = "rows of arrays"
    _layout: RowLayout | None = None

    def _look(self) -> None:
        """Find what is there, and decide what becomes of it."""
        self._layout = layout = find_sets(self.source, self._fields)
        labels = find_label(self.source, layout)
        self.classes = labels.classes
        self._names = {
            column: {str(number): name for number, name in own.items()}
            for column, own in labels.names.items()
        }
        self._plans = {
            each.split: plan_of(each.built, labels.label, show_path(self._path(each.base)))
            for each in layout.sets
        }
        self._in_splits = any(each.is_told for each in layout.sets)
        self.notes = [
            *filter(None, [labels.said]),
            *_named(labels),
            *layout.notes,
            *_left_out(layout),
            *notes_on_splits(self.splits()),
            *(series_notes([*layout.sets[0].columns.values()]) if layout.sets else []),
            *files_note(_files(layout)),
        ]
        made = [(field, how) for plan in self._plans.values() for _, field, how in plan]
        self.has_text = any(field == "txt" for field, _ in made)
        self.has_pictures = any(how == "picture" and not field for field, how in made)

    def _texts(self) -> list[str]:
        sets = [] if self._layout is None else self._layout.sets
        names = {
            column.name: name if each.templates else column.name
            for each in sets
            for name, column in each.built.items()
        }
        plans = self._plans.values()
        return [names[column] for plan in plans for column, field, _ in plan if field == "txt"]

    def _take(self, spec: dict[str, Any]) -> None:
        self._plans, self._in_splits = spec["columns"], spec["in_splits"]
        self._names = spec.get("names", {})

    def _own_spec(self) -> dict[str, Any]:
        spec = {"columns": self._plans, "in_splits": self._in_splits}
        return {**spec, "names": self._names} if self._names else spec

    def splits(self) -> list[str]:
        return [*self._plans]

    def runs(self, scratch: Path) -> Iterator[Run]:
        if self._layout is None:
            raise CorpusError("a corpus rebuilt from its spec can read runs, not list them")
        self.ignored.clear()
        self.ignored.update(self._layout.ignored)
        found = False
        splits = dict.fromkeys([*self.splits(), *(split for split, _, _ in self._layout.lost)])
        for split in splits:
            for run in self._split_runs(split, self._layout, scratch):
                found = True
                yield run
        if not found:
            raise nothing_found(self.noun, self.source, self.ignored)

    def _split_runs(self, split: str, layout: RowLayout, scratch: Path) -> Iterator[Run]:
        for each in layout.sets:
            if each.split == split:
                yield from self._set_runs(each, scratch)
        for own, base, key in layout.lost:
            if own == split:
                reason = _REJECT + os.fsencode(_why_lost(self.source / base))
                yield Run(split, base, None, [reason], [os.fsencode(key)], [0], [0])

    def _set_runs(self, rows: RowSet, scratch: Path) -> Iterator[Run]:
        path = self._path(rows.base)
        with os_errors(f"listing the rows of {show_path(path)}"):
            stamp = stamp_of_set(path, rows.names)
            with open_rows(path, rows.names, scratch, stamp) as file:
                shapes = {column.name: column.shape for column in file.columns}
                if any(shapes.get(c.name) != c.shape for c in rows.columns.values()):
                    raise StorageError(f"{show_path(path)} changed while listing; run it again")
                file.prepare()
        prefix = os.fsencode(f"{rows.prefix}/" if rows.prefix else "")
        told = b":" + rows.split.encode() if self._in_splits or rows.part else b""
        told += b":" + rows.part.encode() if rows.part else b""
        for start in range(0, rows.num_rows, RUN_ROWS):
            numbers = range(start, min(start + RUN_ROWS, rows.num_rows))
            yield Run(
                split=rows.split,
                base=rows.base,
                locators=[b"%d%s" % (number, told) for number in numbers],
                keys=[prefix + b"%012d" % number for number in numbers],
                sizes=[rows.row_bytes] * len(numbers),
                stamps=[stamp] * len(numbers),
            )

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        name = run.base or self.source.name
        if run.locators and run.locators[0].startswith(_REJECT):
            return SampleBatch(rejects=[(name, os.fsdecode(run.locators[0].removeprefix(_REJECT)))])
        batch = SampleBatch()
        for piece in _parts_of_columns(run):
            batch.extend(self._read_own(piece, name, scratch))
        return batch

    def entry_name(self, run: Run, i: int) -> str:
        """Two splits may lie in one file, and the rows of each are counted from 0."""
        number, _, told = os.fsdecode(run.locators[i]).partition(":")
        place = f" of {told.replace(':', ' ').strip()}" if told else ""
        return f"{run.base or self.source.name} at row {number}{place}"

    def _read_own(self, run: Run, name: str, scratch: Path) -> SampleBatch:
        """Entries of one file, or of one part of columns."""
        batch = SampleBatch()
        path, (split, number) = self._path(run.base), _place_of(run)
        plan = [
            [column.replace("/", number) if number else column, field, how]
            for column, field, how in self._plans[split or DEFAULT]
        ]
        names = [column for column, _, _ in plan]
        with os_errors(f"reading {show_path(path)}"):
            try:
                if stamp_of_set(path, names) != run.stamps[0]:
                    raise SampleError("the file changed while packing")
                with open_rows(path, names, scratch, run.stamps[0]) as file:
                    for part in _parts(run, BLOCK_BYTES):
                        for made in self._read_part(file, part, plan, scratch):
                            batch.extend(made)
            except (SampleError, FormatError) as error:
                reason = str(error).removeprefix(f"{show_path(path)}: ")
                return SampleBatch(rejects=[(_at(name, row), reason) for row in run.locators])
        return batch

    def _read_part(
        self, file: RowFile, run: Run, plan: Plan, scratch: Path
    ) -> Iterator[SampleBatch]:
        """Rows that follow one another; where they cannot be read at once, each for itself."""
        try:
            yield self._samples(file, run, plan, scratch)
        except (SampleError, FormatError) as error:
            if len(run) == 1:
                where = _at(run.base or self.source.name, run.locators[0])
                yield SampleBatch(rejects=[(where, str(error))])
                return
            for i in range(len(run)):
                yield from self._read_part(file, run.slice(i, i + 1), plan, scratch)

    def _samples(self, file: RowFile, run: Run, plan: Plan, scratch: Path) -> SampleBatch:
        start, split = _row_of(run.locators[0]), _place_of(run)[0] if self._in_splits else ""
        columns: dict[str, list[Value | None]] = {}
        for name, field, how in plan:
            block = file.block(name, start, start + len(run))
            columns |= _fields(field, how, block, name, scratch)
        base = os.fsencode(f"{split}/" if split else "")
        batch = SampleBatch([*run.keys], [], columns)
        for i, key in enumerate(run.keys):
            stem = base + key + b"."
            paths = [stem + os.fsencode(name) for name in sorted(batch.fields(i))]
            batch.paths.append(pack_paths(key, paths))
        return batch


def _files(layout: RowLayout) -> dict[str, int]:
    """Files that hold all columns -> how many rows each has."""
    sets = layout.sets
    return {s.base: s.num_rows for s in sets if extension(s.base) in CONTAINER_EXTENSIONS}


def _left_out(layout: RowLayout) -> list[str]:
    """What there is to say of what is packed in no field, a line each."""
    lines = []
    for (name, why), files in layout.left_out.items():
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        lines.append(f"left out: {show_path(name)} of {files[0]}{more}: {why}")
    return lines


def _named(labels: RowLabels) -> list[str]:
    """What there is to say of names that are not those of classes, a line each."""
    return [
        f"names of numbers of {column!r} are in shardkit.json, under corpus: "
        + first_few([f"{number} {name}" for number, name in own.items()])
        for column, own in labels.names.items()
    ]


def _why_lost(path: Path) -> str:
    try:
        input_stamp(path)
    except FormatError as error:
        return str(error)
    return "came while listing; run it again"


def _at(name: str, row: bytes) -> str:
    return f"{name} at row {_row_of(row)}"


def _row_of(locator: bytes) -> int:
    return int(locator.partition(b":")[0])


def _place_of(run: Run) -> tuple[str, str]:
    """The split that names told of all entries of a run, and the number of their part of columns;
    either may be ``""``."""
    _, split, part, *_ = (*run.locators[0].decode().split(":"), "", "")
    return split, part


def _parts_of_columns(run: Run) -> Iterator[Run]:
    """The run in pieces, each of one part: the packer may have put several into one."""
    start = 0
    places = [locator.partition(b":")[2] for locator in run.locators]
    for i in range(1, len(run) + 1):
        if i == len(run) or places[i] != places[start]:
            yield run.slice(start, i)
            start = i


def _parts(run: Run, most: int) -> Iterator[Run]:
    """The run in pieces of rows that follow one another, of about ``most`` bytes."""
    at_once = max(most // max(run.sizes[0], 1), 1)
    rows = [_row_of(locator) for locator in run.locators]
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1 or i - start == at_once:
            yield run.slice(start, i)
            start = i


def _fields(
    field: str, how: str, block: Any, name: str, scratch: Path
) -> dict[str, list[Value | None]]:
    """What a block of a column becomes: field -> a value for each row, or None.

    Raises:
        SampleError: a row is no picture.
    """
    if how == CLS:
        return {field: [b"%d" % number for number in block.reshape(-1).tolist()]}
    if how == "txt":
        return {field: [_utf8(value, name) for value in block]}
    if how == "ragged":
        return {field: [npy_header(a.dtype.str, a.shape) + a.tobytes() for a in block]}
    if how == "picture":
        return _pictures(field, block, name)
    return {field: _npy_values(block, scratch)}


def _utf8(value: bytes, name: str) -> bytes:
    try:
        str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise SampleError(f"column {name!r}: is no text in UTF-8: {error.reason}") from error
    return value


def _pictures(prefix: str, values: list[bytes], name: str) -> dict[str, list[Value | None]]:
    found: dict[str, list[Value | None]] = {}
    for i, value in enumerate(values):
        held = image_field(value[:HEAD_BYTES])
        if held is None:
            raise SampleError(f"column {name!r}: {not_image(value)}")
        found.setdefault(prefix + held, [None] * len(values))[i] = value
    return found


def _npy_values(block: Array, scratch: Path) -> list[Value | None]:
    """A ``.npy`` of each row; a huge one in a file of ``scratch``, mapped."""
    header = _row_header(block)
    flat = block.reshape(-1).view(np.uint8)
    size = len(flat) // len(block)
    if size >= HUGE_BYTES:
        rows = (flat[i * size : (i + 1) * size] for i in range(len(block)))
        return [mapped_copy(_pieces(header, row), scratch) for row in rows]
    data = flat.tobytes()
    return [header + data[i * size : (i + 1) * size] for i in range(len(block))]


def _pieces(header: bytes, row: Array) -> Iterator[bytes]:
    yield header
    for start in range(0, len(row), _CHUNK_BYTES):
        yield row[start : start + _CHUNK_BYTES].tobytes()


def _row_header(block: Array) -> bytes:
    """The header that ``numpy.save`` writes of one row."""
    if block.dtype.names is None:
        return npy_header(block.dtype.str, block.shape[1:])
    out = io.BytesIO()
    descr = np.lib.format.dtype_to_descr(block.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": block.shape[1:]}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue()
