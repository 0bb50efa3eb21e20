"""Lists of names beside arrays of numbers: an array of texts called ``class_names``, or a text file
``classes.txt``. They become names of classes where they fit, and else it is said why not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.containers.column_names import last_word, title
from shardkit.inputs.containers.open_rows import open_rows
from shardkit.inputs.containers.row_columns import ArrayColumn, is_label_column
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

_OF_CLASSES = frozenset(
    {"classes", "class_names", "classnames", "label_names", "categories", "category_names"}
    | {"target_names", "list_classes"}
)
"""Last words of arrays of names of classes; others say in front of ``_names`` of what they are."""

FILES = ("classes.txt", "class_names.txt", "classnames.txt", "label_names.txt", "labels.txt")
"""Text files that are taken for lists of names of classes, one a line."""

_MOST_NAMES = 100_000

_MOST_BYTES = 16 << 20
"""Of a text file of names: 160 bytes a name."""


@dataclass(frozen=True)
class NameList:
    """A list of names; an array of the file or folder ``base``, or else the text file ``base``."""

    base: str
    column: ArrayColumn | None = None

    @property
    def name(self) -> str:
        return self.base.rpartition("/")[2] if self.column is None else self.column.name

    def target(self, label: str | None, columns: Mapping[str, ArrayColumn]) -> str | None:
        """The column whose numbers it names, or None."""
        own = last_word(title(self.name))
        if self.column is None or own in _OF_CLASSES:
            return label
        stem = own.removesuffix("_names")
        found = [name for name in columns if name.lower() in (stem, f"{stem}s")]
        return found[0] if len(found) == 1 and columns[found[0]].is_number else None


def set_aside(
    columns: Sequence[ArrayColumn], chosen: Sequence[str]
) -> tuple[list[ArrayColumn], list[ArrayColumn]]:
    """The columns of a file that may be rows, and those that are lists of names: texts called so,
    of another length than the labels, or than the largest array if there are no labels.

    ``chosen``: those that are columns in any case.
    """
    named = [c for c in columns if _may_name(c) and not {c.name, title(c.name)} & {*chosen}]
    others = [column for column in columns if column not in named]
    labels = {column.num_rows for column in others if is_label_column(column)}
    largest = max(others, key=lambda column: column.num_bytes, default=None)
    lengths = labels or ({largest.num_rows} if largest is not None else set())
    lists = [column for column in named if lengths and column.num_rows not in lengths]
    return [column for column in columns if column not in lists], lists


def _may_name(column: ArrayColumn) -> bool:
    own = last_word(title(column.name))
    is_text = column.how == "txt" or column.dtype.kind in "SU"
    is_list = len(column.shape) == 1 and column.num_rows <= _MOST_NAMES
    return is_text and is_list and (own in _OF_CLASSES or own.endswith("_names"))


def read_names(source: Path, held: NameList) -> list[str]:
    """The names. Raises CorpusError that says why they are none."""
    path = source / held.base if held.base else source
    with os_errors(f"reading {show_path(path)}"):
        try:
            names = _in_order([*_texts(path, held.column)])
        except UnicodeDecodeError:
            raise CorpusError("it is not all UTF-8") from None
        except FormatError as error:
            raise CorpusError(str(error)) from error
    seen: set[str] = set()
    for name in names:
        if not name or name in seen:
            raise CorpusError(f"it has {name!r} twice" if name else "a name in it is empty")
        seen.add(name)
    return names


_NUMBERED = re.compile(r"([0-9]+)[\s:,;.)-]+(\S.*)")


def _in_order(names: list[str]) -> list[str]:
    """The same; of lines like ``0 cat`` each name at its number.

    Raises:
        CorpusError: lines have numbers, and not all from 0 on.
    """
    found = [_NUMBERED.fullmatch(name) for name in names]
    numbered = {int(match[1]): match[2] for match in found if match is not None}
    if len(numbered) < len(names) or not names:
        return names
    if sorted(numbered) != [*range(len(names))]:
        raise CorpusError(f"its lines are numbered, and not from 0 to {len(names) - 1}")
    return [numbered[number] for number in range(len(names))]


def _texts(path: Path, column: ArrayColumn | None) -> Iterator[str]:
    if column is not None:
        with open_rows(path, [column.name]) as file:
            block = file.block(column.name, 0, column.num_rows)
            yield from (bytes(value).decode() for value in block)
        return
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise CorpusError(f"it has over {_MOST_BYTES:,} bytes")
    yield from (line.strip() for line in data.decode("utf-8-sig").rstrip().split("\n"))
