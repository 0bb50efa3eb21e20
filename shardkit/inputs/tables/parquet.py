"""Parquet files: one, or a folder of them; each column is a field.

Splits are folders, as everywhere, or what the files' paths say:
:mod:`shardkit.inputs.tables.table_splits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.endings import PARQUET_EXTENSIONS
from shardkit.inputs.files import walk
from shardkit.inputs.folders import Root, find_roots
from shardkit.inputs.names import join
from shardkit.inputs.tables.features import Features, of_hub
from shardkit.inputs.tables.hub_card import HubCard, Told, agree, keep_told, root_of_hub
from shardkit.inputs.tables.hub_configs import refuse_configs_in_folders
from shardkit.inputs.tables.table_files import ClosedFile, Table
from shardkit.inputs.tables.table_splits import splits_of_paths
from shardkit.inputs.tables.tabular import TableCorpus
from shardkit.inputs.whole_sets import refuse_missing
from shardkit.system.paths import show_path

BATCH_BYTES = 8 << 20
"""About how much of the columns is decoded at a time, by the mean of their row group."""

MAX_BATCH_ROWS = 4096


class ParquetCorpus(TableCorpus):
    """Sizes are those of the columns' row groups, as the footers have them, shared out evenly."""

    kind = "parquet"
    noun = "tables"
    extensions = PARQUET_EXTENSIONS
    is_one_file = True
    _described: Features | None = None
    _card: HubCard | None = None

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        if not self.source.is_dir():
            return iter([(Root("train", ""), "")])
        found: dict[str, Root] = {}
        for root in find_roots(self.source, PARQUET_EXTENSIONS, ignored):
            for folder in walk(self.source, root.base, PARQUET_EXTENSIONS, ignored):
                _refuse_log(self.source / folder.base)
                names = sorted([*folder.names, *folder.lost])
                found |= {join(folder.base, name): root for name in names}
        told = self._hub_card().told([*found])
        if told is None and not any(root.base for root in found.values()):
            refuse_configs_in_folders([*found], self.source)
        told = keep_told(found, told, ignored)
        refuse_missing(found, self.source)
        return iter(self._in_splits(found, told))

    def _hub_card(self) -> HubCard:
        self._card = self._card or HubCard(self.source, PARQUET_EXTENSIONS)
        return self._card

    def _in_splits(self, found: Mapping[str, Root], told: Told) -> list[tuple[Root, str]]:
        """Each file in the split that the card says, or else the folders at the top, or its
        path."""
        if agree(found, told):
            return [(root, base) for base, root in found.items()]
        bases = [*found]
        splits = [told[base] for base in bases]
        if not all(splits):
            splits = splits_of_paths(bases, self.source)
        named = sorted(zip(splits, bases, strict=True), key=lambda pair: pair[0])
        return [(Root(split, ""), base) for split, base in named]

    def notes_on_files(self) -> Sequence[str]:
        return [] if self._card is None else self._card.notes

    def open_table(self, path: Path) -> Table:
        return _ParquetTable(path)

    def described(self, base: str) -> Features:
        """What the card of a dataset of the hub says, be its root or ``data/`` the source."""
        if self._described is None:
            folder = self.source if self.source.is_dir() else self.source.parent
            root, _ = root_of_hub(folder)
            above = of_hub(root) if root != folder else {}
            self._described = {**above, **of_hub(folder)}
        return self._described


_LOGS = {
    "_delta_log": "deltalake.DeltaTable({!r}).to_pyarrow_table()",
    "metadata/*.metadata.json": "pyiceberg.table.StaticTable.from_metadata({!r}).scan().to_arrow()",
    ".hoodie": "pyarrow.Table.from_batches("
    "hudi.HudiTableBuilder.from_base_uri({!r}).build().read_snapshot())",
}
"""What Delta Lake, Iceberg and Hudi keep beside a table's files -> what reads such a table."""


def _refuse_log(folder: Path) -> None:
    """Raise CorpusError if a log says which files in a folder are of its table: others there are
    older versions."""
    for pattern, reader in _LOGS.items():
        logs = folder.glob(pattern)
        log = max(logs, key=lambda each: (len(each.name), each.name), default=None)
        if log is not None:
            path = log if log.suffix == ".json" else folder
            raise CorpusError(
                f"{show_path(folder)} is a table whose log, {show_path(log.relative_to(folder))},"
                " says which of the files there are part of it, and others are older rows; read it"
                f" by its own library: shardkit.pack({reader.format(str(path))}, DEST, to=...)"
            )


class _ParquetTable:
    """A part is a row group."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        # A buffer: else a row group's whole column is read before its first page is decoded.
        self._file = parquet.ParquetFile(ClosedFile(path), buffer_size=1 << 20, pre_buffer=False)
        self.schema = self._file.schema_arrow
        meta = self._file.metadata
        self._rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        self.starts = [*accumulate(self._rows, initial=0)][:-1]

    def sizes(self, columns: Sequence[str]) -> list[tuple[int, int]]:
        return [(rows, self._num_bytes(i, columns)) for i, rows in enumerate(self._rows)]

    def batches(self, columns: Sequence[str], part: int) -> Iterator[Any]:
        mean = self._num_bytes(part, columns) // max(self._rows[part], 1)
        rows = min(max(BATCH_BYTES // max(mean, 1), 1), MAX_BATCH_ROWS)
        batches: Iterator[Any] = self._file.iter_batches(
            batch_size=rows, row_groups=[part], columns=[*columns], use_threads=False
        )
        return batches

    def paths(self, column: str, part: int) -> Iterator[Any]:
        chunks = [
            chunk
            for chunk in self._chunks(part, [column])
            if chunk.path_in_schema == f"{column}.bytes"
        ]
        if chunks and all(map(_has_no_nulls, chunks)):
            return
        for batch in self.batches([f"{column}.path"], part):
            at = batch.schema.get_field_index(column)
            if at >= 0:
                yield batch.column(at)

    def _num_bytes(self, group: int, columns: Sequence[str]) -> int:
        sizes = [chunk.total_uncompressed_size for chunk in self._chunks(group, columns)]
        return max(int(sum(sizes)), 0)

    def _chunks(self, group: int, columns: Sequence[str]) -> Iterator[Any]:
        """Those of the leaves of these columns."""
        chunks = self._file.metadata.row_group(group)
        starts = tuple(f"{column}." for column in columns)
        for chunk in map(chunks.column, range(chunks.num_columns)):
            path = chunk.path_in_schema
            if path in columns or path.startswith(starts):
                yield chunk


def _has_no_nulls(chunk: Any) -> bool:
    counts = chunk.statistics
    return counts is not None and bool(counts.has_null_count) and counts.null_count == 0


SPOOL_ENDING = ".parquet"


class SpooledCorpus(ParquetCorpus):
    """The rows of splits that were written into files for the time of one pack:
    ``{split}.parquet`` each, in one folder."""

    def __init__(
        self,
        source: Path,
        splits: Sequence[str],
        text_field: str | None = None,
        fields: Sequence[str] | None = None,
        tokenized: bool = False,
    ) -> None:
        self._splits = splits
        super().__init__(source, text_field, fields, tokenized)

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        return ((Root(split, ""), spool_name(split)) for split in self._splits)

    def described(self, base: str) -> Features:
        return {}

    def shown(self, base: str) -> str:
        return f"split {base.removesuffix(SPOOL_ENDING)!r}"


def spool_name(split: str) -> str:
    """The file of a split of a :class:`SpooledCorpus`."""
    return split + SPOOL_ENDING
