"""Tables whose cells stand between blanks, as lists in ``.txt``: what is a cell, and what a title.

A name may be followed by a label of several words (``0034309 Boeing 707``), or by a column a word
(``000001.jpg -1 1 1``), and nothing in a line tells which; so all lines are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

_REST = re.compile(r"([2-9]|[1-9][0-9]+)-")

_TITLES_OF_NAMES = re.compile(r"(?i)image|img|picture|photo|file|path|name|id$")
"""A header that begins so lacks no title for the names."""


@dataclass(frozen=True)
class Words:
    """How such a table is read.

    Attributes:
        num_cells: the last of so many holds all that follows; 0 if each word is a cell.
        num_rows: that hold something, and are not the first line's count.
        said: how many rows follow, as a first line that is nothing but a number has it.
        lacks_title: the first row is a header without a title for the names.
    """

    num_cells: int
    num_rows: int
    said: int | None = None
    lacks_title: bool = False

    def rows(self, lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
        """Where each row stands, from 1, and its cells."""
        full = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        if self.said is not None:
            next(full)
        if self.lacks_title:
            number, line = next(full)
            yield number, ["", *line.strip().split(None, max(self.num_cells - 2, -1))]
        for number, line in full:
            yield number, line.strip().split(None, max(self.num_cells - 1, -1))

    def check(self, file: Path, has_header: bool) -> None:
        """Raises CorpusError if its first line says another number of rows."""
        follow = self.num_rows - has_header
        if self.said is not None and self.said != follow:
            raise CorpusError(
                f"{show_path(file)}: its first line says that {self.said:,} rows follow, and"
                f" {follow:,} do; add the others, or correct the number"
            )


def rest_from(column: str | None) -> int | None:
    """The 2 of ``2-``, which is that column and all that follow; None of any other."""
    found = _REST.fullmatch(column or "")
    return None if found is None else int(found[1])


def survey(
    file: Path, lines: Iterable[str], column: str | None, is_name: Callable[[str], bool]
) -> Words:
    """How a table is read, by all of its lines.

    Args:
        column: that of labels, as it was given.
        is_name: whether a first word is that of a file, and its row no header.

    Raises:
        CorpusError: rows are of several numbers of words, and so would be their labels.
    """
    rows = (row for line in lines if (row := line.split()))
    first, second = next(rows, []), next(rows, [])
    said = int(first[0]) if _is_count(first, second) else None
    if said is not None:
        first, second = second, next(rows, [])
    next_name = second[0] if second else ""
    widths, num_rows, are_numbers = set(), 1, True
    while second:
        if len(second) not in widths:
            widths.add(len(second))
            are_numbers = are_numbers and all(map(is_number, second[1:]))
        num_rows += 1
        second = next(rows, [])
    rest = rest_from(column)
    if not widths or widths == {len(first)}:
        return Words(rest or 0, num_rows, said)
    has_header = not is_name(first[0]) and _shape(first[0]) != _shape(next_name)
    if has_header and widths == {len(first) + 1} and not _TITLES_OF_NAMES.search(first[0]):
        return Words(rest or 0, num_rows, said, lacks_title=True)
    if rest is not None:
        return Words(rest, num_rows, said)
    if has_header and len(first) > 2:
        return Words(0, num_rows, said)  # the row that is not as the header says is refused
    _refuse_several(file, column, are_numbers)
    return Words(2, num_rows, said)


def _shape(word: str) -> str:
    """Names that differ in digits alone have one; the first may be of a file that is elsewhere."""
    return re.sub("[0-9]+", "0", word)


def _is_count(first: list[str], second: list[str]) -> bool:
    """CelebA's lists begin with the number of their rows."""
    return len(first) == 1 and first[0].isascii() and first[0].isdigit() and len(second) > 1


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _refuse_several(file: Path, column: str | None, are_numbers: bool) -> None:
    """What follows the name is the label, unless it is a list, or somebody wants one word of it."""
    where = show_path(file)
    several = f"{where}: its rows have different numbers of words"
    if column is not None and column.isascii() and column.isdigit():
        raise CorpusError(
            f"{several}, so that the label is all that follows the name, and none of them is"
            f" column {column}; leave out :{column}"
        )
    if are_numbers:
        raise CorpusError(
            f"{several}, all of them numbers; write one label a row, or give {where}:2- if all that"
            " follows a name is one class"
        )
