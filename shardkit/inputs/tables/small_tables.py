"""Small tables and YAML of other people, read within bounds: .csv, .jsonl, .parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, StorageError
from shardkit.inputs.files import extension, input_stamp
from shardkit.inputs.tables.table_files import ClosedFile, arrow_errors
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MAX_LINE = 16 << 20
"""Bytes of one line; a longer one is no row of a table."""

MOST_NODES = 1_000_000
"""Entries of YAML with each alias written out: a kilobyte of aliases may stand for 10^9."""

TableRow = dict[str, Any]
"""Column -> value; None, or no entry, where there is none. Cells of text tables are texts."""


def read_rows(path: Path, most: int | None = None) -> list[TableRow]:
    """Return the rows of a table: all, or the first ones.

    Raises:
        CorpusError: it cannot be read, or its rows and columns do not fit.
        StorageError: the system refused.
    """
    where = show_path(path)
    with os_errors(f"reading {where}"):
        try:
            input_stamp(path)  # raises for a FIFO, which opening would wait for
            return [*islice(_rows(path), most)]
        except (CorpusError, StorageError):
            raise
        except (ValueError, csv.Error, RecursionError) as error:
            raise CorpusError(
                f"{where} cannot be read: {error}; correct it, move it away, or choose another"
                " --corpus"
            ) from error


def _rows(path: Path) -> Iterator[TableRow]:
    ending = extension(path.name)
    if ending == ".parquet":
        with arrow_errors(path):
            from pyarrow import parquet

            file = parquet.ParquetFile(ClosedFile(path))
            _unique([(name, None) for name in file.schema_arrow.names])
            for batch in file.iter_batches(use_threads=False):
                yield from batch.to_pylist()
    elif ending == ".jsonl":
        for number, line in enumerate(_lines(path), 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_unique)
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield row
    else:
        reader = csv.reader(_lines(path), strict=True)
        header = [name.strip() for name in next(reader, [])]
        _unique([(name, None) for name in header])
        for row in filter(None, reader):
            if len(row) != len(header):
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} columns, and the header {len(header)}"
                )
            yield {name: cell or None for name, cell in zip(header, row, strict=True)}


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        coding = "utf-8-sig"
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), 1):
            if len(line) > MAX_LINE:
                raise ValueError(f"line {number} has over {MAX_LINE:,} bytes")
            yield line.decode(coding)
            coding = "utf-8"


def _unique(pairs: list[tuple[str, Any]]) -> TableRow:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return made


def load_yaml(text: str) -> Any:
    """Return what a YAML document holds.

    Raises:
        ImportError: PyYAML is not installed. ValueError: it is no YAML, or stands for too much.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is not None and _num_nodes(node, {}) > MOST_NODES:
            raise ValueError(f"its aliases stand for over {MOST_NODES:,} entries")
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())[:200]) from error
    finally:
        loader.dispose()


def _num_nodes(node: Any, known: dict[int, int]) -> int:
    """Count nodes, those behind an alias each time. Raises RecursionError for one in itself."""
    if id(node) not in known:
        parts = node.value if isinstance(node.value, list) else []
        parts = [part for each in parts for part in (each if isinstance(each, tuple) else (each,))]
        known[id(node)] = 1 + sum(_num_nodes(part, known) for part in parts)
    return known[id(node)]
