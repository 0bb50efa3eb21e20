"""The kind ``rows``: arrays of which each row belongs to a sample."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from shardkit.errors import CorpusError, FormatError, SampleError, StorageError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.base import Input, Run
from shardkit.inputs.endings import CONTAINER_EXTENSIONS, NPY
from shardkit.inputs.files import input_stamp
from shardkit.inputs.folders import nothing_found
from shardkit.inputs.images import not_image
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.inputs.names import cut_ending, extension, join
from shardkit.inputs.rows.array_files import BLOCK_BYTES, open_arrays
from shardkit.inputs.rows.row_columns import RECIPES, ArrayFile, field_of, is_idx_name
from shardkit.inputs.rows.row_plan import (
    Layout,
    RowSet,
    find_labels,
    is_array_name,
    npy_reading,
    read_layout,
)
from shardkit.inputs.whole_sets import notes_on_splits
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.samples.split_names import splits_by_words
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

RUN_ROWS = 65_536

_BESIDE = frozenset(
    {"", ".txt", ".md", ".json", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".log", ".html", ".py"}
)
"""Endings of files that lie next to arrays and are no samples, if there are few."""

_FEW_BESIDE = 16

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of pickles of protocol 2 to 5."""


class RowCorpus(Input):
    """Each row of column ``x`` is field ``x.npy``, exact to the bit; class numbers are ``cls``,
    texts ``x.txt``, and images stored as bytes are named by what they hold.

    A locator is ``row``, or ``row:split`` where names told splits: the packer may move it to
    another one. Paths are those of files next to each other, as which rows are restored.
    """

    kind = "rows"
    noun = "rows of arrays"
    is_one_file = True
    options = frozenset({"fields"})
    _layout: Layout | None = None

    def __init__(
        self, source: Path, fields: Sequence[str] | None = None, tokenized: bool = False
    ) -> None:
        """``fields``: columns to pack, None for all. ``tokenized``: if none is chosen, the text."""
        self.source = source
        self.ignored: dict[str, int] = {}
        self._fields = None if fields is None else [*fields]
        self._look()
        texts = {column for plan in self._plans.values() for column, f, _ in plan if f == "txt"}
        if tokenized and fields is None and texts:
            self._fields = sorted(texts)
            self._look()

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        _refuse_pickles(look)
        held = [(f.base, name) for f in look.folders for name in f.names if is_array_name(name)]
        found = [place for place in held if _is_container(look, *place)]
        num_npy = look.count({NPY})
        if not found and not num_npy:
            return None
        others = look.endings - Counter(cut_ending(name)[1] for _, name in held)
        is_alone = others.total() <= _FEW_BESIDE and _BESIDE.issuperset(others)
        reading = "rows" if found or look.is_file else npy_reading(look)
        bases = sorted({base for base, _ in found})
        if is_alone and len(bases) > 1 and not num_npy and splits_by_words(bases) is None:
            raise CorpusError(
                f"{show_path(look.source)} holds files of arrays in several folders that are not"
                f" named as splits ({first_few(bases)}): pack each by itself, or pass --corpus rows"
                f" for one dataset of all rows; if each file is a sample, see {RECIPES}"
            )
        if reading == "arrays":
            return None
        is_sure = look.is_file or (is_alone and reading == "rows" and not (found and num_npy))
        strength = Strength.LAYOUT if is_sure else Strength.FILES
        return Claim(strength, "each row of arrays is a sample", len(found) or num_npy)

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.source, made.classes, made.ignored, made.notes = source, None, {}, []
        made._fields = spec.get("fields")
        made._plans, made._in_splits = spec["columns"], spec["in_splits"]
        return made

    def spec(self) -> dict[str, Any]:
        spec = {"kind": self.kind, "columns": self._plans, "in_splits": self._in_splits}
        return spec if self._fields is None else {**spec, "fields": self._fields}

    def _look(self) -> None:
        """Decide what becomes of the columns, of those in ``_fields`` if some are chosen."""
        with TemporaryDirectory() as scratch:
            self._layout = layout = read_layout(self.source, self._fields, Path(scratch))
        label, self.classes = find_labels(self.source, layout)
        self._in_splits = layout.in_splits
        # Split -> [name in the file, field, how] of each column.
        self._plans = {each.split: _plan(each, label) for each in layout.sets}
        self.notes = [*layout.notes, *notes_on_splits(self.splits())]
        for why, names in layout.left_out.items():
            self.notes.append(f"left out: {first_few([*names], 8)}: {why}")
        files = [s.base for s in layout.sets if extension(s.base) in CONTAINER_EXTENSIONS]
        if len({*files}) > len(self._plans):
            self.notes.append(
                f"each row of {len({*files}):,} files is a sample ({first_few(files)}); if each"
                f" file is one, see {RECIPES}"
            )
        made = [(field, how) for plan in self._plans.values() for _, field, how in plan]
        self.has_text = any(field == "txt" for field, _ in made)
        self.has_pictures = any(how == "picture" and not field for field, how in made)

    def splits(self) -> list[str]:
        return [*self._plans]

    def runs(self, scratch: Path) -> Iterator[Run]:
        if self._layout is None:
            raise CorpusError("a corpus rebuilt from its spec can read runs, not list them")
        self.ignored.clear()
        self.ignored.update(+self._layout.ignored)
        if not any(each.num_rows for each in self._layout.sets):
            raise nothing_found(self.noun, self.source, self.ignored)
        for rows in self._layout.sets:
            yield from self._runs_of(rows, scratch)

    def _runs_of(self, rows: RowSet, scratch: Path) -> Iterator[Run]:
        path = self._path(rows.base)
        columns = {column.name: column.shape for column in rows.columns.values()}
        with os_errors(f"listing the rows of {show_path(path)}"):
            stamp = _stamp(path, columns)
            with open_arrays(path, [*columns], scratch, stamp) as file:
                if columns.items() - {n: c.shape for n, c in file.columns.items()}.items():
                    raise StorageError(f"{show_path(path)} changed while listing; run it again")
                file.prepare()
        prefix = os.fsencode(f"{rows.prefix}/" if rows.prefix else "")
        told = b":" + rows.split.encode() if self._in_splits else b""
        row_bytes = sum(column.row_bytes for column in rows.columns.values())
        for start in range(0, rows.num_rows, RUN_ROWS):
            numbers = range(start, min(start + RUN_ROWS, rows.num_rows))
            yield Run(
                split=rows.split,
                base=rows.base,
                locators=[b"%d%s" % (number, told) for number in numbers],
                keys=[prefix + b"%012d" % number for number in numbers],
                sizes=[row_bytes] * len(numbers),
                stamps=[stamp] * len(numbers),
            )

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch = SampleBatch()
        path = self._path(run.base)
        split = run.locators[0].decode().partition(":")[2]
        plan = self._plans[split or "train"]
        names = [column for column, _, _ in plan]
        rows = [_row_of(locator) for locator in run.locators]
        most = max(BLOCK_BYTES // max(run.sizes[0], 1), 1)
        breaks = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1 or i % most == 0]
        with os_errors(f"reading {show_path(path)}"):
            try:
                if _stamp(path, names) != run.stamps[0]:
                    raise SampleError("the file changed while packing")
                with open_arrays(path, names, scratch, run.stamps[0]) as file:
                    for start, stop in pairwise([0, *breaks, len(rows)]):
                        batch.extend(self._read_part(file, run.slice(start, stop), plan, split))
            except (SampleError, FormatError) as error:
                reason = str(error).removeprefix(f"{show_path(path)}: ")
                return SampleBatch(rejects=[(self._at(run, i), reason) for i in range(len(run))])
        return batch

    def entry_name(self, run: Run, i: int) -> str:
        """Two splits may lie in one file, and the rows of each are counted from 0."""
        split = os.fsdecode(run.locators[i]).partition(":")[2]
        return self._at(run, i) + (f" of {split}" if split else "")

    def _at(self, run: Run, i: int) -> str:
        return f"{run.base or self.source.name} at row {_row_of(run.locators[i])}"

    def _path(self, base: str) -> Path:
        return self.source / base if base else self.source

    def _read_part(
        self, file: ArrayFile, run: Run, plan: list[list[str]], split: str
    ) -> SampleBatch:
        """Read rows that follow one another; if they cannot be read at once, each by itself."""
        start = _row_of(run.locators[0])
        columns: dict[str, list[Value | None]] = {}
        try:
            for name, field, how in plan:
                values = file.values(name, how, start, start + len(run))
                if how != "picture":
                    columns[field] = values
                    continue
                for i, value in enumerate(values):
                    head = bytes((value or b"")[:HEAD_BYTES])
                    held = image_field(head)
                    if held is None:
                        raise SampleError(f"column {name!r}: {not_image(head)}")
                    columns.setdefault(field + held, [None] * len(run))[i] = value
        except (SampleError, FormatError) as error:
            if len(run) == 1:
                return SampleBatch(rejects=[(self._at(run, 0), str(error))])
            batch = SampleBatch()
            for i in range(len(run)):
                batch.extend(self._read_part(file, run.slice(i, i + 1), plan, split))
            return batch
        batch = SampleBatch([*run.keys], [], columns)
        for i, key in enumerate(run.keys):
            stem = os.fsencode(f"{split}/" if split else "") + key + b"."
            paths = [stem + os.fsencode(name) for name in sorted(batch.fields(i))]
            batch.paths.append(pack_paths(key, paths))
        return batch


def _refuse_pickles(look: Look) -> None:
    """Raise CorpusError if most files at the top are pickles, as CIFAR's are."""
    names = [name for name in look.top.names if extension(name) in ("", ".pkl", ".pickle")][:64]
    pickles = [name for name in names if look.head(name, 2) in _PICKLES]
    if 2 * len(pickles) > len(look.top.names):
        raise CorpusError(
            f"{show_path(look.source)} holds pickles ({first_few(pickles)}), which shardkit never"
            f" reads, since they may run any code; if you trust whoever made them, see {RECIPES}"
        )


def _is_container(look: Look, base: str, name: str) -> bool:
    if is_idx_name(name):
        head = look.head(join(base, name), 4)
        return head[:2] == b"\x1f\x8b" or (head[:2] == b"\0\0" and 8 <= head[2] <= 14)
    return extension(name) in CONTAINER_EXTENSIONS


def _plan(rows: RowSet, label: str | None) -> list[list[str]]:
    """Return [name in the file, field, how] of each column of a split. The field of images lacks
    its ending, which depends on the image.

    Raises:
        CorpusError: a name cannot name a field, or two would name one.
    """
    is_only = sum(column.how == "picture" for column in rows.columns.values()) == 1
    plan: list[list[str]] = []
    seen: dict[str, str] = {}
    for name, column in rows.columns.items():
        how = "cls" if name == label else column.how
        field = field_of(name, how, is_only_picture=is_only)
        if (other := seen.setdefault(field or "jpg", name)) != name:
            raise CorpusError(
                f"{show_path(rows.base)}: {other!r} and {name!r} would both be the field"
                f" {field or 'jpg'}; rename one"
            )
        plan.append([column.name, field, how])
    return plan


def _stamp(path: Path, names: Iterable[str]) -> int:
    """Return a file's stamp; of a folder, one of its files of these names. Raises FormatError."""
    if not path.is_dir():
        return input_stamp(path)
    return sum(input_stamp(path / name) for name in names) & (2**63 - 1)


def _row_of(locator: bytes) -> int:
    return int(locator.partition(b":")[0])
