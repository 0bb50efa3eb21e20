"""Parquet files: one, or a folder of them. Field ``txt`` is one column, as bytes.

Splits are folders, as everywhere; or, where every file's name begins with the name of a split and
``-``, ``_`` or ``.`` (``data/train-00000-of-00002.parquet``, as on the Hugging Face hub), that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from shardkit.corpus.files import walk
from shardkit.corpus.folders import Root, find_roots
from shardkit.corpus.names import join
from shardkit.corpus.tabular import ClosedFile, Table, TableCorpus, columns_of
from shardkit.samples.sample import SPLIT_NAMES

PARQUET_EXTENSIONS = frozenset({".parquet"})

BATCH_BYTES = 8 << 20
"""About how much of a column is decoded at a time, by the mean of its row group."""

MAX_BATCH_ROWS = 4096

_SPLIT_FILE = re.compile(rf"({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})[-_.]")


class ParquetCorpus(TableCorpus):
    """Sizes are those of the column's row groups, as the footers have them, shared out evenly."""

    kind = "parquet"
    noun = "tables"
    extensions = PARQUET_EXTENSIONS
    is_one_file = True

    def files(self, ignored: dict[str, int]) -> Iterator[tuple[Root, str]]:
        if not self.source.is_dir():
            return iter([(Root("train", ""), "")])
        found = []
        for root in find_roots(self.source, PARQUET_EXTENSIONS, ignored):
            for folder in walk(self.source, root.base, PARQUET_EXTENSIONS, ignored):
                names = sorted([*folder.names, *folder.lost])
                found += [(root, join(folder.base, name)) for name in names]
        splits = splits_by_name([base for _, base in found])
        if splits is None or any(root.base for root, _ in found):
            return iter(found)
        named = zip(splits, (base for _, base in found), strict=True)
        return ((Root(split, ""), base) for split, base in sorted(named, key=lambda x: x[0]))

    def open_table(self, path: Path) -> Table:
        return _ParquetTable(path)


def splits_by_name(paths: list[str]) -> list[str] | None:
    """The split of each file by its own name; None unless every one begins with a split's."""
    found = [_SPLIT_FILE.match(path.rpartition("/")[2]) for path in paths]
    splits = [match[1] for match in found if match]
    return splits if len(splits) == len(paths) else None


class _ParquetTable:
    """A part is a row group."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        # A buffer: else a row group's whole column is read before its first page is decoded.
        self._file = parquet.ParquetFile(ClosedFile(path), buffer_size=1 << 20, pre_buffer=False)
        self.columns = columns_of(self._file.schema_arrow)
        meta = self._file.metadata
        self._rows = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
        self.starts = [*accumulate(self._rows, initial=0)][:-1]

    def sizes(self, column: str) -> list[tuple[int, int]]:
        return [(rows, self._num_bytes(i, column)) for i, rows in enumerate(self._rows)]

    def arrays(self, column: str, part: int) -> Iterator[Any]:
        mean = self._num_bytes(part, column) // max(self._rows[part], 1)
        rows = min(max(BATCH_BYTES // max(mean, 1), 1), MAX_BATCH_ROWS)
        batches = self._file.iter_batches(
            batch_size=rows, row_groups=[part], columns=[column], use_threads=False
        )
        return (batch.column(0) for batch in batches)

    def _num_bytes(self, group: int, column: str) -> int:
        chunks = self._file.metadata.row_group(group)
        sizes = [
            chunk.total_uncompressed_size
            for chunk in map(chunks.column, range(chunks.num_columns))
            if chunk.path_in_schema == column
        ]
        return max(int(sum(sizes)), 0)
