"""Tables as inputs: each row is a sample, and every column a field of it.

Parquet files, folders that ``save_to_disk`` of Hugging Face ``datasets`` wrote, and rows of Python
objects that wait in Parquet files. Rows are read in batches of bounded size, of the columns that
are packed.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from shardkit.errors import CorpusError, FormatError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.base import Run
from shardkit.inputs.files import input_stamp, join
from shardkit.inputs.folders import Root, list_names, pass_over
from shardkit.inputs.guards import notes_on_splits, refuse_missing
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.inputs.tables.cells import Cells, cells_of, columns_of, kind_of_files
from shardkit.inputs.tables.columns import TableColumn, TableColumns, TablePlan, make_plan, misfit
from shardkit.inputs.tables.hub import MAX_BYTES, card_head, splits_of_paths
from shardkit.inputs.tables.row_files import RUN_ROWS, Cell, Files, Listed, RowFiles
from shardkit.inputs.tables.table_files import ArrowTable, ParquetTable, Table, arrow_errors
from shardkit.memory.whole_files import read_file
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

ARRAY_BYTES = 128
"""The overhead of a number or an array of numbers as the ``.npy`` file that it becomes.
It counts as input, so that a shard of a million small numbers does not take more memory than one of
pictures."""


class TableCorpus(RowFiles):
    """Rows of files of tables; a locator is the row's number in its file. Reading goes on where the
    last call ended.

    What each column becomes is decided by the first file of each split that is not damaged. Files
    whose columns do not fit that are rejected: nothing of them is left out without a word.
    """

    table: ClassVar[type[Table]] = ParquetTable

    def __init__(
        self,
        source: Path,
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
        tokenized: bool = False,
    ) -> None:
        self.source = source
        self._is_chosen = fields is not None or tokenized
        where = self._survey()
        plan = TablePlan(text=text_field)
        if where:
            plan = make_plan(self._there, where, fields, text_field, tokenized=tokenized)
            if tokenized and fields is None and plan.left_out:
                fields = [str(plan.text)]
        self._take(plan, fields)
        for split, names in self._lacking.items():
            if absent := [repr(column.name) for column in plan.columns if column.name in names]:
                self.notes.append(f"split {split!r} has no column {', '.join(absent)}")
        self.notes += self.file_notes
        if "class_label" in card_head(source) and not (plan.classes or plan.names):
            self.notes.append("README.md names classes, and no file does: docs/recipes/tables.md")

    def _take(self, plan: TablePlan, fields: Sequence[str] | None) -> None:
        self._plan = plan
        self._fields = None if fields is None else [*fields]
        self._reader: RowReader | None = None
        self.ignored: dict[str, int] = {}
        self.notes: list[str] = plan.notes()
        self.text_field, self.classes = plan.text, plan.classes
        self.has_text = plan.text is not None or not plan.columns
        self.has_pictures = any(c.how == "picture" and not c.base for c in plan.columns)

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.source = source
        made._take(TablePlan.from_json(spec["text_field"], spec), spec.get("fields"))
        return made

    def spec(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "text_field": self.text_field}
        made |= {} if self._fields is None else {"fields": self._fields}
        return made | self._plan.to_json()

    def described(self, base: str) -> dict[str, Any]:
        """Return what Hugging Face says of a file's columns next to it: column -> feature."""
        return {}

    def shown(self, base: str) -> str:
        """Return a file's name for messages."""
        return show_path(self.source / base)

    def _survey(self) -> str:
        """Find the columns of the first file of each split, and which of them each split lacks;
        return the first file's name, or ""."""
        self._there: TableColumns = {}
        seen: dict[str, TableColumns] = {}
        where = ""
        for root, base in self.files({}):
            if root.split in seen:
                continue
            try:
                seen[root.split] = own = self._look(base, is_deep=True)
            except FormatError:  # listing makes a reject of it
                continue
            where = where or self.shown(base)
            for name, column in own.items():
                known = self._there.setdefault(name, column)
                # A test split may have numbers of classes, and train their names.
                if known.how == "nothing" or (not known.names and known.how == column.how):
                    self._there[name] = column
        self._lacking = {split: self._there.keys() - own.keys() for split, own in seen.items()}
        return where

    def _look(self, base: str, *, is_deep: bool = False) -> TableColumns:
        """Return a file's columns, judged by types and by what Hugging Face says; ``is_deep``: by
        the first values, too, where nobody says what bytes are. Raises FormatError."""
        path = self.source / base
        with os_errors(f"opening {show_path(path)}"), arrow_errors(path):
            input_stamp(path)
            table = self.table(path)
            held = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
            features = (held.get("info") or {}).get("features") or {}
            there = columns_of(table.schema, {**self.described(base), **features})
            for name, column in there.items() if is_deep else ():
                if column.how in ("bytes", "file"):
                    batch = next(table.batches([name], 0), None)
                    how = kind_of_files(column, batch.column(0)) if batch else column.how
                    there[name] = replace(column, how=how, many=column.many and how != "json")
            return there

    # --- listing and reading --------------------------------------------------------------

    def listed(self, split: str, base: str, stamp: int, scratch: Path) -> Iterator[Listed]:
        there = self._look(base)
        lacking = self._lacking.get(split, set())
        if why := misfit(self._plan, self._there, there, lacking, all_chosen=not self._is_chosen):
            raise FormatError(why)
        columns = [column for column in self._plan.columns if column.name in there]
        arrays = sum(column.how in ("number", "array") for column in columns) * ARRAY_BYTES
        with arrow_errors(self.source / base):
            pieces = self.table(self.source / base).sizes([column.name for column in columns])
        start = 0
        for num_rows, num_bytes in pieces:
            for left in range(num_rows, 0, -RUN_ROWS):
                rows = range(start, start + min(left, RUN_ROWS))
                sizes = [num_bytes // num_rows + arrays] * len(rows)
                yield [b"%d" % row for row in rows], rows, sizes
                start = rows.stop

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        made_of = self.source / run.base, run.stamps[0]
        if self._reader is None or self._reader.made_of != made_of:
            try:
                with arrow_errors(made_of[0]):
                    table = self.table(made_of[0])
            except FormatError as error:
                yield from [str(error)] * len(run)
                return
            self._reader = RowReader(made_of, table, self._plan.columns)
        for locator in run.locators:
            yield self._reader.cells(int(locator))


class RowReader:
    """The cells of rows of one file; it holds one batch of its columns.

    Attributes:
        made_of: what distinguishes this file, as it is, from others.
    """

    def __init__(
        self, made_of: tuple[Path, int], table: Table, columns: Sequence[TableColumn]
    ) -> None:
        self.made_of = made_of
        self._table = table
        # A split may lack some.
        self._columns = [column for column in columns if column.name in table.schema.names]
        self._names = [column.name for column in self._columns]
        self._part, self._rows = -1, range(0)
        self._batches: Iterator[Any] = iter(())
        self._held: list[list[Cells]] = []
        self._damage: dict[int, str] = {}

    def cells(self, row: int) -> list[Cell] | str:
        """Return the cells of a row; or why it has none, or cannot be read."""
        if row not in self._rows:
            part = bisect_right(self._table.starts, row) - 1
            if part in self._damage:
                return self._damage[part]
            try:
                with arrow_errors(self.made_of[0]):
                    self._advance(part, row)
            except FormatError as error:
                self._damage[part], self._part, self._rows = str(error), -1, range(0)
                return str(error)
        found: list[Cell] = []
        for cells in self._held:
            own = cells[row - self._rows.start]
            if isinstance(own, str):
                return own
            found += own
        return found or f"has a null in each of {', '.join(map(repr, self._names))}"[:300]

    def _advance(self, part: int, row: int) -> None:
        """Hold the batch that has the row."""
        if part != self._part or row < self._rows.start:
            self._part, self._rows = part, range(self._table.starts[part], self._table.starts[part])
            self._batches = self._table.batches(self._names, part)
        batch: Any = None
        while row not in self._rows:
            batch, self._held = None, []  # before the next one is there
            batch = next(self._batches, None)
            if batch is None:
                raise FormatError(f"is damaged: it ends before row {row}; fetch or write it again")
            self._rows = range(self._rows.stop, self._rows.stop + batch.num_rows)
        self._held = [cells_of(column, batch[column.name]) for column in self._columns]


# --- kinds of tables ----------------------------------------------------------------------


class ParquetCorpus(TableCorpus):
    """Parquet files: one, or a folder of them."""

    kind = "parquet"
    noun = "tables"
    extensions = frozenset({".parquet"})
    table = ParquetTable

    def refuse_folder(self, base: str) -> None:
        folder = self.source / base
        logs = ("_delta_log", "metadata/*.metadata.json", ".hoodie")  # Delta Lake, Iceberg, Hudi
        log = next((path for pattern in logs for path in folder.glob(pattern)), None)
        if log is not None:
            raise CorpusError(
                f"{show_path(folder)} is a table whose log, {show_path(log.relative_to(folder))},"
                " says which of the files there are part of it, and others are older rows; read it"
                " by its own library: docs/recipes/tables.md"
            )
        if base and "=" in folder.name and not self._is_chosen:
            raise CorpusError(
                f"{show_path(folder)} is a part of a table whose column"
                f" {folder.name.partition('=')[0]!r} is in the names of folders alone:"
                " docs/recipes/tables.md has it read; --fields packs columns of the files"
            )

    def splits_of_names(self, paths: Sequence[str]) -> Sequence[str]:
        return splits_of_paths(paths, self.source)


class SpooledCorpus(ParquetCorpus):
    """The rows of splits that were written into files for the time of one pack:
    ``{split}.parquet`` each, in one folder."""

    def __init__(self, source: Path, splits: Sequence[str], *options: Any) -> None:
        self._splits = splits
        super().__init__(source, *options)

    def files(self, ignored: dict[str, int]) -> Files:
        self.file_notes = notes_on_splits(self._splits)
        return [(Root(split, ""), spool_name(split)) for split in self._splits]

    def shown(self, base: str) -> str:
        return f"split {base.removesuffix('.parquet')!r}"


def spool_name(split: str) -> str:
    """Return the file of a split of a :class:`SpooledCorpus`."""
    return f"{split}.parquet"


_INFO, _STATE, _DICT = "dataset_info.json", "state.json", "dataset_dict.json"


class SavedCorpus(TableCorpus):
    """A folder that ``Dataset.save_to_disk`` wrote: ``state.json`` names its ``.arrow`` files in
    order; or one such folder for each split that ``dataset_dict.json`` names."""

    kind = "hf"
    noun = "saved datasets"
    is_one_file = False
    table = ArrowTable

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        names = {*look.top.names}
        is_one = _DICT in names or {_INFO, _STATE} <= names
        return Claim(Strength.MARKED, "a sample is a row of a saved dataset") if is_one else None

    def files(self, ignored: dict[str, int]) -> Files:
        self.file_notes = []
        found: Files = []
        if not self.claim(Look(self.source)):
            return []
        if (self.source / _DICT).is_file():
            splits = [str(split) for split in _read_json(self.source / _DICT).get("splits") or ()]
            roots = [Root(split, split) for split in splits]
        else:
            split = _read_json(self.source / _STATE).get("_split")
            roots = [Root(str(split or "train"), "")]
        for root in roots:
            folder = self.source / root.base
            state = _read_json(folder / _STATE)
            names = [str(part.get("filename")) for part in state.get("_data_files") or ()]
            if state.get("_indices_data_files") or state.get("_indices_files"):
                names = ["a selection of rows, which flatten_indices() of datasets makes a table"]
            bad = [name for name in names if re.search(r"[/\0 ]|^\.*$", name)]
            if bad or not is_field_name(root.split):
                where = show_path(folder / _STATE)
                raise FormatError(f"{where} names {[*bad, root.split][0]!r}, which cannot be read")
            there = {*list_names(folder, "", frozenset({".arrow"})).names}
            refuse_missing(there.intersection(names), folder)
            for name in there.difference(names):  # of a dataset that was saved there before
                pass_over(name, ignored)
            found += [(root, join(root.base, name)) for name in names]
        self.file_notes += notes_on_splits([root.split for root in roots])
        return found

    def described(self, base: str) -> dict[str, Any]:
        path = (self.source / base).parent / _INFO
        return _read_json(path).get("features") or {} if path.is_file() else {}


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FormatError(f"{show_path(path)} is missing; save the dataset again")
    try:
        held = json.loads(read_file(path, MAX_BYTES))
        if not isinstance(held, dict):
            raise ValueError("it holds no object")
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{show_path(path)} is damaged: {error}; save it again") from error
    return held
