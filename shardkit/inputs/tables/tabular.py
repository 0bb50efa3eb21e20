"""What the corpora made of tables share: each row is a sample, and every column a field of it.

pyarrow reads them, in batches of bounded size and of the columns that are packed. It is imported
when a file is opened: a dataset can be read without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from shardkit.errors import FormatError, SampleError
from shardkit.inputs.base import Input, Run
from shardkit.inputs.files import Reason, input_stamp
from shardkit.inputs.folders import Root, nothing_found
from shardkit.inputs.names import extension
from shardkit.inputs.tables.beside import STAMP_BITS, Beside, files_beside
from shardkit.inputs.tables.cells import Cell
from shardkit.inputs.tables.column_fit import misfit
from shardkit.inputs.tables.column_plan import make_plan
from shardkit.inputs.tables.columns import Facts, PackedColumn, TablePlan
from shardkit.inputs.tables.features import Features, in_schema
from shardkit.inputs.tables.row_reader import RowReader, at_row, samples_of
from shardkit.inputs.tables.table_facts import facts_of, refined
from shardkit.inputs.tables.table_files import Table, arrow_errors
from shardkit.inputs.tables.table_survey import Look, survey
from shardkit.inputs.whole_sets import notes_on_splits
from shardkit.samples.sample import SampleBatch
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

_REJECT = b"!"
"""Begins a locator that holds, in place of a row, why a whole file is refused."""

RUN_ROWS = 65_536

ARRAY_BYTES = 128
"""What a number or an array of numbers takes besides itself, as the ``.npy`` file that it becomes.
It counts as input, so that a shard of a million small numbers does not take more memory than one of
pictures."""


class TableCorpus(Input):
    """Rows of files of tables; a locator is the row's number in its file, and, where the row names
    a file beside the table, a colon and that file's stamp.

    A run's base is the file; where the source itself is the file, ``""``. Keys and paths carry the
    row's number, as those of lines carry an offset. Reading goes on where the last call ended.

    What each column becomes is decided by the first file of each split that is not damaged. Files
    whose columns do not fit that are rejected: nothing of them is left out without a word.
    """

    options = frozenset({"text_field", "fields"})
    _lacking: dict[str, frozenset[str]]

    def __init__(
        self,
        source: Path,
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
        tokenized: bool = False,
    ) -> None:
        self.source = source
        self._chosen = fields is not None or tokenized
        found = survey(self._looks())
        plan = None
        if found is not None:
            plan = make_plan(found.facts, found.where, fields, text_field, tokenized=tokenized)
        if tokenized and fields is None and plan is not None and plan.left_out:
            fields = [str(plan.text)]
        self._take(plan, text_field, fields)
        if found is not None and plan is not None:
            self._lacking = found.lacking
            packed = [column.name for column in plan.columns]
            self.notes = [
                *plan.notes(),
                *found.notes(packed),
                *notes_on_splits([*found.lacking]),
                *self.notes_on_files(),
            ]

    def _take(
        self, plan: TablePlan | None, text_field: str | None, fields: Sequence[str] | None
    ) -> None:
        self.ignored: dict[str, int] = {}
        self._plan = plan
        self._fields = None if fields is None else [*fields]
        self.text_field = plan.text if plan is not None else text_field
        self.classes = None if plan is None else plan.classes
        self.has_text = plan is None or plan.text is not None
        self.has_pictures = plan is not None and plan.has_pictures
        self.notes = () if plan is None else plan.notes()
        self._lacking = {}
        self._reader: RowReader | None = None

    @classmethod
    def from_spec(cls, source: Path, spec: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made.source, made._chosen = source, True
        plan = TablePlan.from_json(spec["text_field"], spec)
        made._take(plan, spec["text_field"], spec.get("fields"))
        return made

    def spec(self) -> dict[str, Any]:
        """A text alone, and a table of nothing else, has no more than ``text_field``."""
        made: dict[str, Any] = {"kind": self.kind, "text_field": self.text_field}
        if self._fields is not None:
            made["fields"] = self._fields
        return made | ({} if self._plan is None else self._plan.to_json())

    def splits(self) -> list[str]:
        return list(dict.fromkeys(root.split for root, _ in self.files({})))

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        """Every file, relative to the source; those of one split together."""
        raise NotImplementedError

    def notes_on_files(self) -> Sequence[str]:
        """What there is to say of those that were found, a line each."""
        return ()

    def open_table(self, path: Path) -> Table:
        """Open a file; raises what pyarrow raises."""
        raise NotImplementedError

    def described(self, base: str) -> Features:
        """What is said of a file's columns beside it. Raises FormatError if that is damaged."""
        return {}

    def shown(self, base: str) -> str:
        """A file, for messages."""
        return show_path(self.source / base)

    # --- what columns there are -----------------------------------------------------------

    def _looks(self) -> Iterator[Look]:
        for root, base in self.files({}):
            yield root.split, self.shown(base), partial(self._look, base)

    def _look(self, base: str) -> Facts | None:
        """None if the file is damaged: listing makes a reject of it."""
        path = self.source / base
        try:
            with os_errors(f"opening {show_path(path)}"), arrow_errors(path):
                input_stamp(path)
                facts = self._facts(self.open_table(path), base)
                return refined(facts, self.open_table(path), path)
        except FormatError:
            return None

    def _facts(self, table: Table, base: str) -> Facts:
        """What types, and Hugging Face, say of a file's columns. Raises FormatError if what that
        says is damaged."""
        own = in_schema(table.schema.metadata)
        return facts_of(table.schema, {**self.described(base), **own})

    # --- listing --------------------------------------------------------------------------

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        self._beside: set[str] = set()
        found = False
        for root, base in self.files(self.ignored):
            for run in self._file_runs(root, base):
                found = True
                yield run
        self._count_beside()
        if not found:
            raise nothing_found(f"rows of {self.kind}", self.source, self.ignored)

    def _count_beside(self) -> None:
        """Files that rows name are packed with them, and not passed over."""
        for path in self._beside:
            ending = extension(os.path.basename(path))
            if self.ignored.get(ending):
                self.ignored[ending] -= 1
        for ending in [ending for ending, count in self.ignored.items() if not count]:
            del self.ignored[ending]

    def _file_runs(self, root: Root, base: str) -> Iterator[Run]:
        path = self.source / base
        prefix = os.fsencode(root.key_base(base or self.source.name))
        with os_errors(f"listing the rows of {show_path(path)}"):
            try:
                stamp = input_stamp(path)
                with arrow_errors(path):
                    sizes, beside = self._sizes(path, root.split, base)
            except FormatError as error:
                reason = _REJECT + os.fsencode(str(error))
                yield Run(root.split, base, None, [reason], [prefix], [0], [0])
                return
        for start, run_sizes in _run_sizes(sizes):
            rows = range(start, start + len(run_sizes))
            run = Run(
                split=root.split,
                base=base,
                locators=[b"%d" % row for row in rows],
                keys=[b"%s/%012d" % (prefix, row) for row in rows],
                sizes=run_sizes,
                stamps=[stamp] * len(rows),
            )
            _add_beside(run, start, beside)
            yield run

    def _sizes(
        self, path: Path, split: str, base: str
    ) -> tuple[list[tuple[int, int]], dict[int, tuple[int, int]]]:
        """Pieces as of :meth:`Table.sizes`, and row -> (bytes, stamp) of the files beside it."""
        table = self.open_table(path)
        facts = self._facts(table, base)
        if self._plan is None:
            raise FormatError("was damaged when its columns were looked at; run it again")
        lacking = self._lacking.get(split, frozenset())
        problem = misfit(self._plan, facts, lacking, all_chosen=not self._chosen)
        if problem is not None:
            raise FormatError(problem)
        columns = columns_there(self._plan.columns, table)
        arrays = sum(column.how in ("number", "array") for column in columns) * ARRAY_BYTES
        sizes = [
            (rows, num_bytes + arrays * rows)
            for rows, num_bytes in table.sizes([column.name for column in columns])
        ]
        beside = Beside(self.source, base)
        found = files_beside(table, columns, beside)
        self._beside |= beside.measured
        return sizes, found

    # --- reading --------------------------------------------------------------------------

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        name = os.fsencode(run.base or self.source.name)
        if run.locators and run.locators[0].startswith(_REJECT):
            reason = os.fsdecode(run.locators[0].removeprefix(_REJECT))
            return SampleBatch(rejects=[(os.fsdecode(name), reason)])
        return samples_of(run, name, self._rows(run))

    def entry_name(self, run: Run, i: int) -> str:
        return at_row(os.fsencode(run.base or self.source.name), run.locators[i].partition(b":")[0])

    def _rows(self, run: Run) -> Iterator[list[Cell] | Reason]:
        """The cells of each row, or why there are none."""
        if not run.locators:
            return
        with os_errors(f"reading {show_path(self.source / run.base)}"):
            try:
                reader = self._reader_of(run)
            except (SampleError, FormatError) as error:
                yield from [str(error)] * len(run)
                return
            for locator in run.locators:
                yield _cells_or_reason(reader, int(locator.partition(b":")[0]))

    def _reader_of(self, run: Run) -> RowReader:
        """The reader of the run's file, kept while it is the same file."""
        path = self.source / run.base
        stamp = input_stamp(path)
        added = int(run.locators[0].partition(b":")[2] or 0)
        if (stamp + added) & STAMP_BITS != run.stamps[0]:
            raise SampleError("the file changed while packing")
        made_of = run.base, stamp
        if self._reader is None or self._reader.made_of != made_of:
            self._reader = None
            with arrow_errors(path):
                table = self.open_table(path)
            columns = columns_there(() if self._plan is None else self._plan.columns, table)
            beside = Beside(self.source, run.base)
            self._reader = RowReader(made_of, path, table, columns, beside)
        return self._reader


def _cells_or_reason(reader: RowReader, row: int) -> list[Cell] | Reason:
    try:
        return reader.cells(row)
    except (SampleError, FormatError) as error:
        return str(error)


def columns_there(columns: Sequence[PackedColumn], table: Table) -> list[PackedColumn]:
    """Those that the table has: a split may lack some."""
    names = {*table.schema.names}
    return [column for column in columns if column.name in names]


def _add_beside(run: Run, start: int, beside: dict[int, tuple[int, int]]) -> None:
    for row in beside.keys() & set(range(start, start + len(run))) if beside else ():
        (size, stamp), i = beside[row], row - start
        run.locators[i] = b"%d:%d" % (row, stamp)
        run.sizes[i] += size
        run.stamps[i] = (run.stamps[i] + stamp) & STAMP_BITS


def _run_sizes(pieces: list[tuple[int, int]]) -> Iterator[tuple[int, list[int]]]:
    """(first row, bytes of each row) of runs: the rows of a piece count alike."""
    start = 0
    for num_rows, num_bytes in pieces:
        for left in range(num_rows, 0, -RUN_ROWS):
            count = min(left, RUN_ROWS)
            yield start, [num_bytes // num_rows] * count
            start += count
