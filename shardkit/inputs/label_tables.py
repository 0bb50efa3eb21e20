"""Tables that name files, as people have them, and how they are split into cells: ``.csv``,
``.tsv``, ``.txt`` and ``.json``, with a header or without."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from os.path import isfile
from pathlib import Path
from typing import IO, Any

from shardkit.inputs.label_words import Words, survey
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path

TABLE_ENDINGS = (".csv", ".tsv", ".txt", ".json")

_DELIMITERS = {".csv": ",\t;", ".tsv": "\t", ".txt": "\t,;"}
"""Looked for in the first line, in this order; the cells of a .txt without one stand between
blanks."""

Row = tuple[int, Sequence[Any]]
"""Where it stands in the file, from 1, and its cells."""


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


def find_words(
    file: Path, column: str | None, is_name: Callable[[str], bool], head: str | None = None
) -> Words | None:
    """How a ``.txt`` whose cells stand between blanks is read; None of other tables.

    ``head``: its beginning, to look at instead of the file.

    Raises:
        OSError: it cannot be read.
        CorpusError: as of :func:`shardkit.inputs.label_words.survey`.
    """
    if extension(file.name) != ".txt":
        return None
    with _open(file) if head is None else io.StringIO(head) as lines:
        first = next((line for line in lines if line.strip()), "")
        lines.seek(0)
        return None if _delimiter(first, ".txt") else survey(file, lines, column, is_name)


def read_rows(file: Path, words: Words | None) -> Iterator[Row]:
    """All rows that hold something, a header too.

    Raises:
        OSError, csv.Error, ValueError, RecursionError: it cannot be read, or is no such file.
    """
    ending = extension(file.name)
    with _open(file) as lines:
        if ending == ".json":
            yield from _json_rows(lines.read())
            return
        first = next((line for line in lines if line.strip()), "")
        lines.seek(0)
        yield from split_lines(lines, first, ending, words)


def split_lines(
    lines: Iterable[str], first: str, ending: str, words: Words | None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table, whose first line tells what stands between their cells."""
    if words is not None:
        return words.rows(lines)
    rows = csv.reader(lines, delimiter=_delimiter(first, ending) or _DELIMITERS[ending][0])
    return ((number, row) for number, row in enumerate(rows, 1) if row)


def _delimiter(first: str, ending: str) -> str:
    return next((sign for sign in _DELIMITERS[ending] if sign in first), "")


def _open(file: Path) -> IO[str]:
    return file.open(newline="", encoding="utf-8-sig", errors="surrogateescape")


def _json_rows(text: str) -> Iterator[Row]:
    pairs = json.loads(text, object_pairs_hook=_Pairs)
    if not isinstance(pairs, _Pairs):
        raise ValueError("expected one JSON object of path: label")
    return ((number, pair) for number, pair in enumerate(pairs, 1))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object whose repeated keys are not lost."""
