"""What a source of arrays holds: sets of rows, and what of it is packed in no field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardkit.inputs.containers.name_lists import NameList
from shardkit.inputs.containers.row_columns import Group


@dataclass(frozen=True)
class RowSet:
    """Rows of one split in one file; or in ``.npy`` files of one folder, one a column.

    Attributes:
        base: the file or folder, relative to the source. columns: by names without the split's.
        is_told: whether a name told the split.
        part: the number in names of files that are a part of columns; ``""`` if they are whole.
        templates: name of such a file -> the same with ``/`` in place of the number.
    """

    split: str
    is_told: bool
    base: str
    prefix: str
    columns: Group
    part: str = ""
    templates: dict[str, str] = field(default_factory=dict)

    @property
    def built(self) -> Group:
        """The columns, called alike in all parts."""
        return {
            name: replace(column, name=self.templates.get(column.name, column.name))
            for name, column in self.columns.items()
        }

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns.values()]

    @property
    def num_rows(self) -> int:
        return next((column.num_rows for column in self.columns.values()), 0)

    @property
    def row_bytes(self) -> int:
        return sum(column.row_bytes for column in self.columns.values())


@dataclass
class RowLayout:
    """What a source holds.

    Attributes:
        sets: those of one split together. lost: (split, base, key) of names that lead nowhere.
        left_out: what of the files is packed in no field, (name, why) -> files.
        lists: names of numbers that lie beside the arrays.
        notes: what else there is to say, a line each.
        ignored: files passed over, by extension.
    """

    sets: list[RowSet] = field(default_factory=list)
    lost: list[tuple[str, str, str]] = field(default_factory=list)
    left_out: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    lists: list[NameList] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, reasons: Mapping[str, str], where: str) -> None:
        """Note what of a file is packed in no field: name -> why."""
        for name, why in reasons.items():
            self.left_out.setdefault((name, why), []).append(where)
