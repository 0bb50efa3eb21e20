"""The kind ``rows``: arrays of which each row belongs to a sample."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from shardkit.errors import CorpusError, FormatError, SampleError, StorageError
from shardkit.inputs.base import Run
from shardkit.inputs.files import cut_ending, extension, input_stamp, join
from shardkit.inputs.folders import Root, walk_named
from shardkit.inputs.guards import notes_on_splits
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.inputs.rows.row_columns import (
    BLOCK_BYTES,
    CONTAINER_EXTENSIONS,
    NPY,
    PICKLED,
    RECIPES,
    ArrayColumn,
    ArrayFile,
    damage,
    is_idx_name,
    open_arrays,
)
from shardkit.inputs.sample_files import (
    SampleFile,
    SampleFiles,
    field_of,
    refuse_equal_fields,
    require_picture,
)
from shardkit.samples.encoding import npy_layout
from shardkit.samples.sample import SampleBatch, Value, pack_paths
from shardkit.samples.split_names import mixed_names, split_word, splits_by_words
from shardkit.system.paths import first_few, show_path
from shardkit.system.refusals import os_errors

RUN_ROWS = 65_536

_BESIDE = frozenset(
    {"", ".txt", ".md", ".json", ".yaml", ".yml", ".toml", ".csv", ".tsv", ".log", ".html", ".py"}
)
"""Endings of files that lie next to arrays and are no samples, if there are few."""

_FEW_BESIDE = 16


class RowCorpus(SampleFiles):
    """Each row of column ``x`` is field ``x.npy``, exact to the bit; class numbers are ``cls``,
    texts ``x.txt``, and images stored as bytes are named by what they hold.

    A locator is ``row``, or ``row:split`` where names told splits: the packer may move it to
    another one. Paths are those of files next to each other, as which rows are restored.
    """

    kind = "rows"
    noun = "rows of arrays"
    options = frozenset({"fields"})

    def __init__(
        self, source: Path, fields: Sequence[str] | None = None, tokenized: bool = False
    ) -> None:
        """``fields``: columns to pack, None for all. ``tokenized``: if none is chosen, the text."""
        super().__init__(source)
        self._fields = None if fields is None else [*fields]
        self._look()
        texts = {column for plan in self._plans.values() for column, f, _ in plan if f == "txt"}
        if tokenized and fields is None and texts:
            self._fields = sorted(texts)
            self._look()

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        names = [name for name in look.top.names if extension(name) in ("", ".pkl", ".pickle")]
        pickles = [n for n in names[:64] if b"\x80\x02" <= look.head(n, 2) <= b"\x80\x05"]
        if 2 * len(pickles) > len(look.top.names):  # as CIFAR's are
            raise CorpusError(
                f"{show_path(look.source)} holds pickles ({first_few(pickles)}), which can run any"
                f" code, so shardkit never reads them; if you trust whoever made them: {RECIPES}"
            )
        held = [(f.base, name) for f in look.folders for name in f.names if is_array_name(name)]
        found = [place for place in held if _is_container(look, *place)]
        num_npy = look.count({NPY})
        if not found and not num_npy:
            return None
        others = look.endings - Counter(cut_ending(name)[1] for _, name in held)
        is_alone = others.total() <= _FEW_BESIDE and _BESIDE.issuperset(others)
        reading = "rows" if found or look.is_file else npy_reading(look)
        bases = sorted({base for base, _ in found})
        if is_alone and len(bases) > 1 and not num_npy and splits_by_words(bases) is None:
            raise CorpusError(
                f"{show_path(look.source)} holds arrays in folders that are not named as splits"
                f" ({first_few(bases)}): pack each by itself, or all rows with --corpus rows; if"
                f" each file is a sample, see {RECIPES}"
            )
        if reading == "arrays":
            return None
        is_sure = look.is_file or (is_alone and reading == "rows" and not (found and num_npy))
        strength = Strength.LAYOUT if is_sure else Strength.FILES
        return Claim(strength, "each row of arrays is a sample", len(found) or num_npy)

    def _take(self, spec: dict[str, Any]) -> None:
        self._fields = spec.get("fields")
        self._plans, self._in_splits = spec["columns"], spec["in_splits"]

    def spec(self) -> dict[str, Any]:
        spec = {"kind": self.kind, "columns": self._plans, "in_splits": self._in_splits}
        return spec if self._fields is None else {**spec, "fields": self._fields}

    def _look(self) -> None:
        """Decide what becomes of the columns, of those in ``_fields`` if some are chosen."""
        with TemporaryDirectory() as scratch:
            layout = read_layout(self.source, self._fields, Path(scratch))
        label, self.classes = find_labels(self.source, layout)
        self._files, self._ignored = layout.sets, +layout.ignored
        self._in_splits = layout.in_splits
        # Split -> [name in the file, field, how] of each column.
        self._plans = {each.split: _plan(each, label) for each in layout.sets}
        self.notes = [*layout.notes, *notes_on_splits(self.splits())]
        for why, names in layout.left_out.items():
            self.notes.append(f"left out: {first_few([*names], 8)}: {why}")
        files = [s.base for s in layout.sets if extension(s.base) in CONTAINER_EXTENSIONS]
        if len({*files}) > len(self._plans):
            self.notes.append(
                f"each row of {len({*files}):,} files is a sample ({first_few(files)}); if each"
                f" file is one, see {RECIPES}"
            )
        made = [(field, how) for plan in self._plans.values() for _, field, how in plan]
        self.has_text = any(field == "txt" for field, _ in made)
        self.has_pictures = any(how == "picture" and not field for field, how in made)

    def _runs_of(self, rows: RowSet, scratch: Path) -> Iterator[Run]:
        path = self._path(rows.base)
        columns = {column.name: column.shape for column in rows.columns.values()}
        with os_errors(f"listing the rows of {show_path(path)}"):
            stamp = _stamp(path, columns)
            with open_arrays(path, [*columns], scratch, stamp) as file:
                if columns.items() - {n: c.shape for n, c in file.columns.items()}.items():
                    raise StorageError(f"{show_path(path)} changed while listing; run it again")
                file.prepare()
        prefix = os.fsencode(f"{rows.prefix}/" if rows.prefix else "")
        told = b":" + rows.split.encode() if self._in_splits else b""
        row_bytes = sum(column.row_bytes for column in rows.columns.values())
        for start in range(0, rows.num_rows, RUN_ROWS):
            numbers = range(start, min(start + RUN_ROWS, rows.num_rows))
            yield Run(
                split=rows.split,
                base=rows.base,
                locators=[b"%d%s" % (number, told) for number in numbers],
                keys=[prefix + b"%012d" % number for number in numbers],
                sizes=[row_bytes] * len(numbers),
                stamps=[stamp] * len(numbers),
            )

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        batch = SampleBatch()
        path = self._path(run.base)
        split = run.locators[0].decode().partition(":")[2]
        plan = self._plans[split or "train"]
        names = [column for column, _, _ in plan]
        rows = [_row_of(locator) for locator in run.locators]
        most = max(BLOCK_BYTES // max(run.sizes[0], 1), 1)
        breaks = [i for i in range(1, len(rows)) if rows[i] != rows[i - 1] + 1 or i % most == 0]
        with os_errors(f"reading {show_path(path)}"):
            try:
                if _stamp(path, names) != run.stamps[0]:
                    raise SampleError("the file changed while packing")
                with open_arrays(path, names, scratch, run.stamps[0]) as file:
                    for start, stop in pairwise([0, *breaks, len(rows)]):
                        batch.extend(self._read_part(file, run.slice(start, stop), plan, split))
            except (SampleError, FormatError) as error:
                reason = str(error).removeprefix(f"{show_path(path)}: ")
                return SampleBatch(rejects=[(self._at(run, i), reason) for i in range(len(run))])
        return batch

    def entry_name(self, run: Run, i: int) -> str:
        """Two splits may lie in one file, and the rows of each are counted from 0."""
        split = os.fsdecode(run.locators[i]).partition(":")[2]
        return self._at(run, i) + (f" of {split}" if split else "")

    def _at(self, run: Run, i: int) -> str:
        return f"{run.base or self.source.name} at row {_row_of(run.locators[i])}"

    def _read_part(
        self, file: ArrayFile, run: Run, plan: list[list[str]], split: str
    ) -> SampleBatch:
        """Read rows that follow one another; if they cannot be read at once, each by itself."""
        start = _row_of(run.locators[0])
        columns: dict[str, list[Value | None]] = {}
        try:
            for name, field, how in plan:
                values = file.values(name, how, start, start + len(run))
                if how != "picture":
                    columns[field] = values
                    continue
                for i, value in enumerate(values):
                    held = field + require_picture(value or b"")
                    columns.setdefault(held, [None] * len(run))[i] = value
        except (SampleError, FormatError) as error:
            if len(run) == 1:
                return SampleBatch(rejects=[(self._at(run, 0), str(error))])
            batch = SampleBatch()
            for i in range(len(run)):
                batch.extend(self._read_part(file, run.slice(i, i + 1), plan, split))
            return batch
        batch = SampleBatch([*run.keys], [], columns)
        for i, key in enumerate(run.keys):
            stem = os.fsencode(f"{split}/" if split else "") + key + b"."
            paths = [stem + os.fsencode(name) for name in sorted(batch.fields(i))]
            batch.paths.append(pack_paths(key, paths))
        return batch


def _is_container(look: Look, base: str, name: str) -> bool:
    if is_idx_name(name):
        head = look.head(join(base, name), 4)
        return head[:2] == b"\x1f\x8b" or (head[:2] == b"\0\0" and 8 <= head[2] <= 14)
    return extension(name) in CONTAINER_EXTENSIONS


def _plan(rows: RowSet, label: str | None) -> list[list[str]]:
    """Return [name in the file, field, how] of each column of a split. The field of images lacks
    its ending, which depends on the image.

    Raises:
        CorpusError: a name cannot name a field, or two would name one.
    """
    hows = {n: "cls" if n == label else column.how for n, column in rows.columns.items()}
    is_only = [*hows.values()].count("picture") == 1
    ends = {"ragged": "npy"}
    fields = {name: field_of(name, ends.get(how, how), is_only) for name, how in hows.items()}
    refuse_equal_fields(fields, show_path(rows.base))
    return [[rows.columns[name].name, fields[name], hows[name]] for name in hows]


def _stamp(path: Path, names: Iterable[str]) -> int:
    """Return a file's stamp; of a folder, one of its files of these names. Raises FormatError."""
    if not path.is_dir():
        return input_stamp(path)
    return sum(input_stamp(path / name) for name in names) & (2**63 - 1)


def _row_of(locator: bytes) -> int:
    return int(locator.partition(b":")[0])


# --- which columns are fields of which split ----------------------------------------------

MOST_LEFT_OUT = 0.1
"""Share of a file's bytes that may be left out for another number of rows: means, names."""

MOST_COLUMNS = 64
"""Most ``.npy`` files of a folder that are taken for columns."""

FEW = 16
"""Most ``.npy`` files of equal shape that may be columns as well as samples."""

CLASS_FILE = "classes.txt"
"""A file of names of classes, one per line, at the top of a source."""

Group = dict[str, ArrayColumn]
"""The columns of one split in one file, by their names without the split's word."""


@dataclass(frozen=True)
class RowSet(SampleFile):
    """Rows of one split in one file, or in the ``.npy`` files of one folder."""

    columns: Group = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return next((column.num_rows for column in self.columns.values()), 0)


@dataclass
class Layout:
    """The arrays of a source, and what becomes of them.

    Attributes:
        sets: those of one split follow one another. ignored: files passed over, by extension.
        in_splits: True if names told a split.
        ranges: smallest and largest number of each column that may hold classes.
        left_out: why arrays are packed in no field -> their names.
        notes: what else there is to report, a line each.
    """

    sets: list[RowSet] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    left_out: dict[str, dict[str, None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    in_splits: bool = False

    def leave_out(self, reasons: dict[str, str]) -> None:
        for name, why in reasons.items():
            self.left_out.setdefault(why, {})[name] = None


def read_layout(source: Path, fields: Sequence[str] | None, scratch: Path) -> Layout:
    """Read the headers of all files, and the columns of labels. ``fields``: columns to take, by
    their names with or without a split's word; None for all.

    Raises:
        CorpusError: files that cannot be packed together, or hold pickles. FormatError: a damaged
        file. StorageError: a folder cannot be listed.
    """
    layout = Layout()
    found = [*_files(source, layout)]
    bases = [base for _, base, _ in found]
    words = splits_by_words(bases) or [""] * len(bases)
    if not any(root.base for root, _, _ in found):
        layout.notes += mixed_names(bases)
    known: set[str] = set()
    for (root, base, names), word in zip(found, words, strict=True):
        told = root.split if root.base else word
        path = source / base if base else source
        prefix = root.key_base(base) if base or names else source.name
        where = show_path(path)
        with os_errors(f"opening {where}"), open_arrays(path, names or None, scratch) as file:
            for name, why in file.left_out.items():
                is_chosen = not {name, name.removesuffix(".npy")}.isdisjoint(fields or ())
                if why == PICKLED and (fields is None or is_chosen):
                    raise CorpusError(
                        f"{where}: {name} holds pickled Python objects, which can run any code:"
                        f" choose other columns with --fields, or see {RECIPES}"
                    )
            chosen, left_out = [*file.columns.values()], file.left_out
            if fields is None:
                refuse_series(chosen, where)
            else:
                called = {c.name: {c.name, c.title, c.short} for c in chosen}
                known = known.union(*called.values())
                chosen = [c for c in chosen if not called[c.name].isdisjoint(fields)]
                others = called.keys() - {c.name for c in chosen}
                left_out |= {n: "not in --fields" for n in file.columns if n in others}
            groups, more = divide(chosen, where, told)
            layout.leave_out(left_out | more)
            for split, group in groups.items():
                layout.sets.append(RowSet(told or split or "train", base, prefix, group))
                layout.in_splits |= bool(told or split)
                for name, column in group.items():
                    if column.is_label and column.num_rows:
                        with damage():
                            numbers = file.array(column.name)[:]
                        ends = numbers.min(), numbers.max(), *layout.ranges.get(name, ())
                        layout.ranges[name] = int(min(ends)), int(max(ends))
    if unknown := sorted({*(fields or ())} - known):
        listed = first_few(sorted(known), 8)
        raise CorpusError(f"{show_path(source)} has no column {unknown[0]!r}, only {listed}")
    order = [*dict.fromkeys(each.split for each in layout.sets)]
    layout.sets.sort(key=lambda each: order.index(each.split))
    first: dict[str, RowSet] = {}
    for each in layout.sets:
        other = first.setdefault(each.split, each)
        mine, its = ({(c.name, c.row) for c in s.columns.values()} for s in (each, other))
        if mine != its:
            raise CorpusError(
                f"{show_path(source / each.base)} and {show_path(source / other.base)} differ in"
                f" {first_few(sorted({name for name, _ in mine ^ its}))}: pack them apart, or join"
                f" them first: {RECIPES}"
            )
    return layout


def _files(source: Path, layout: Layout) -> Iterator[tuple[Root, str, tuple[str, ...]]]:
    """Yield each file, or each folder of ``.npy`` or idx files with their names, and its root."""
    if not source.is_dir():
        yield Root("train", ""), "", ()
        return
    for root, folder in walk_named(source, is_array_name, layout.ignored):
        for name in folder.lost:
            try:
                input_stamp(source / folder.base / name)
            except FormatError as error:
                raise CorpusError(f"{show_path(source / folder.base / name)} {error}") from error
        packed = [name for name in folder.names if is_idx_name(name) and name[:-3] in folder.names]
        layout.leave_out(dict.fromkeys(packed, "the same lies next to it, not compressed"))
        files = [name for name in folder.names if extension(name) in CONTAINER_EXTENSIONS]
        if arrays := tuple(name for name in folder.names if name not in {*files, *packed}):
            yield root, folder.base, arrays
        for name in files:
            yield root, join(folder.base, name), ()


def is_array_name(name: str) -> bool:
    """Return True for files that hold arrays of rows, by their names."""
    return extension(name) in CONTAINER_EXTENSIONS | {NPY} or is_idx_name(name)


# --- which columns go together ------------------------------------------------------------


def divide(
    columns: Sequence[ArrayColumn], where: str, told: str = ""
) -> tuple[dict[str, Group], dict[str, str]]:
    """Return split (``""`` if no name tells) -> columns of one length; and name -> why of those
    that are left out. ``told``: the split of the whole file, so that names need not repeat it.

    Raises:
        CorpusError: labels of another length, or no length that most of the file has.
    """
    words = {column.name: (split_word(column.title) or ("",))[0] for column in columns}
    lengths, splits = {column.num_rows for column in columns}, {*words.values()} - {""}
    is_told = "" not in words.values() or len(splits) > 1 < len(lengths)
    held: dict[str, list[ArrayColumn]] = {}
    left_out: dict[str, str] = {}
    for column in columns:
        split = words[column.name] if is_told and not told else ""
        if is_told and not told and not split:
            left_out[column.name] = "its name tells no split, as the names of the others do"
        else:
            held.setdefault(split, []).append(column)
    groups: dict[str, Group] = {}
    for split, own in held.items():
        titles = [c.short if words[c.name] in {split, told} else c.title for c in own]
        titles = titles if len({*titles}) == len(own) else [column.title for column in own]
        if len({*titles}) < len(own):
            raise CorpusError(
                f"{where} holds two arrays of one name ({first_few([c.name for c in own])}): put"
                " the files of each dataset into a folder of its own"
            )
        num_of, bytes_of = Counter[int](), Counter[int]()
        for column in own:
            num_of[column.num_rows] += 1
            bytes_of[column.num_rows] += 0 if column.is_label else column.num_bytes
        num_rows = max(num_of, key=lambda n: (num_of[n], bytes_of[n]))
        named = [*zip(titles, own, strict=True)]
        groups[split] = {name: column for name, column in named if column.num_rows == num_rows}
        left_out |= {
            c.name: f"it has {c.num_rows:,} rows, others {num_rows:,}"
            for c in own
            if c.num_rows != num_rows
        }
    lost = [column for column in columns if column.name in left_out]
    most = MOST_LEFT_OUT * sum(column.num_bytes for column in columns)
    if sum(column.num_bytes for column in lost) > most or any(c.is_label for c in lost):
        listed = first_few([f"{c.name} {c.num_rows:,}" for c in columns], 8)
        raise CorpusError(
            f"{where} holds arrays of several numbers of rows ({listed}), so it is not clear which"
            f" rows are samples: choose with --fields, or see {RECIPES}"
        )
    return groups, left_out


def refuse_series(columns: Sequence[ArrayColumn], where: str) -> None:
    """Raise CorpusError if arrays are called alike but for a number, as samples or parts are:
    ``000/image``, ``001/image``; ``images_0.npy``, ``images_1.npy``; ``x`` of eight groups. As
    columns all of them would be in one sample. They are columns if an array of another name has as
    many rows as each."""
    series: dict[object, list[ArrayColumn]] = {}
    leaves: dict[str, list[ArrayColumn]] = {}
    for column in columns:
        if "/" in column.title:
            leaves.setdefault(column.title.rpartition("/")[2], []).append(column)
        pattern = re.sub("[0-9]+", "#", column.title)
        if "#" in pattern:
            series.setdefault((pattern, "/" in pattern or column.row), []).append(column)
    found = [own for own in series.values() if len(own) > 1]
    found += [own for own in leaves.values() if len(own) >= 8]
    inside = {column.name for own in found for column in own}
    others = {column.num_rows for column in columns if column.name not in inside}
    for own in found:
        rows = {column.num_rows for column in own}
        if len(rows) > 1 or rows.isdisjoint(others):
            some = first_few([column.name for column in own], 2)
            raise CorpusError(
                f"{where} holds {len(own):,} arrays called alike ({some}), as if each were a sample"
                f" or a part of a column: see {RECIPES}, or choose columns with --fields"
            )


# --- classes ------------------------------------------------------------------------------


def find_labels(source: Path, layout: Layout) -> tuple[str | None, list[str] | None]:
    """Return the column of class numbers, and the names of the classes; None for what there is not.
    Columns that look like labels and are none are noted."""
    held = [(name, column) for each in layout.sets for name, column in each.columns.items()]
    whole = layout.ranges.keys() - {name for name, column in held if not column.is_label}
    label, top = None, -1
    if len(whole) == 1:
        (name,) = whole
        low, top = layout.ranges[name]
        if low >= 0 and top < 10**18:
            label = name
            layout.notes.insert(0, f"cls is {name!r}, from {low} to {top}")
    others = sorted({name for name, column in held if column.looks_like_label} - {label})
    if others:
        layout.notes.append(
            f"{first_few(others)}: fields of their own, though called as labels are;"
            + (f" cls is {label!r}" if label else " cls needs one column of whole numbers from 0")
        )
    path = source / CLASS_FILE
    if not path.is_file():
        return label, None
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = [line.strip() for line in file.read(1 << 20).splitlines()]
    layout.ignored[".txt"] -= 1
    is_fit = label is not None and top < len(names) == len({*names} - {""})
    many = f"{len(names):,} names of classes in {CLASS_FILE}"
    layout.notes.append(many if is_fit else f"left out: {many}: cls goes to {top}")
    return label, names if is_fit else None


# --- detection ----------------------------------------------------------------------------

Reading = Literal["rows", "arrays", "either"]


def npy_reading(look: Look) -> Reading:
    """Return what ``.npy`` files are: columns of samples, or a sample each; by their headers."""
    readings: dict[str, Reading] = {}
    num_labelled = 0
    for folder in look.folders:
        names = [name for name in folder.names if extension(name) == NPY]
        if not names:
            continue
        columns = [_header(look, folder.base, name) for name in names[: MOST_COLUMNS + 1]]
        reading = reading_of(columns)
        num_labelled += any(column is not None and column.is_label for column in columns)
        firsts = [*{re.sub("[0-9]+", "#", name): name for name in reversed(names)}.values()]
        if reading == "arrays" and 1 < len(firsts) < len(names):
            some = [_header(look, folder.base, name) for name in firsts[: MOST_COLUMNS + 1]]
            if reading_of(some) == "rows":  # img_0, mask_0, img_1, mask_1
                reading = "either"
        readings[folder.base] = reading
    if len(readings) > 1 and splits_by_words([*readings]) is None and num_labelled < len(readings):
        return "either" if num_labelled else "arrays"
    if not readings or "arrays" in readings.values():
        return "arrays"
    return "either" if "either" in readings.values() else "rows"


def _header(look: Look, base: str, name: str) -> ArrayColumn | None:
    """Return the column that a ``.npy`` is by its header; None if it is none."""
    file = ArrayFile()
    try:
        file.add(name, *npy_layout(look.head(join(base, name)))[:2], None)
    except FormatError:
        return None
    return file.columns.get(name)


def reading_of(headers: Sequence[ArrayColumn | None]) -> Reading:
    """Return what the ``.npy`` files of one folder are: rows if they have one length over 1, and
    labels are among them or they differ in kind; arrays if nothing speaks for rows; else either."""
    columns = [column for column in headers if column is not None and column.num_rows > 1]
    if not 0 < len(headers) == len(columns) <= MOST_COLUMNS:
        return "arrays"
    if len(columns) == 1:  # of labels, or numbers, it is one sample
        return "either" if len(columns[0].shape) > 1 else "arrays"
    num_labels = sum(column.is_label for column in columns)
    num_kinds = len({column.row for column in columns})
    try:
        refuse_series(columns, "")
        groups, left_out = divide(columns, "")
    except CorpusError:
        return "either" if 0 < num_labels < len(columns) else "arrays"
    are_columns = num_kinds > 1 or len(groups) > 1 < min(map(len, groups.values()))
    if (num_labels and num_kinds > 1) or (are_columns and not left_out):
        return "rows"
    return "arrays" if left_out or len(columns) > FEW else "either"
