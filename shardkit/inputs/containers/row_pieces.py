"""The columns of one file, or of the ``.npy`` files of one folder, as sets of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardkit.errors import CorpusError
from shardkit.inputs.containers.column_names import title
from shardkit.inputs.containers.name_lists import NameList, set_aside
from shardkit.inputs.containers.row_columns import ArrayColumn, divide
from shardkit.inputs.containers.row_layout import RowLayout, RowSet
from shardkit.inputs.containers.row_parts import Numbered, Parts, find_parts
from shardkit.inputs.containers.row_recipes import refuse_classes_apart
from shardkit.inputs.names import join
from shardkit.samples.split_names import split_word
from shardkit.system.paths import first_few


@dataclass(frozen=True)
class Piece:
    """Where columns lie: a file, a folder, or a numbered part of one.

    Attributes:
        base, prefix, part: as of :class:`RowSet`. where: for messages. told: the split that folders
            and names of files tell, or ``""``.
    """

    base: str
    prefix: str
    where: str
    told: str
    part: str = ""


def sets_of(
    piece: Piece,
    columns: Sequence[ArrayColumn],
    layout: RowLayout,
    fields: Sequence[str] | None,
    *,
    may_be_parts: bool,
) -> Iterator[RowSet]:
    """The sets of rows that columns are; what is left out, and what else there is to say, goes into
    ``layout``. ``fields``: the columns to take, None for all.

    Raises:
        CorpusError: columns of several lengths, or parts of which some lack a column.
    """
    columns, lists = set_aside(columns, fields or [])
    layout.lists += [NameList(piece.base, column) for column in lists]
    parts = _parts_of(columns, piece.where, fields) if may_be_parts else None
    if parts is None:
        chosen = [c for c in columns if fields is None or not names_of(c.name).isdisjoint(fields)]
        layout.leave_out({c.name: _UNCHOSEN for c in columns if c not in chosen}, piece.where)
        if may_be_parts and fields is None:
            layout.notes += refuse_classes_apart(columns, piece.where)
        yield from _divided(piece, chosen, layout)
        return
    layout.notes.append(_note_on(parts, piece.where))
    for (_, number), files in parts.parts.items():
        own = [f for f in files if fields is None or not names_of(f.column.name).isdisjoint(fields)]
        layout.leave_out({f.file: _UNCHOSEN for f in files if f not in own}, piece.where)
        prefix = join(piece.prefix, number) if number else piece.prefix
        part = replace(piece, part=number, prefix=prefix)
        yield from _divided(part, [each.column for each in own], layout, own)


_UNCHOSEN = "not among --fields"


def names_of(column: str) -> set[str]:
    """What a column may be called: by its file, and without the split that its name tells."""
    short = split_word(title(column))
    return {column, title(column), *([short[1]] if short else [])}


def _divided(
    piece: Piece, columns: Sequence[ArrayColumn], layout: RowLayout, files: Sequence[Numbered] = ()
) -> Iterator[RowSet]:
    """``files``: those of the columns, which are called without their numbers."""
    division = divide(columns, piece.where, piece.told)
    own = {each.column.name: each.file for each in files}
    left_out = {own.get(name, name): why for name, why in division.left_out.items()}
    layout.leave_out(left_out, piece.where)
    for split, group in division.groups.items():
        yield RowSet(
            split=piece.told or split or "train",
            is_told=bool(piece.told or split),
            base=piece.base,
            prefix=piece.prefix,
            columns={n: replace(c, name=own.get(c.name, c.name)) for n, c in group.items()},
            part=piece.part,
            templates={each.file: each.template for each in files},
        )


def _parts_of(
    columns: Sequence[ArrayColumn], where: str, fields: Sequence[str] | None
) -> Parts | None:
    """None if each file is a column, as it is where ``fields`` names one with its number.

    Raises:
        CorpusError: a part lacks a column.
    """
    parts = find_parts(columns)
    files = {name for column in columns for name in (column.name, title(column.name))}
    if parts is None or not files.isdisjoint(fields or ()):
        return None
    if parts.missing:
        raise CorpusError(
            f"{where} holds parts of columns, told by numbers, and lacks"
            f" {first_few(parts.missing)}: put them there, move the rest of those parts away, or,"
            " if each file is a column of its own, name them with --fields"
        )
    return parts


def _note_on(parts: Parts, where: str) -> str:
    names = sorted({each.template.replace("/", "#") for p in parts.parts.values() for each in p})
    return (
        f"{len(parts.parts):,} parts in {where}, numbered in {first_few(names)}: their rows follow"
        " one another"
    )
