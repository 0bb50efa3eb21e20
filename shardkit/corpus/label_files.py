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
from shardkit.corpus.names import extension, join
from shardkit.system.paths import show_path

LABEL_ENDINGS = frozenset({".csv", ".tsv", ".txt", ".json"})

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
    """What to do with a file of such rows; ``""`` if their first cells name no samples.

    ``is_there`` says whether there is a sample of a name.
    """
    rows = [row for row in rows if len(row) > 1]
    is_labels = all(len(row) == 2 for row in rows)
    names = [row[0] for row in rows]
    if path.stem == "metadata" and any(is_there(name) for name in names):
        return "its column file_name must hold paths from where it lies, as images/1.jpg"
    if any(extension(row[0]) in extensions and is_there(row[0]) for row in rows):
        if is_labels and extension(path.name) in (".csv", ".json"):
            return f"--labels {show_path(path)} takes it"
        return f"write it as {_LABELS if is_labels else _METADATA}"
    if any(is_there(row[0] + ending) for row in rows for ending in sorted(extensions)):
        how = _LABELS if is_labels else _METADATA
        return f"its names lack the endings of the files; write it, with those, as {how}"
    return ""


_LABELS = "path,label into a .csv, and pass that by --labels"

_METADATA = "metadata.csv, its first column called file_name, and the others are fields"


def _rows(path: Path) -> list[list[str]]:
    """The first rows of a table of any kind, or pairs of a JSON object; none of what is no text."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES).decode("utf-8-sig", "ignore")
    except OSError:
        return []  # a file that is passed over need not be readable
    return [*islice(_parsed(head, extension(path.name)), HEAD_ROWS)]


def _parsed(head: str, ending: str) -> Iterator[list[str]]:
    if ending == ".json":
        yield from ([name, ""] for name in _JSON_PAIR.findall(head))
        return
    lines = head.splitlines()
    if ending == ".txt" and lines and "," not in lines[0]:
        yield from (line.split() for line in lines)
        return
    try:
        for row in csv.reader(lines, delimiter="\t" if ending == ".tsv" else ","):
            yield [cell.strip() for cell in row]
    except csv.Error:
        return
