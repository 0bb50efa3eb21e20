"""Files beside samples that look like their labels, and that nobody asked for: what to say of them.

``train.csv`` beside ``train_images/`` is passed over like any file of another kind, and a dataset
without its labels looks whole. Only files whose first lines name a sample are read to their end.
"""

from __future__ import annotations

import csv
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from shardkit.errors import CorpusError, DataError
from shardkit.inputs.folders import peek, peeking_once
from shardkit.inputs.label_columns import MOST_COLUMNS, likeliest, titles_of
from shardkit.inputs.label_samples import NamedSamples
from shardkit.inputs.label_tables import TABLE_ENDINGS, find_words, option, read_rows, split_lines
from shardkit.inputs.label_words import Words, is_number
from shardkit.inputs.names import extension
from shardkit.system.full_reads import pread
from shardkit.system.opening import open_file
from shardkit.system.paths import first_few, show_path

LABEL_ENDINGS = frozenset(TABLE_ENDINGS)

MAX_FILES = 16
"""Files looked at."""

HEAD_BYTES = 1 << 16

HEAD_ROWS = 16

MAX_BYTES = 1 << 26
"""Larger files are not read to their end, and what is advised of them may be refused."""

_JSON_PAIR = re.compile(r'"((?:[^"\\]|\\.)+)"\s*:\s*(?:"[^"]*"|-?[0-9]+)\s*[,}]')

_METADATA = "write it as metadata.csv, its first column called file_name, and the others are fields"

_PARTIAL = (
    "only some of the samples have a label there, and --labels needs all of a split; join what"
    " belongs together, in one file"
)

Rows = Sequence[Sequence[Any]]


class Advice(NamedTuple):
    """What to do with some files that look like labels."""

    files: list[str]
    how: str

    def said(self, between: str = "") -> str:
        verb = "looks" if len(self.files) == 1 else "look"
        return f"{first_few(self.files)} {verb} like labels{between}: {self.how}"


def label_notes(source: Path, extensions: frozenset[str]) -> list[str]:
    """A line for each file at the top of ``source`` that names samples, with the option for it.

    ``extensions``: those of samples.
    """
    return [
        each.said(f", and {'is' if len(each.files) == 1 else 'are'} passed over")
        for each in label_advice(source, extensions)
    ]


def label_advice(source: Path, extensions: frozenset[str]) -> list[Advice]:
    """As :func:`label_notes`: what can be taken first, and those of only some samples together."""
    with peeking_once():
        top = peek(source, "")
        there = [name for name in top.names if extension(name) in LABEL_ENDINGS - extensions]
        if not there:
            return []
        samples = NamedSamples(source, extensions)
        found = [(name, advice(source / name, samples)) for name in there[:MAX_FILES]]
    made = [Advice([name], how) for name, how in found if how and how != _PARTIAL]
    made.sort(key=lambda each: not each.how.startswith("--labels"))
    partial = [name for name, how in found if how == _PARTIAL]
    return [*made, Advice(partial, _PARTIAL)] if partial else made


def advice(path: Path, samples: NamedSamples) -> str:
    """What to do with a file; ``""`` if none of its first cells names a sample."""
    head = _head(path)
    try:
        words = find_words(path, None, _is_name_of(samples), head)
    except CorpusError:
        words = Words(2, 0)
    rows = [row for row in islice(_parsed(head, path, words), HEAD_ROWS) if len(row) > 1]
    if path.stem == "metadata" and any(samples.folder_of(row[0]) is not None for row in rows):
        return "its column file_name must hold paths from where it lies, as images/1.jpg"
    names, base = _names_column(path, rows, samples)
    if base is None:
        return ""
    try:
        if path.stat().st_size > MAX_BYTES:
            return _option_of(path, rows, names, words, samples)
        words = find_words(path, None, _is_name_of(samples))
        amiss = _amiss(path, words, names, samples, base)
        whole = [row for _, row in islice(read_rows(path, words), HEAD_ROWS)]
        if words is not None:
            words.check(path, samples.folder_of(whole[0][names]) is None)
    except CorpusError as error:
        return str(error)
    except (OSError, csv.Error, ValueError, RecursionError):
        return ""
    return amiss or _option_of(path, whole, names, words, samples)


def _is_name_of(samples: NamedSamples) -> Callable[[str], bool]:
    return lambda word: samples.folder_of(word) is not None


def _names_column(path: Path, rows: Rows, samples: NamedSamples) -> tuple[int, str | None]:
    """The first column with the name of a sample, and the folder of that; None if there is none.

    Names mostly stand in the first, and looks are slow over a network.
    """
    width = max(map(len, rows), default=0)
    most = 1 if extension(path.name) == ".txt" else MOST_COLUMNS  # any word of a text may be a name
    cells = [
        (i, row[i])
        for i in range(min(width, most))
        for row in (rows[:3] if i else rows)
        if i < len(row)
    ]
    cells.sort(key=lambda each: extension(each[1]) not in samples.extensions)  # take but one look
    for i, cell in cells:
        base = samples.folder_of(cell)
        if base is not None:
            return i, base
    return 0, None


def _amiss(path: Path, words: Words | None, names: int, samples: NamedSamples, base: str) -> str:
    """Why a table cannot be taken as it is, by all of its rows; ``""`` if it can."""
    seen: dict[str, Sequence[Any]] = {}
    width = 0
    for _, row in read_rows(path, words):
        width = width or len(row)
        if len(row) != width or width < 2:
            return _METADATA
        name = posixpath.normpath(row[names])
        if seen.setdefault(name, row) != row:
            return (
                f"it has several rows for one file, the first of them {show_path(name)}; with one"
                " row a file, --labels takes it"
            )
    return "" if samples.are_all_in(base, seen.keys()) else _PARTIAL


def _option_of(
    path: Path, rows: Rows, names: int, words: Words | None, samples: NamedSamples
) -> str:
    if len(rows[0]) == 2:
        return f"{option(path)} takes it"
    has_header = samples.folder_of(str(rows[0][names])) is None
    titles = titles_of(rows[0], has_header)
    if words is not None and not has_header:
        rest = rows[0][1:]
        if all(map(is_number, rest)):
            return _METADATA
        return (
            f"{option(path, '2-')} takes all that follows a name for its label, as"
            f" {show_path(' '.join(rest))}"
        )
    others = [title for i, title in enumerate(titles) if i != names]
    example = likeliest(titles, rows[1:] if has_header else rows, names)
    return (
        f"{option(path, example)} takes it, or whichever of its columns holds the labels:"
        f" {first_few(others, MOST_COLUMNS)}"
    )


def _head(path: Path) -> str:
    """The first lines of a file; nothing of one that cannot be read, since nobody asked for it."""
    try:
        with closing(open_file(path)) as file:
            held = pread(file.fd, HEAD_BYTES, 0)
    except (OSError, DataError):
        return ""
    whole = held[: held.rfind(b"\n")] if len(held) == HEAD_BYTES else held
    return whole.decode("utf-8-sig", "ignore")


def _parsed(head: str, path: Path, words: Words | None) -> Iterator[list[str]]:
    """The rows of a table of any kind, or pairs of a JSON object; none of what is no text."""
    if extension(path.name) == ".json":
        yield from ([name, ""] for name in _JSON_PAIR.findall(head))
        return
    lines = head.splitlines()
    first = next((line for line in lines if line.strip()), "")
    try:
        for _, row in split_lines(lines, first, extension(path.name), words):
            yield [cell.strip() for cell in row]
    except csv.Error:
        return
