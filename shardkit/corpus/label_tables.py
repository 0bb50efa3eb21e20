"""Tables that name files, as people have them: how they are split into cells, and which columns
they have. ``.csv``, ``.tsv``, ``.txt`` and ``.json``, with a header or without.
"""

from __future__ import annotations

import csv
import json
import posixpath
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Any

from shardkit.corpus.names import extension
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".json")

MOST_COLUMNS = 12
"""Named in a message; one-hot tables have a column a class."""

_USUAL_TITLES = frozenset({"label", "labels", "class", "category", "target", "diagnosis", "dx"})

_DELIMITERS = {".csv": ",\t;", ".tsv": "\t", ".txt": "\t,;"}
"""Looked for in the first line, in this order; the cells of a .txt without one stand between
blanks."""

Row = tuple[int, Sequence[Any]]
"""Where it stands in the file, from 1, and its cells."""


@dataclass(frozen=True)
class Columns:
    """Which column names files, which holds their labels, of how many; and whether the first row is
    a header."""

    names: int
    label: int
    count: int
    has_header: bool


def split_option(given: str) -> tuple[Path, str | None]:
    """The file and the column of ``FILE:COLUMN``; a file that has a colon in its path is itself."""
    parts = given.split(":")
    cuts = [(":".join(parts[:i]), ":".join(parts[i:])) for i in range(len(parts), 0, -1)]
    there = [cut for cut in cuts if isfile(cut[0])]
    named = [cut for cut in cuts if extension(cut[0]) in TABLE_ENDINGS]
    file, column = [*there, *named, cuts[0]][0]
    return Path(file), column if len(file) < len(given) else None


def option(file: Path, column: str | None = None) -> str:
    """``--labels`` for a file, as a shell takes it."""
    text = show_path(file) if column is None else f"{show_path(file)}:{column}"
    return f"--labels {shlex.quote(text)}"


# --- rows ---------------------------------------------------------------------------------


def read_rows(file: Path) -> Iterator[Row]:
    """All rows that hold something, a header too.

    Raises:
        OSError, csv.Error, ValueError, RecursionError: it cannot be read, or is no such file.
    """
    ending = extension(file.name)
    with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
        if ending == ".json":
            yield from _json_rows(lines.read())
            return
        first = next((line for line in lines if line.strip()), "")
        lines.seek(0)
        yield from (
            (number, row) for number, row in enumerate(split_lines(lines, first, ending), 1) if row
        )


def split_lines(lines: Iterable[str], first: str, ending: str) -> Iterator[list[str]]:
    """The cells of each line of a table, whose first line tells what stands between them."""
    delimiter = next((sign for sign in _DELIMITERS[ending] if sign in first), "")
    if not delimiter and ending == ".txt":
        return (line.split() for line in lines)
    return csv.reader(lines, delimiter=delimiter or _DELIMITERS[ending][0])


def _json_rows(text: str) -> Iterator[Row]:
    pairs = json.loads(text, object_pairs_hook=_Pairs)
    if not isinstance(pairs, _Pairs):
        raise ValueError("expected one JSON object of path: label")
    return ((number, pair) for number, pair in enumerate(pairs, 1))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object whose repeated keys are not lost."""


# --- columns ------------------------------------------------------------------------------


def choose_columns(
    file: Path,
    column: str | None,
    rows: Sequence[Sequence[Any]],
    fitting: Callable[[Set[str]], Set[str]],
    extensions: frozenset[str],
) -> Columns | None:
    """The columns of a table by some first rows; None if none of their cells names a file.

    Args:
        column: that of labels, by its title or its number from 1.
        fitting: those of some cells that name a file.
        extensions: endings of files; a first row without one, that names none, is a header.

    Raises:
        CorpusError: it has other columns, or several of names; or which of many holds the labels
            was not said.
    """
    count = len(rows[0])
    if count < 2:
        raise CorpusError(
            f"{show_path(file)}: entry 1 has {count} columns, expected path,label or more"
        )
    whole = [row for row in rows if len(row) == count]  # the others are refused when they are read
    label = None if column is None else _index_of(column, whole[0])
    cells = [{posixpath.normpath(str(row[i])) for row in whole} for i in range(count)]
    fit = fitting({cell for i, own in enumerate(cells) if i != label for cell in own})
    names = _names_column(file, whole, [own & fit for own in cells], label)
    if names is None:
        return None
    is_data = extension(file.name) == ".json" or _is_data(whole, names, fit, extensions)
    titles = titles_of(whole[0], not is_data)
    if column is None and count == 2:
        return Columns(names, 1 - names, count, not is_data)
    if label is None or (is_data and not column_is_number(column)):
        raise CorpusError(_which(file, column, titles, names, whole[0], is_data))
    return Columns(names, label, count, not is_data)


def _is_data(
    rows: Sequence[Sequence[Any]], names: int, fit: Set[str], extensions: frozenset[str]
) -> bool:
    """Whether the first row is no header: it names a file, or has the ending of one.

    Where the others have endings, ``image`` is a title, though there be an ``image.jpg``.
    """
    first, *others = (posixpath.normpath(str(row[names])) for row in rows)
    found = {extension(cell) for cell in others if cell in fit}
    if extension(first.strip()) in (extensions | found) - {""}:
        return True
    return first in fit and not (found and found <= extensions)


def titles_of(first: Sequence[Any], is_header: bool) -> list[str]:
    """What the columns are called: by their header, or by their number."""
    return [str(cell).strip() if is_header else str(i) for i, cell in enumerate(first, 1)]


def likeliest(titles: Sequence[str]) -> str:
    """The column to show as an example of one of labels."""
    return next((title for title in titles if title.lower() in _USUAL_TITLES), titles[0])


def column_is_number(column: str | None) -> bool:
    return column is not None and column.isascii() and column.isdigit()


def _index_of(column: str, first: Sequence[Any]) -> int | None:
    titles = titles_of(first, True)
    if titles.count(column) == 1:
        return titles.index(column)
    if column_is_number(column) and column not in titles and 0 < int(column) <= len(first):
        return int(column) - 1
    return None


def _names_column(
    file: Path, rows: Sequence[Sequence[Any]], found: Sequence[Set[str]], label: int | None
) -> int | None:
    """The column of which most cells, those that are alike counted once, name files."""
    counts = [0 if i == label else len(own) for i, own in enumerate(found)]
    if not any(counts):
        return None
    if len(counts) == 2:
        return 0 if counts[0] else 1
    best = counts.index(max(counts))
    others = [i for i, n in enumerate(counts) if i != best and 2 * n > counts[best]]
    if others and any(row[others[0]] != row[best] for row in rows):
        a, b = (repr(str(rows[0][i]).strip()) for i in sorted((best, others[0])))
        raise CorpusError(
            f"{show_path(file)}: columns {a} and {b} both name files; leave out the one that is not"
            " to be followed, in a copy"
        )
    return best


def _which(
    file: Path,
    column: str | None,
    titles: Sequence[str],
    names: int,
    first: Sequence[Any],
    is_data: bool,
) -> str:
    """That a column must be chosen, and how."""
    others = [i for i in range(len(titles)) if i != names]
    shown = [titles[i] + (f" ({first[i]})" if is_data else "") for i in others]
    listed = ", ".join(show_path(title) for title in shown[:MOST_COLUMNS])
    listed += ", ..." * (len(shown) > MOST_COLUMNS)
    had = f"has {len(titles)} columns" if column is None else f"has no one column {column!r}"
    why = ", and no header" if is_data else ""
    return (
        f"{show_path(file)} {had}{why}; say which holds the labels, as in"
        f" {option(file, likeliest([titles[i] for i in others]))}; there are {listed}"
    )
