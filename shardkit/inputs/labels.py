"""``--labels``: class labels from a file, where folders do not say."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.label_columns import Columns, Head, choose_columns
from shardkit.inputs.label_names import Folder, Labels, fitting_names
from shardkit.inputs.label_paths import Spelling, guess_spelling
from shardkit.inputs.label_tables import TABLE_ENDINGS, Row, find_words, read_rows, split_option
from shardkit.inputs.label_words import Words
from shardkit.inputs.names import extension, join
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
        listed = [*folders]

        def is_name(word: str) -> bool:
            return extension(word) in extensions - {""} or bool(fitting_names({word}, listed))

        words = find_words(file, column, is_name)
        columns, spelling = _columns(file, column, words, listed, extensions)
        if words is not None:
            words.check(file, columns.has_header)
        labels = _collect(read_rows(file, words), columns, spelling, file)
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
    if spelling.below:
        made.notes.append(f"paths in {where} are those below {show_path(spelling.below)}")
    if spelling.above:
        made.notes.append(f"paths in {where} are taken without {show_path(spelling.above)}")
    return made


def _columns(
    file: Path,
    column: str | None,
    words: Words | None,
    folders: Sequence[Folder],
    extensions: frozenset[str],
) -> tuple[Columns, Spelling]:
    """Raises CorpusError if none of them names a file, in any way."""

    def find(spelling: Spelling | None) -> Columns | None:
        if spelling is None:
            return None
        own = Head(file, column, head, words is not None)
        return choose_columns(own, lambda cells: spelling.fitting(cells, folders), extensions)

    head: list[Row] = []
    for most in (HEAD_ROWS, None):
        head = [*islice(read_rows(file, words), most)]
        if not head:
            raise CorpusError(f"{show_path(file)} holds no labels")
        found = find(Spelling())
        if found is not None:
            return found, Spelling()
        if len(head) < HEAD_ROWS:
            break
    other = guess_spelling(file, {str(cell) for _, row in head for cell in row}, folders)
    if other is not None and (found := find(other)) is not None:
        return found, other
    raise CorpusError(_no_name(file, head[-1][1], folders))


def _no_name(file: Path, last: Sequence[Any], folders: Sequence[Folder]) -> str:
    paths = (join(base, name) for _, base, names in folders for name in names)
    first = next(paths, "")
    got = ",".join(str(cell) for cell in last)[:100]
    return (
        f"{show_path(file)} has no label for any of the files, the first of them"
        f" {show_path(first)}: none of its columns names one, as in {got!r}; a column must hold"
        " paths relative to the source or bare file names, with their endings or without"
    )


def _collect(
    rows: Iterator[Row], columns: Columns, spelling: Spelling, file: Path
) -> dict[str, str]:
    """Path -> label. Raises CorpusError for a row of other columns, or with another label."""
    where = show_path(file)
    labels: dict[str, str] = {}
    names, at, count = columns.names, columns.label, columns.count
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
        path = spelling.path(row[names])
        if labels.setdefault(path, label) != label:
            raise CorpusError(
                f"{where} has several rows for one file: entry {number} labels {show_path(path)}"
                f" {label!r}, an earlier one {labels[path]!r}; write one row a file"
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
