"""``--labels``: class labels from a file, where folders do not say."""

from __future__ import annotations

import csv
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardkit.corpus.names import extension, join
from shardkit.errors import CorpusError
from shardkit.system.paths import show_path

_INDEX = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""A label that is a class index as it stands; ``007`` is a name."""

Row = tuple[int, str, Any]
"""Where it stands in the file, path, label."""


class Labels:
    """Labels by path relative to the source, or by bare file name.

    Attributes:
        classes: the sorted label names; None where the labels are indices already.
    """

    def __init__(self, labels: dict[str, str], where: str) -> None:
        self.where = where
        self.classes: list[str] | None = None
        if all(_INDEX.fullmatch(label) for label in labels.values()):
            self._indices = {path: int(label) for path, label in labels.items()}
            return
        self.classes = sorted(set(labels.values()))
        index = {name: i for i, name in enumerate(self.classes)}
        self._indices = {path: index[label] for path, label in labels.items()}

    def of(self, base: str, name: str) -> int | None:
        """The class index of file ``name`` in folder ``base``."""
        found = self._indices.get(join(base, name))
        return self._indices.get(name) if found is None else found

    def check(self, folders: Iterable[tuple[str, list[str]]]) -> None:
        """Whether every file has one label, and no bare name labels two files.

        Raises:
            CorpusError: otherwise.
        """
        by_name: dict[str, str] = {}
        missing, first = 0, ""
        for base, names in folders:
            for name in names:
                path = join(base, name)
                if path in self._indices:
                    by_name.setdefault(name, path)
                elif name not in self._indices:
                    missing += 1
                    first = first or path
                elif by_name.setdefault(name, path) != path:
                    raise CorpusError(
                        f"{self.where}: {show_path(name)} fits both {show_path(by_name[name])} and"
                        f" {show_path(path)}; label files by their path relative to the source"
                    )
        if missing:
            raise CorpusError(
                f"{self.where} has no label for {missing:,} of the files, the first of them"
                f" {show_path(first)}; add them, as path relative to the source or bare file name"
            )


def read_labels(file: Path, extensions: frozenset[str]) -> Labels:
    """Labels of a ``.csv`` (rows ``path,label``, with or without a header) or ``.json`` file.

    A first row is a header if its path has none of the ``extensions`` that files have.

    Raises:
        CorpusError: it cannot be read, or is no such file.
    """
    where = show_path(file)
    kind = file.suffix.lower()
    if kind not in (".csv", ".json"):
        raise CorpusError(
            f"{where}: labels must be a .csv (path,label) or .json (path: label) file"
        )
    labels: dict[str, str] = {}
    try:
        rows = _json_rows(file) if kind == ".json" else _csv_rows(file, extensions)
        for number, path, raw in rows:
            label = _label(raw, f"{where}: entry {number}")
            path = posixpath.normpath(path)
            if labels.setdefault(path, label) != label:
                raise CorpusError(
                    f"{where}: entry {number} labels {show_path(path)} {label!r}, an earlier one"
                    f" {labels[path]!r}; keep one"
                )
    except CorpusError:
        raise
    except OSError as error:
        raise CorpusError(f"{where} cannot be read: {error.strerror}") from error
    except (csv.Error, ValueError, RecursionError) as error:
        raise CorpusError(f"{where} is no {kind} file: {error}") from error
    if not labels:
        raise CorpusError(f"{where} holds no labels")
    return Labels(labels, where)


def _csv_rows(file: Path, extensions: frozenset[str]) -> Iterator[Row]:
    with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
        rows = ((number, row) for number, row in enumerate(csv.reader(lines), 1) if row)
        for place, (number, row) in enumerate(rows):
            if len(row) != 2:
                raise CorpusError(
                    f"{show_path(file)}: entry {number} has {len(row)} columns, expected two:"
                    " path,label"
                )
            if place or extension(row[0].strip()) in extensions:
                yield number, row[0], row[1]


def _json_rows(file: Path) -> Iterator[Row]:
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    pairs = json.loads(text, object_pairs_hook=_Pairs)
    if not isinstance(pairs, _Pairs):
        raise CorpusError(f"{show_path(file)}: expected one JSON object of path: label")
    return ((number, path, label) for number, (path, label) in enumerate(pairs, 1))


class _Pairs(list[tuple[str, Any]]):
    """A JSON object whose repeated keys are not lost."""


def _label(raw: Any, where: str) -> str:
    if isinstance(raw, bool) or not isinstance(raw, (str, int)):
        raise CorpusError(f"{where}: a label must be a number or a name, got {raw!r:.40}")
    label = str(raw).strip()
    if not label:
        raise CorpusError(f"{where}: the label is empty")
    return label
