"""Files beside samples that look like their labels, and that nobody asked for: what to say of them.

``train.csv`` beside ``train_images/`` is passed over like any file of another kind, and a dataset
without its labels looks whole. Only the first lines of a few files are read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import isfile
from pathlib import Path

from shardkit.corpus.folders import peek
from shardkit.corpus.label_tables import (
    MOST_COLUMNS,
    TABLE_ENDINGS,
    likeliest,
    option,
    split_lines,
    titles_of,
)
from shardkit.corpus.names import extension, join
from shardkit.system.paths import first_few, show_path

LABEL_ENDINGS = frozenset(TABLE_ENDINGS)

MAX_FILES = 16
"""Files looked at, and folders in which the names are looked for."""

HEAD_BYTES = 1 << 16

HEAD_ROWS = 16

_JSON_PAIR = re.compile(r'"((?:[^"\\]|\\.)+)"\s*:\s*(?:"[^"]*"|-?[0-9]+)\s*[,}]')


def label_notes(source: Path, extensions: frozenset[str]) -> list[str]:
    """A line for each file at the top of ``source`` that names samples, with the option for it.

    ``extensions``: those of samples.
    """
    top = peek(source, "")
    there = [name for name in top.names if extension(name) in LABEL_ENDINGS - extensions]
    bases = ["", *top.folders[:MAX_FILES]]

    def is_there(name: str) -> bool:
        return any(isfile(source / join(base, name)) for base in bases)

    notes = []
    for name in there[:MAX_FILES]:
        how = advice(source / name, _rows(source / name), extensions, is_there)
        if how:
            notes.append(f"{show_path(name)} looks like labels, and is passed over: {how}")
    return notes


def advice(
    path: Path,
    rows: Sequence[Sequence[str]],
    extensions: frozenset[str],
    is_there: Callable[[str], bool],
) -> str:
    """What to do with a file of such rows; ``""`` if none of their cells names a sample.

    ``is_there`` says whether there is a sample of a name.
    """
    rows = [row for row in rows if len(row) > 1]
    if path.stem == "metadata" and any(is_there(row[0]) for row in rows):
        return "its column file_name must hold paths from where it lies, as images/1.jpg"

    def is_sample(cell: str) -> bool:
        if extension(cell) in extensions:
            return is_there(cell)
        return any(is_there(cell + ending) for ending in sorted(extensions))

    widths = {len(row) for row in rows}
    width = max(widths, default=0)
    most = 1 if extension(path.name) == ".txt" else MOST_COLUMNS  # any word of a text may be a name
    cells = [(i, row[i]) for i in range(min(width, most)) for row in _looked(rows, i)]
    cells.sort(key=lambda each: extension(each[1]) not in extensions)  # one look, not one an ending
    names = next((i for i, cell in cells if is_sample(cell)), None)
    if names is None:
        return ""
    if len(widths) > 1:
        return f"write it as {_METADATA}"
    if width == 2:
        return f"{option(path)} takes it"
    titles = titles_of(rows[0], is_header=not is_sample(rows[0][names]))
    others = [title for i, title in enumerate(titles) if i != names]
    return (
        f"{option(path, likeliest(others))} takes it, or whichever of its columns holds the labels:"
        f" {first_few(others, MOST_COLUMNS)}"
    )


def _looked(rows: Sequence[Sequence[str]], column: int) -> list[Sequence[str]]:
    """Rows of which a column is looked at: names mostly stand in the first, and looks are slow
    over a network."""
    return [row for row in (rows[:3] if column else rows) if column < len(row)]


_METADATA = "metadata.csv, its first column called file_name, and the others are fields"


def _rows(path: Path) -> list[list[str]]:
    """The first rows of a table of any kind, or pairs of a JSON object; none of what is no text."""
    try:
        with path.open("rb") as file:
            held = file.read(HEAD_BYTES)
    except OSError:
        return []  # a file that is passed over need not be readable
    whole = held[: held.rfind(b"\n")] if len(held) == HEAD_BYTES else held
    head = whole.decode("utf-8-sig", "ignore")
    return [*islice(_parsed(head, extension(path.name)), HEAD_ROWS)]


def _parsed(head: str, ending: str) -> Iterator[list[str]]:
    if ending == ".json":
        yield from ([name, ""] for name in _JSON_PAIR.findall(head))
        return
    lines = head.splitlines()
    first = next((line for line in lines if line.strip()), "")
    try:
        for row in split_lines(lines, first, ending):
            yield [cell.strip() for cell in row]
    except csv.Error:
        return
