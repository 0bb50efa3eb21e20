"""The kind ``rows``: arrays of which each row belongs to a sample."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.corpus import Claim, Look, Run
from shardkit.inputs.files import extension, input_stamp, join
from shardkit.inputs.folders import Root, walk_named
from shardkit.inputs.guards import notes_on_labels, notes_on_splits
from shardkit.inputs.rows.row_columns import (
    BLOCK_BYTES,
    CONTAINER_EXTENSIONS,
    NPY,
    OF_BYTES,
    RECIPES,
    ArrayColumn,
    ArrayFile,
    damage,
    is_array_name,
    is_container,
    open_arrays,
)
from shardkit.inputs.sample_files import (
    REJECT,
    Cell,
    Listed,
    SampleFile,
    SampleFiles,
    claim_files,
    field_of,
    in_splits,
    refuse_equal_fields,
)
from shardkit.samples.encoding import npy_layout
from shardkit.samples.sample import pack_paths
from shardkit.samples.split_names import split_word, splits_by_words
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

MOST_COLUMNS = 16
"""Most ``.npy`` files of a folder that are taken for columns."""

Group = dict[str, ArrayColumn]
"""The columns of one split in one file, by their names without the split's word."""


@dataclass(frozen=True)
class RowSet(SampleFile):
    """Rows of one split in one file, or in the ``.npy`` files of one folder."""

    columns: Group = field(default_factory=dict)


class RowCorpus(SampleFiles):
    """Each row of column ``x`` is field ``x.npy``, exact to the bit; class numbers are ``cls``.

    A locator is ``row``, or ``row:split`` where names told splits: the packer may move it to
    another one. Paths are those of files next to each other, as which rows are restored.
    """

    kind = "rows"
    noun = "rows of arrays"
    options = frozenset({"fields"})
    kept = {"columns": "_plans", "in_splits": "_in_splits", "fields": "_fields"}  # noqa: RUF012
    _files: list[RowSet]

    def __init__(self, source: Path, fields: Sequence[str] | None = None) -> None:
        """Read all headers and labels, and decide what becomes of the columns: of all, or of those
        in ``fields``, by their names with or without a split's word."""
        super().__init__(source)
        self._fields = None if fields is None else [*fields]
        self._files = []
        left_out: dict[str, list[str]] = {}  # why -> names
        labels: dict[str, list[int]] = {}  # name -> smallest and largest numbers
        known: set[str] = set()
        found, names = self._find_arrays()
        is_told = any(file.split != "train" for file in found)
        with TemporaryDirectory() as scratch:
            for file in found:
                path, told = self._path(file.base), file.split if is_told else ""
                own, where = names.get(file.base), show_path(path)
                with os_errors(f"opening {where}"), open_arrays(path, own, Path(scratch)) as arrays:
                    called = {c: {c.name, c.title, c.short} for c in arrays.columns.values()}
                    known.update(*called.values())
                    chosen = [c for c in called if fields is None or called[c] & {*fields}]
                    others = {c.name: "not in --fields" for c in called if c not in chosen}
                    for name, why in {**arrays.left_out, **others}.items():
                        left_out.setdefault(why, []).append(name)
                    for split, group in divide(chosen, where, told).items():
                        if fields is None:
                            refuse_series(group, where)
                        own_split = told or split or "train"
                        self._files.append(RowSet(own_split, file.base, file.prefix, group))
                        for name in [n for n, c in group.items() if c.is_label and c.num_rows]:
                            with damage(where):
                                numbers = arrays.array(group[name].name)[:]
                            labels.setdefault(name, []).extend((numbers.min(), numbers.max()))
        if fields is None and OF_BYTES in left_out:
            names_of = first_few([*dict.fromkeys(left_out[OF_BYTES])])
            raise CorpusError(
                f"{show_path(self.source)}: {names_of}: {OF_BYTES}, or choose others with --fields"
            )
        if unknown := sorted({*(fields or ())} - known):
            listed = f"{unknown[0]!r}, only {first_few(sorted(known), 8)}"
            raise CorpusError(f"{show_path(self.source)} has no column {listed}")
        self._decide(labels)
        for why, columns in left_out.items():
            self.notes.append(f"left out: {first_few([*dict.fromkeys(columns)], 8)}: {why}")

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        names = [name for name in look.top.names if extension(name) in ("", ".pkl", ".pickle")]
        pickles = [n for n in names[:64] if b"\x80\x02" <= look.head(n, 2) <= b"\x80\x05"]
        if 2 * len(pickles) > len(look.top.names):  # as CIFAR's are
            raise CorpusError(
                f"{show_path(look.source)} holds pickles ({first_few(pickles)}), which can run any"
                f" code, so shardkit never reads them; if you trust whoever made them: {RECIPES}"
            )
        magic = (b"\x89HDF", b"PK")
        if claim := claim_files(look, cls, is_container, lambda head: head.startswith(magic)):
            return claim
        reading = "rows" if look.is_file else npy_reading(look)
        if reading == "arrays":
            return None
        return claim_files(look, cls, is_array_name, lambda head: reading == "rows")

    def _find_arrays(self) -> tuple[list[SampleFile], dict[str, list[str]]]:
        """Return files, and folders of ``.npy`` files, with the names of those."""
        if not self.source.is_dir():
            return self.find(), {}
        found: list[tuple[Root, str]] = []
        held: dict[str, list[str]] = {}
        for root, folder in walk_named(self.source, is_array_name, self._passed):
            for name in [*folder.names, *folder.lost]:  # what leads nowhere is refused when opened
                if extension(name) in CONTAINER_EXTENSIONS:
                    found.append((root, join(folder.base, name)))
                else:
                    held.setdefault(folder.base, []).append(name)
            if folder.base in held:
                found.append((root, folder.base))
        return in_splits(found, self.source), held

    def _decide(self, labels: dict[str, list[int]]) -> None:
        """Decide what field each column is. ``cls`` is the only one of whole numbers from 0 that is
        called so, in all splits; others that look like labels are noted.

        Raises:
            CorpusError: files of one split differ in their columns; or a name cannot name a field,
                or two would name one.
        """
        order = self.splits()
        self._files.sort(key=lambda each: order.index(each.split))
        first: dict[str, RowSet] = {}
        for each in self._files:
            other = first.setdefault(each.split, each)
            mine, its = ({(c.name, c.row) for c in s.columns.values()} for s in (each, other))
            if mine != its:
                differ = first_few(sorted({name for name, _ in mine ^ its}))
                raise CorpusError(
                    f"{show_path(self._path(each.base))} and {show_path(self._path(other.base))}"
                    f" differ in {differ}: pack them apart, or join them first: {RECIPES}"
                )
        held = [(name, column) for each in self._files for name, column in each.columns.items()]
        whole = [*labels.keys() - {name for name, column in held if not column.is_label}]
        label = whole[0] if len(whole) == 1 and min(labels[whole[0]]) >= 0 else None
        self.notes += notes_on_splits(order)
        if label is not None:
            told = f"from {min(labels[label])} to {max(labels[label])}"
            self.notes.insert(0, f"cls is {label!r}, {told}")
        self.notes += notes_on_labels({n for n, _ in held if n != label})
        self._plans: dict[str, list[list[str]]] = {}  # split -> [name in the file, field, how]
        for each in self._files:
            hows = {name: "cls" if name == label else "npy" for name in each.columns}
            fields = {name: field_of(name, how) for name, how in hows.items()}
            refuse_equal_fields(fields, show_path(each.base))
            named = each.columns.items()
            self._plans[each.split] = [[c.name, fields[name], hows[name]] for name, c in named]
        self._in_splits = self.splits() != ["train"]
        files = {each.base for each in self._files if is_container(each.base)}
        if len(files) > len(self._plans):
            self.notes.append(
                f"each row of {len(files):,} files is a sample ({first_few(sorted(files))}); if"
                f" each file is one, see {RECIPES}"
            )

    def listed(self, file: RowSet, stamp: int, scratch: Path) -> Iterator[Listed]:
        path, columns = self._path(file.base), [*file.columns.values()]
        names = [column.name for column in columns]
        with damage(show_path(path)), open_arrays(path, names, scratch, stamp) as arrays:
            for name in names:  # unpacks what is compressed, before workers read it
                arrays.array(name)
        told = b":" + file.split.encode() if self._in_splits else b""
        row_bytes = sum(column.row_bytes for column in columns)
        num_rows = columns[0].num_rows if columns else 0
        yield from self.numbered(file, range(num_rows), row_bytes, told)

    def stamp(self, base: str) -> int:
        path = self._path(base)
        if not path.is_dir():
            return input_stamp(path)
        names = sorted(name for name in os.listdir(path) if extension(name) == NPY)
        return sum(input_stamp(path / name) for name in names) & (2**63 - 1)

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        plan = self._plans[_split_in(run.locators[0]) or "train"]
        numbers = [int(locator.partition(b":")[0]) for locator in run.locators]
        most = max(BLOCK_BYTES // max(run.sizes[0], 1), 1)
        breaks = [
            i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1 or i % most == 0
        ]
        names = [column for column, _, _ in plan]
        with open_arrays(self._path(run.base), names, scratch, run.stamps[0]) as file:
            for start, stop in pairwise([0, *breaks, len(numbers)]):
                yield from _cells(file, plan, numbers[start], numbers[start] + stop - start)

    def paths_of(self, run: Run) -> Callable[[bytes, list[Cell]], bytes]:
        split = _split_in(run.locators[0]) if len(run) else ""
        start = os.fsencode(f"{split}/" if split else "")
        return lambda key, cells: pack_paths(key, [start + key + end for _, _, end in cells])

    def entry_name(self, run: Run, i: int) -> str:
        """Return a name with the split: two may lie in one file, each with rows counted from 0."""
        split = _split_in(run.locators[i])
        return super().entry_name(run, i) + (f" of {split}" if split else "")


def _split_in(locator: bytes) -> str:
    """Return the split that a locator names, ``""`` if it names none, or none is read."""
    return "" if locator.startswith(REJECT) else os.fsdecode(locator.partition(b":")[2])


def _cells(
    file: ArrayFile, plan: Sequence[Sequence[str]], start: int, stop: int
) -> Iterator[list[Cell] | str]:
    """Yield rows that follow one another; if they cannot be read at once, each by itself."""
    try:
        columns = [
            [(field, value, b"." + field.encode()) for value in file.values(name, how, start, stop)]
            for name, field, how in plan
        ]
    except FormatError as error:
        if stop - start == 1:
            yield str(error)
            return
        for row in range(start, stop):
            yield from _cells(file, plan, row, row + 1)
        return
    yield from map(list, zip(*columns, strict=True))


# --- which columns go together ------------------------------------------------------------


def divide(columns: Sequence[ArrayColumn], where: str, told: str = "") -> dict[str, Group]:
    """Return split (``""`` unless all names tell one) -> columns of one length.

    ``told``: the split of the whole file, so that names need not repeat it.

    Raises:
        CorpusError: columns of a split differ in length, or two have one name.
    """
    words = {column.name: split_word(column.title) for column in columns}
    by_names = not told and all(words.values())
    groups: dict[str, Group] = {}
    for column in columns:
        word = words[column.name]
        group = groups.setdefault(word[0] if word and by_names else "", {})
        name = word[1] if word and (by_names or word[0] == told) else column.title
        if (other := group.setdefault(name, column)) is not column:
            raise CorpusError(
                f"{where} holds two arrays of one name ({other.name}, {column.name}): put the files"
                " of each dataset into a folder of its own"
            )
    for group in groups.values():
        if len({column.num_rows for column in group.values()}) > 1:
            listed = first_few([f"{c.name} {c.num_rows:,}" for c in columns], 8)
            raise CorpusError(
                f"{where} holds arrays of several numbers of rows ({listed}), so it is not clear"
                f" which rows are samples: choose with --fields, or see {RECIPES}"
            )
    return groups


def refuse_series(group: Group, where: str) -> None:
    """Raise CorpusError if arrays are called alike but for a number or their group, as samples or
    parts are: ``000/image``, ``001/image``; ``images_0.npy``, ``images_1.npy``. As columns all of
    them would be in one sample. They are columns if there is an array of another name."""
    alike: dict[str, set[str]] = {}
    for name in group:
        for pattern in {re.sub("[0-9]+", "#", name), name.rpartition("/")[2]}:
            alike.setdefault(pattern, set()).add(name)
    inside = [sorted(own) for own in alike.values() if len(own) > 1]
    if inside and {name for own in inside for name in own} == group.keys():
        raise CorpusError(
            f"{where} holds {len(inside[0]):,} arrays called alike ({first_few(inside[0], 2)}), as"
            f" if each were a sample or a part of a column: see {RECIPES}, or choose columns with"
            " --fields"
        )


# --- detection ----------------------------------------------------------------------------

Reading = Literal["rows", "arrays", "either"]


def npy_reading(look: Look) -> Reading:
    """Return what ``.npy`` files are: columns of samples, or a sample each; by their headers.

    They are rows if those of a folder have one length over 1, and one is named as labels are;
    without labels, a few files of one length may be either."""
    readings: dict[str, Reading] = {}
    for folder in look.folders:
        names = [name for name in folder.names if extension(name) == NPY]
        if not names:
            continue
        # One file of each name but for its number: of img_0, mask_0, img_1, mask_1 the first two.
        firsts = [*{re.sub("[0-9]+", "#", name): name for name in reversed(names)}.values()]
        is_numbered = len(firsts) < len(names)
        columns = []
        for name in firsts[: MOST_COLUMNS + 1]:
            with suppress(FormatError):
                dtype, shape, _ = npy_layout(look.head(join(folder.base, name)))
                columns += [ArrayColumn(name, shape, dtype)] if shape and shape[0] > 1 else []
        groups: dict[str, Group] = {}
        if len(columns) == len(firsts) <= MOST_COLUMNS:
            with suppress(CorpusError):
                groups = divide(columns, "")
        has_labels = any(column.is_label for column in columns)
        may_be = groups and (not is_numbered or len({column.row for column in columns}) > 1)
        is_sure = groups and has_labels and not is_numbered
        either: Reading = "either" if has_labels or may_be else "arrays"
        readings[folder.base] = "rows" if is_sure else either
    found, splits = {*readings.values()}, splits_by_words([*readings])
    if len(readings) > 1 and (splits is None or len({*splits}) < len(readings)):
        return "either" if "rows" in found else "arrays"
    return "either" if len(found) > 1 else next(iter(found), "arrays")
