"""Files of captions: which they are, and what they say of which picture."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import islice
from os.path import isfile
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.folders import peek
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

_NAMES = re.compile(r"captions?\.(txt|csv|tsv)|[\w-]+\.token(\.txt)?|results\.csv", re.IGNORECASE)
"""``captions.txt``, ``Flickr8k.token.txt``, ``results_20130124.token``, Flickr30k's results.csv."""

_NUMBERED = re.compile(r"(?P<name>[^\t]+?)(#[0-9]+)?\t(?P<caption>.*)")

_PIPED = re.compile(r"(?P<name>[^|]+)\|\s*[0-9]+\s*\|?(?P<caption>.*)")
"""``x.jpg| 0| A dog .``; one line of Flickr30k's has lost its second bar."""

HEAD_LINES = 64
"""Read to tell whether a file is one of captions."""

Caption = tuple[str, str]
"""(name of the picture, what it shows)."""


def find_captions(source: Path) -> str | None:
    """The file of captions at the top of a source.

    Raises:
        CorpusError: there are several.
    """
    names = peek(source, "").names
    found = [name for name in names if _NAMES.fullmatch(name) and holds_captions(source / name)]
    if len(found) > 1:
        raise CorpusError(
            f"{show_path(source)} holds {' and '.join(map(show_path, found))}, which both hold"
            " captions; keep one"
        )
    return found[0] if found else None


def holds_captions(path: Path) -> bool:
    """Whether the first lines of a file name pictures."""
    if not isfile(path):
        return False
    try:
        first = [*islice(_rows(path), HEAD_LINES)]
    except (ValueError, csv.Error, OSError):
        return False
    return bool(first) and all(extension(name) in IMAGE_EXTENSIONS for name, _ in first)


def read_captions(path: Path) -> list[Caption]:
    """All captions of a file.

    Raises:
        CorpusError: a line is none.
    """
    where = show_path(path)
    with os_errors(f"reading {where}"):
        try:
            return [*_rows(path)]
        except (ValueError, csv.Error) as error:
            raise CorpusError(
                f"{where} is no file of captions: {error}; mend it, or move it away"
            ) from error


def _rows(path: Path) -> Iterator[Caption]:
    """Raises ValueError or csv.Error for what is no caption."""
    with path.open(newline="", encoding="utf-8-sig") as lines:
        first = lines.readline()
        lines.seek(0)
        if "\t" in first:
            yield from _numbered(lines, _NUMBERED, "tab")
            return
        if first.count("|") == 2:
            yield from _numbered(lines, _PIPED, "bar")
            return
        for number, row in enumerate(csv.reader(lines, strict=True), 1):
            if not row or (number == 1 and extension(row[0]) not in IMAGE_EXTENSIONS):
                continue  # the header
            if len(row) != 2:
                raise ValueError(
                    f"entry {number} has {len(row)} columns, expected image,caption; a caption with"
                    " a comma stands in double quotes"
                )
            yield row[0].strip(), row[1].strip()


def _numbered(lines: Iterator[str], pattern: re.Pattern[str], sign: str) -> Iterator[Caption]:
    for number, line in enumerate(lines, 1):
        found = pattern.fullmatch(line.rstrip("\r\n"))
        if found is None:
            if line.strip() and number > 1:
                raise ValueError(f"line {number} has no {sign} between picture and caption")
        elif number > 1 or extension(found["name"]) in IMAGE_EXTENSIONS:
            yield found["name"].strip(), found["caption"].strip()
