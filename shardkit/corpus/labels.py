"""``--labels``: class labels from a file, where folders do not say."""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Any

from shardkit.corpus.label_names import Folder, Labels, fitting_names
from shardkit.corpus.label_tables import (
    TABLE_ENDINGS,
    Columns,
    Row,
    choose_columns,
    read_rows,
    split_option,
)
from shardkit.corpus.names import extension, join
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

_BREAKS = re.compile("[\\n\\r\\0]")

HEAD_ROWS = 64
"""By which the columns of a table are told; all rows, if none of these is of a file."""


def read_labels(given: str, folders: Iterable[Folder], extensions: frozenset[str]) -> Labels:
    """The labels of the files in some folders, by ``FILE`` or ``FILE:COLUMN``.

    A first row that names no file is a header, if it has none of the ``extensions`` of files.

    Raises:
        CorpusError: it cannot be read, or is no such file, or does not fit the files.
    """
    file, column = split_option(given)
    where = show_path(file)
    kind = extension(file.name)
    if kind not in TABLE_ENDINGS:
        raise CorpusError(
            f"{where}: labels must be a {', '.join(TABLE_ENDINGS)} file of path,label"
        )
    try:
        head = [row for _, row in islice(read_rows(file), HEAD_ROWS)]
        if not head:
            raise CorpusError(f"{where} holds no labels")
        listed = [*folders]
        columns = _columns(file, column, head, listed, extensions)
        labels = _collect(read_rows(file), columns, where)
    except CorpusError:
        raise
    except OSError as error:
        raise CorpusError(f"{where} cannot be read: {error.strerror}") from error
    except (csv.Error, ValueError, RecursionError) as error:
        raise CorpusError(f"{where} is no {kind} file: {error}") from error
    if not labels:
        raise CorpusError(f"{where} holds no labels")
    made = Labels(labels, where if column is None else f"{where}:{column}")
    made.check(listed)
    return made


def _columns(
    file: Path,
    column: str | None,
    head: Sequence[Sequence[Any]],
    folders: Sequence[Folder],
    extensions: frozenset[str],
) -> Columns:
    def fitting(cells: Set[str]) -> Set[str]:
        return fitting_names(cells, folders)

    found = choose_columns(file, column, head, fitting, extensions)
    if found is None and len(head) == HEAD_ROWS:
        head = [row for _, row in read_rows(file)]
        found = choose_columns(file, column, head, fitting, extensions)
    if found is not None:
        return found
    paths = (join(base, name) for _, base, names in folders for name in names)
    first = next(paths, "")
    got = ",".join(str(cell) for cell in head[-1])[:100]
    raise CorpusError(
        f"{show_path(file)} has no label for any of the files, the first of them"
        f" {show_path(first)}: none of its columns names one, as in {got!r}; a column must hold"
        " paths relative to the source or bare file names, with their endings or without"
    )


def _collect(rows: Iterator[Row], columns: Columns, where: str) -> dict[str, str]:
    """Path -> label. Raises CorpusError for a row of other columns, or with another label."""
    labels: dict[str, str] = {}
    names, at, count = columns.names, columns.label, columns.count
    normalized = posixpath.normpath
    if columns.has_header:
        next(rows)
    for number, row in rows:
        if len(row) != count:
            raise CorpusError(
                f"{where}: entry {number} has {len(row)} columns, expected {count} as in the first"
            )
        raw = row[at]
        label = raw.strip() if isinstance(raw, str) else _number(raw, f"{where}: entry {number}")
        if not label:
            raise CorpusError(f"{where}: entry {number}: the label is empty")
        path = normalized(row[names])
        if labels.setdefault(path, label) != label:
            raise CorpusError(
                f"{where}: entry {number} labels {show_path(path)} {label!r}, an earlier one"
                f" {labels[path]!r}; keep one"
            )
    for text in (*labels, *{*labels.values()}):
        if not text.isprintable() and _BREAKS.search(text):
            raise CorpusError(
                f"{where}: {text[:60]!r} has a line break in it; a quote before it is not closed"
            )
    return labels


def _number(raw: Any, where: str) -> str:
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise CorpusError(f"{where}: a label must be a number or a name, got {raw!r:.40}")
    return str(raw)
