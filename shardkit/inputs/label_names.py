"""Which label is of which file: by path or bare name, each with its ending or without."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from shardkit.errors import CorpusError
from shardkit.inputs.names import join
from shardkit.system.paths import first_few, show_path

_INDEX = re.compile(r"-?(0|[1-9][0-9]{0,17})")
"""A label that is a class index as it stands; ``007`` is a name."""

Folder = tuple[str, str, list[str]]
"""A split, a folder of it relative to the source, and the samples' names in that."""


class Labels:
    """Labels by path relative to the source or by bare file name, each with its ending or without.

    Attributes:
        classes: the sorted label names; None where the labels are indices already.
        where: file and column, for messages.
        without: splits of which no file has a label, and how many files those have.
        notes: what else there is to say, a line each.
    """

    def __init__(self, labels: dict[str, str], where: str) -> None:
        self.where = where
        self.classes: list[str] | None = None
        self.without: dict[str, int] = {}
        self.notes: list[str] = []
        self._has_bare = any("/" not in path for path in labels)
        self._has_paths = any("/" in path for path in labels)
        if all(_INDEX.fullmatch(label) for label in set(labels.values())):
            self._indices = {path: int(label) for path, label in labels.items()}
            return
        self.classes = sorted(set(labels.values()))
        index = {name: i for i, name in enumerate(self.classes)}
        self._indices = {path: index[label] for path, label in labels.items()}

    def of(self, base: str, names: Sequence[str]) -> list[int | None]:
        """The class index of each file of folder ``base``; None of one without a label."""
        return [None if key is None else self._indices[key] for key in self._keys(base, names)]

    def _keys(self, base: str, names: Sequence[str]) -> Sequence[str | None]:
        """What the labels call each file: with its path, and its ending, rather than without.

        Mostly all files of a folder are called in one way, which takes a look-up a file.
        """
        known = self._indices
        for form in self._forms(base, names):
            num_known = sum(map(known.__contains__, form))
            if num_known == len(names):
                return form
            if num_known:
                break
        forms = zip(*self._forms(base, names), strict=True)
        return [next((key for key in own if key in known), None) for own in forms]

    def _forms(self, base: str, names: Sequence[str]) -> Iterator[Sequence[str]]:
        """What files may be called, the most exact first; ``""`` is no name."""
        if self._has_paths or not base:
            yield paths_of(base, names)
        if base:
            yield names
        stems = [name.rpartition(".")[0] for name in names]
        if self._has_paths or not base:
            yield paths_of(base, stems)
        if base:
            yield stems

    def check(self, folders: Sequence[Folder]) -> None:
        """Whether every file has one label, or none of its split has, and no name labels two files.

        Raises:
            CorpusError: otherwise.
        """
        owners = _Owners(self.where)
        splits: dict[str, _Tally] = {}
        used: set[int] = set()
        for split, base, names in folders:
            paths, keys = paths_of(base, names), self._keys(base, names)
            splits.setdefault(split, _Tally()).add(paths, keys)
            used.update(self._indices[key] for key in keys if key is not None)
            if keys != paths or not base or self._has_bare:
                owners.add(names, paths, keys)
        self._refuse_missing(splits)
        num_rest = len(self._indices) - sum(tally.num_labelled for tally in splits.values())
        if num_rest:
            self._refuse_two_labels(folders)
        self.notes = [*self._notes(used, num_rest)]

    def _refuse_two_labels(self, folders: Sequence[Folder]) -> None:
        """Raise CorpusError if a file has another label by a name that is no other file's."""
        held = {key for _, base, names in folders for key in self._keys(base, names)}
        rest = {key: index for key, index in self._indices.items() if key not in held}
        for _, base, names in folders:
            keys = self._keys(base, names)
            for form in self._forms(base, names):
                for key in rest.keys() & form:
                    i = [*form].index(key)
                    own = keys[i]
                    if own is not None and self._indices[own] != rest[key]:
                        raise CorpusError(
                            f"{self.where} labels {show_path(paths_of(base, names)[i])} twice, as"
                            f" {show_path(own)} and as {show_path(key)}, and not alike; keep one"
                        )

    def _refuse_missing(self, splits: dict[str, _Tally]) -> None:
        some = {split: tally for split, tally in splits.items() if tally.num_labelled} or splits
        missing = sum(tally.num_missing for tally in some.values())
        if missing:
            first = next(tally.first_missing for tally in some.values() if tally.num_missing)
            raise CorpusError(
                f"{self.where} has no label for {missing:,} of the files, the first of them"
                f" {show_path(first)}; add them, as path relative to the source or bare file name"
            )
        self.without = {
            split: tally.num_missing for split, tally in splits.items() if tally.num_missing
        }

    def _notes(self, used: Set[int], num_rest: int) -> Iterator[str]:
        if num_rest:
            are = "is" if num_rest == 1 else "are"
            yield f"{num_rest:,} of the {len(self._indices):,} names there {are} of no file here"
        for split, count in self.without.items():
            yield (
                f"no cls in {split}: {self.where} has no label for any of its {count:,}"
                f" file{'s' * (count != 1)}"
            )
        if self.classes is not None:
            unused = [name for i, name in enumerate(self.classes) if i not in used]
            if unused:
                yield (
                    f"no sample is of {len(unused):,} of these classes, which {self.where} has:"
                    f" {first_few(unused)}"
                )
        if len(used) == 1:
            yield f"all labels are the same; look whether {self.where} is what you mean"

    def told_indices(self) -> str:
        """What there is to say of labels that are numbers."""
        numbers = sorted({*self._indices.values()})
        count = f"{len(numbers):,} number{'s' * (len(numbers) != 1)}"
        return f"cls is as {self.where} has it: {count}, {numbers[0]} to {numbers[-1]}"


class _Owners:
    """Which file each name of the labels is of, if it is less than a file's whole path."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._inexact: dict[str, str] = {}
        self._exact: dict[str, str] = {}

    def add(self, names: Sequence[str], paths: Sequence[str], keys: Sequence[str | None]) -> None:
        """Raise CorpusError if a bare name, or one without its ending, is of two files."""
        for name, path, key in zip(names, paths, keys, strict=True):
            if key == path:
                for own in (name, path):
                    self._exact.setdefault(own, path)
                    self._refuse(own, self._inexact.get(own, path), path)
            elif key is not None:
                self._refuse(key, self._inexact.setdefault(key, path), path)
                self._refuse(key, self._exact.get(key, path), path)

    def _refuse(self, key: str, one: str, other: str) -> None:
        if one != other:
            raise CorpusError(
                f"{self._where}: {show_path(key)} fits both {show_path(one)} and"
                f" {show_path(other)}; label files by their path relative to the source"
            )


@dataclass
class _Tally:
    """Of the files of a split."""

    num_labelled: int = 0
    num_missing: int = 0
    first_missing: str = ""

    def add(self, paths: Sequence[str], keys: Sequence[str | None]) -> None:
        missing = keys.count(None)
        self.num_labelled += len(keys) - missing
        self.num_missing += missing
        if missing and not self.first_missing:
            self.first_missing = paths[keys.index(None)]


def paths_of(base: str, names: Sequence[str]) -> Sequence[str]:
    """Relative to the source."""
    return [f"{base}/{name}" for name in names] if base else names


def fitting_names(cells: Set[str], folders: Iterable[Folder]) -> set[str]:
    """Those of some cells that are the path or name of a file, with its ending or without."""
    bare = {cell for cell in cells if "/" not in cell}
    below: dict[str, set[str]] = {"": bare}
    for cell in cells - bare:
        base, _, name = cell.rpartition("/")
        below.setdefault(base, set()).add(name)
    found: set[str] = set()
    for _, base, names in folders:
        own = below.get(base, set())
        stems = [name.rpartition(".")[0] for name in names]
        found |= bare.intersection(names) | bare.intersection(stems)
        found |= {join(base, name) for name in own.intersection(names) | own.intersection(stems)}
    return found
