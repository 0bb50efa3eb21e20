"""Which files of a source hold rows, which belong together, and what their columns become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.containers.column_names import field_for, refuse_twins, title
from shardkit.inputs.containers.hdf5_recipes import attributes_of_groups, refuse_sample_groups
from shardkit.inputs.containers.idx_files import choose_idx, is_idx_name
from shardkit.inputs.containers.name_lists import FILES, NameList
from shardkit.inputs.containers.open_rows import open_rows
from shardkit.inputs.containers.pickled_arrays import PICKLED, refuse_pickles
from shardkit.inputs.containers.row_columns import Group, require_equal
from shardkit.inputs.containers.row_files import NO_ROWS, RowFile
from shardkit.inputs.containers.row_layout import RowLayout, RowSet
from shardkit.inputs.containers.row_pieces import Piece, names_of, sets_of
from shardkit.inputs.containers.row_recipes import refuse_columns_apart
from shardkit.inputs.endings import CONTAINER_EXTENSIONS, HDF5_EXTENSIONS, NPY
from shardkit.inputs.files import FolderListing, input_stamp
from shardkit.inputs.folders import Root, walk_named
from shardkit.inputs.names import extension, join
from shardkit.samples.split_names import mixed_names, splits_by_words
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

WANTED = CONTAINER_EXTENSIONS | {NPY}

_STAMP_BITS = 2**63 - 1


@dataclass(frozen=True)
class _Found:
    """A file of arrays, or the ``.npy`` files of a folder; ``split`` is what folders tell."""

    root: Root
    base: str
    names: tuple[str, ...] = ()


def find_sets(source: Path, fields: Sequence[str] | None = None) -> RowLayout:
    """Look into every file's header. ``fields``: the columns to take, None for all; by their names,
    with the split's or without.

    Raises:
        CorpusError: files that cannot be packed together, or hold pickles. FormatError: a damaged
        file. StorageError: a folder cannot be listed.
    """
    layout = RowLayout()
    found = [*_found(source, layout)]
    by_words = _splits_by_words(found, layout)
    for each, named in zip(found, by_words, strict=True):
        told = each.root.split if each.root.base else named
        layout.sets += _sets_of(source, each, told, layout, fields)
    _add_files_of_names(source, found, layout)
    _refuse_unknown(layout, fields, show_path(source))
    order = list(dict.fromkeys(each.split for each in layout.sets))
    layout.sets.sort(key=lambda each: order.index(each.split))
    refuse_columns_apart(source, layout)
    for split in order:
        own = [each for each in layout.sets if each.split == split]
        require_equal((show_path(source / each.base), each.built) for each in own)
    return layout


def _splits_by_words(found: Sequence[_Found], layout: RowLayout) -> list[str]:
    """The split that the path of each tells, or ``""`` for all; a note if only some tell one."""
    bases = [each.base for each in found]
    splits = splits_by_words(bases)
    if splits is not None:
        return splits
    if not any(each.root.base for each in found):
        layout.notes += mixed_names(bases)
    return [""] * len(found)


def _found(source: Path, layout: RowLayout) -> Iterator[_Found]:
    if not source.is_dir():
        yield _Found(Root("train", ""), "")
        return
    for root, folder in walk_named(source, _is_wanted, layout.ignored):
        yield from _of_folder(source, folder, root, layout)
        for name in folder.lost:
            base = join(folder.base, name)
            layout.lost.append((root.split, base, root.key_base(base)))


def _is_wanted(name: str) -> bool:
    return extension(name) in WANTED or is_idx_name(name)


def _of_folder(
    source: Path, folder: FolderListing, root: Root, layout: RowLayout
) -> Iterator[_Found]:
    where = show_path(source / folder.base)
    idx, left_out = choose_idx([*filter(is_idx_name, folder.names)], where)
    layout.leave_out(left_out, where)
    arrays = sorted([name for name in folder.names if extension(name) == NPY] + idx)
    files = [name for name in folder.names if name not in {*arrays, *left_out}]
    if arrays and files:
        raise CorpusError(
            f"{where} holds both {show_path(arrays[0])} and"
            f" {show_path(files[0])}: put files of several arrays and files of one into folders of"
            " their own"
        )
    if arrays:
        yield _Found(root, folder.base, tuple(arrays))
    for name in files:
        yield _Found(root, join(folder.base, name))


def _add_files_of_names(source: Path, found: Sequence[_Found], layout: RowLayout) -> None:
    """Those in the source, and beside the arrays; they are not passed over."""
    held = {each.base if each.names else each.base.rpartition("/")[0] for each in found}
    for base in sorted({"", *held}) if source.is_dir() else ():
        for name in FILES:
            if (source / base / name).is_file():
                layout.lists.append(NameList(join(base, name)))
                layout.ignored[".txt"] -= 1
    if not layout.ignored.get(".txt", 1):
        del layout.ignored[".txt"]


def _sets_of(
    source: Path, found: _Found, told: str, layout: RowLayout, fields: Sequence[str] | None
) -> Iterator[RowSet]:
    path = source / found.base if found.base else source
    where = show_path(path)
    prefix = found.root.key_base(found.base) if found.base or found.names else source.name
    piece = Piece(found.base, prefix, where, told)
    with os_errors(f"opening {where}"), open_rows(path, found.names or None) as file:
        _refuse_pickles(path, file, fields)
        if fields is None and extension(path.name) in HDF5_EXTENSIONS:
            alone = [name for name, why in file.left_out.items() if why == NO_ROWS]
            shapes = {c.name: c.shape for c in file.columns} | dict.fromkeys(alone, ())
            refuse_sample_groups(shapes, path.name, attributes_of_groups(file.left_out, shapes))
        layout.leave_out(file.left_out, where)
        yield from sets_of(piece, file.columns, layout, fields, may_be_parts=bool(found.names))


def _refuse_pickles(path: Path, file: RowFile, fields: Sequence[str] | None) -> None:
    """Raise CorpusError if an array of pickles is among ``fields``, or none are chosen."""
    pickled = [name for name, why in file.left_out.items() if why == PICKLED]
    for name in pickled:
        if fields is None or not names_of(name).isdisjoint(fields):
            others = [title(column.name) for column in file.columns]
            refuse_pickles(path / name if path.is_dir() else path, name, others)


def _refuse_unknown(layout: RowLayout, fields: Sequence[str] | None, where: str) -> None:
    known = {n for each in layout.sets for c in each.columns.values() for n in names_of(c.name)}
    known |= {name for each in layout.sets for name in each.columns}
    for name in fields or ():
        if name not in known:
            listed = ", ".join(map(repr, sorted({n for n, _ in layout.left_out})))
            raise CorpusError(f"{where} has no column {name!r}, only {listed}"[:400])


def stamp_of(path: Path, names: Iterable[str]) -> int:
    """A stamp of a file; of a folder, one of its files of these names. Raises FormatError."""
    if not path.is_dir():
        return input_stamp(path)
    return sum(input_stamp(path / name) for name in names) & _STAMP_BITS


# --- what columns become ------------------------------------------------------------------

CLS = "cls"
"""The field of class numbers; as the how of a column: it holds them."""

Plan = list[list[str]]
"""[name in the file, field, how] of each column of a split. A picture's field lacks its ending,
which depends on the picture."""


def plan_of(columns: Group, label: str | None, where: str) -> Plan:
    """What becomes of the columns of a split, of which ``label`` holds classes.

    Raises:
        CorpusError: a name cannot name a field, or two would name one.
    """
    num_pictures = sum(column.how == "picture" for column in columns.values())
    plan = []
    for name, column in columns.items():
        how = CLS if name == label else column.how
        plan.append([column.name, field_of(name, how, is_only=num_pictures == 1), how])
    refuse_twins(((title(name), field or "jpg") for name, field, _ in plan), where)
    return plan


def field_of(name: str, how: str, *, is_only: bool) -> str:
    """The field of a column; ``is_only``: no other one holds pictures."""
    if how == CLS:
        return CLS
    if how == "picture":
        return "" if is_only else field_for(name, "jpg").removesuffix("jpg")
    if how == "txt":
        return "txt" if name.lower() in ("text", "txt") else field_for(name, "txt")
    return field_for(name, "npy")
