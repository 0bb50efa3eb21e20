"""Which column of a table names files, and which holds their labels."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.label_tables import Row, option
from shardkit.inputs.label_words import rest_from
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path

MOST_COLUMNS = 12
"""Named in a message; one-hot tables have a column a class."""

_USUAL_WORDS = (
    *("label", "labels", "class", "category", "species", "breed", "target", "diagnosis", "dx"),
    "name",
)
"""Of the titles of labels, the likeliest first."""


@dataclass(frozen=True)
class Head:
    """The first rows of a table.

    Attributes:
        column: that of labels, by its title or its number from 1, or several as ``2-``.
        is_of_words: its cells stand between blanks.
    """

    file: Path
    column: str | None
    entries: Sequence[Row]
    is_of_words: bool


@dataclass(frozen=True)
class Columns:
    """Which column names files, which holds their labels, of how many; and whether the first row is
    a header."""

    names: int
    label: int
    count: int
    has_header: bool


def choose_columns(
    head: Head, fitting: Callable[[Set[str]], Set[str]], extensions: frozenset[str]
) -> Columns | None:
    """The columns of a table by some first rows; None if none of their cells names a file.

    Args:
        fitting: those of some cells that name a file.
        extensions: endings of files; a first row without one, that names none, is a header.

    Raises:
        CorpusError: it has other columns, or several of names; or which of many holds the labels
            was not said.
    """
    column, rows = head.column, [row for _, row in head.entries]
    count = len(rows[0])
    if count < 2:
        raise CorpusError(
            f"{show_path(head.file)}: entry 1 has {count} columns, expected path,label or more"
        )
    whole = [row for row in rows if len(row) == count]  # the others are refused when they are read
    as_data = _index_of(column, whole[0], head.is_of_words, is_data=True)
    as_titles = _index_of(column, whole[0], head.is_of_words, is_data=False)
    label = as_titles if as_data in (None, as_titles) else None
    cells = [{posixpath.normpath(str(row[i])) for row in whole} for i in range(count)]
    fit = fitting({cell for i, own in enumerate(cells) if i != label for cell in own})
    names = _names_column(head.file, whole, [own & fit for own in cells], label)
    if names is None:
        if label is not None and fitting(cells[label]):
            raise _is_of_names(head, str(whole[-1][label]))
        return None
    is_json = extension(head.file.name) == ".json"
    is_data = is_json or _is_data(whole, names, fit, extensions)
    label = as_data if is_data else as_titles
    if label == names:
        raise _is_of_names(head, str(whole[-1][names]))
    if column is None and count == 2:
        return Columns(names, 1 - names, count, not is_data)
    if label is None or (is_data and not _is_position(column) and not rest_from(column)):
        refuse_several(head.file, ((i, row[names]) for i, row in head.entries if len(row) == count))
        raise CorpusError(_which(head, whole, names, is_data))
    return Columns(names, label, count, not is_data)


def _is_of_names(head: Head, name: str) -> CorpusError:
    return CorpusError(
        f"{show_path(head.file)}: column {head.column!r} is the one that names files, as {name!r};"
        " say which holds the labels"
    )


def refuse_several(file: Path, names: Iterable[tuple[int, Any]]) -> None:
    """Raise CorpusError if a file has several rows, as pictures of several boxes have."""
    first: dict[str, int] = {}
    for i, name in names:
        if first.setdefault(str(name), i) != i:
            raise CorpusError(
                f"{show_path(file)} has several rows for one file, the first of them"
                f" {show_path(str(name))} (entries {first[str(name)]} and {i}); write one row a"
                " file"
            )


def titles_of(first: Sequence[Any], is_header: bool) -> list[str]:
    """What the columns are called: by their header, or by their number."""
    return [str(cell).strip() if is_header else str(i) for i, cell in enumerate(first, 1)]


def likeliest(titles: Sequence[str], rows: Sequence[Sequence[Any]], names: int) -> str:
    """The column to show as an example of one of labels: by its title, or for repeating its values.

    Args:
        rows: some of them, without the header.
        names: the column of names.
    """
    others = [i for i in range(len(titles)) if i != names]
    words = {i: re.findall("[A-Z]+(?![a-z])|[A-Z]?[a-z]+", titles[i]) for i in others}
    for usual in _USUAL_WORDS:
        for i in others:
            if usual in (word.lower() for word in words[i]):
                return _called(titles, i)
    counts = {i: len({str(row[i]) for row in rows if len(row) > i}) for i in others}
    return _called(titles, min(others, key=lambda i: (counts[i] < 2, counts[i])))


def _called(titles: Sequence[str], i: int) -> str:
    """A column's title, if it is the only one of it, or its number."""
    return titles[i] if titles[i] and titles.count(titles[i]) == 1 else str(i + 1)


def _is_position(column: str | None) -> bool:
    return column is not None and column.isascii() and column.isdigit()


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


def _index_of(
    column: str | None, first: Sequence[Any], is_of_words: bool, is_data: bool
) -> int | None:
    """Which column is meant, by its title, if the first row is a header, or by its number."""
    if column is None:
        return None
    titles = [] if is_data else titles_of(first, True)
    if titles.count(column) == 1:
        return titles.index(column)
    if is_of_words and rest_from(column) is not None:
        return len(first) - 1  # its rows are cut so that the last cell is all that follows
    if _is_position(column) and column not in titles and 0 < int(column) <= len(first):
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
        return _of_two(file, found, counts)
    best = counts.index(max(counts))
    others = [i for i, n in enumerate(counts) if i != best and 2 * n > counts[best]]
    if others and any(row[others[0]] != row[best] for row in rows):
        a, b = (repr(str(rows[0][i]).strip()) for i in sorted((best, others[0])))
        raise CorpusError(
            f"{show_path(file)}: columns {a} and {b} both name files; leave out the one that is not"
            " to be followed, in a copy"
        )
    return best


def _of_two(file: Path, found: Sequence[Set[str]], counts: Sequence[int]) -> int:
    """Which of two columns names files. Labels that are numbers may be names without their endings,
    too: then those with endings do, or the one with twice as many."""
    if not all(counts):
        return counts.index(max(counts))
    ends = [sum(bool(extension(cell)) for cell in own) for own in found]
    for own in (ends, counts):
        if max(own) >= 2 * min(own) and max(own):
            return own.index(max(own))
    raise CorpusError(
        f"{show_path(file)}: both columns name files; say which holds the labels, as in"
        f" {option(file, '2')}"
    )


def _which(head: Head, rows: Sequence[Sequence[Any]], names: int, is_data: bool) -> str:
    """That a column must be chosen, and how."""
    titles = titles_of(rows[0], not is_data)
    others = [i for i in range(len(titles)) if i != names]
    shown = [titles[i] + (f" ({rows[0][i]})" if is_data else "") for i in others]
    listed = ", ".join(show_path(title) for title in shown[:MOST_COLUMNS])
    listed += ", ..." * (len(shown) > MOST_COLUMNS)
    had = f"{len(titles)} columns" if head.column is None else f"no one column {head.column!r}"
    why = ", and no header" if is_data else ""
    example = likeliest(titles, rows if is_data else rows[1:], names)
    as_in = f", as in {option(head.file, None if len(titles) == 2 else example)}"
    if head.is_of_words and is_data and names == 0 and len(titles) > 2:
        rest = show_path(" ".join(map(str, rows[0][1:])))
        as_in = (
            f": {option(head.file, '2-')} if the label is all that follows the name ({rest}), or"
            f" {option(head.file, '2')} or another if it is a word ({rows[0][1]})"
        )
    return (
        f"{show_path(head.file)} has {had}{why}; say which holds the labels{as_in}; there"
        f" are {listed}"
    )
