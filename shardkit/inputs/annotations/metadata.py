"""Pictures that a ``metadata.csv``, ``.jsonl`` or ``.parquet`` names, as in imagefolder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.annotations.listed import ListedCorpus, Sheet, SheetRow, Values
from shardkit.inputs.annotations.metadata_columns import MetadataPlan, plan_columns
from shardkit.inputs.annotations.metadata_files import (
    FileRow,
    find_metadata,
    is_file_column,
    read_rows,
)
from shardkit.inputs.annotations.named_files import clean_path
from shardkit.inputs.files import input_stamp
from shardkit.inputs.folders import list_names, split_folders
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path


class MetadataCorpus(ListedCorpus):
    """Each row is a sample: the file that ``file_name`` names, those that ``*_file_name`` name, and
    the other columns, each a field of its own.

    A column of numbers is ``<column>.npy``, one of text ``<column>.txt``, anything else
    ``<column>.json``; the column ``text``, or ``caption``, is ``txt``. All rows of a column are of
    one kind, over all files. Class folders give ``cls``, as ever, where there are two at least.
    """

    kind = "metadata"
    has_text = True
    noun = "pictures named by a metadata file"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        files = find_metadata(source)
        stamps = {file: input_stamp(source / file) for file in files}
        self._rows = {file: read_rows(source / file) for file in files}
        where = f"{show_path(source)}: {' and '.join(map(show_path, files)) or 'no metadata'}"
        self._plan = _plan(self._rows, where)
        self.sheet = _sheet(source, stamps, self._rows, self._plan)
        self.take_folder_classes()

    def spec(self) -> dict[str, Any]:
        fields = {name: column.field for name, column in self._plan.columns.items()}
        annotations = {file: {"fields": fields} for file in self._rows}
        return {**super().spec(), "annotations": annotations}

    def values(self, row: SheetRow) -> Values:
        return self._plan.values(row.record)


def _plan(rows: dict[str, list[FileRow]], where: str) -> MetadataPlan:
    """One plan for all files: those of text alone are .csv, of which all are or none is."""
    are_text = {extension(file) == ".csv" for file in rows}
    if len(are_text) > 1:
        raise CorpusError(
            f"{where}: some are .csv and some are not, so that numbers in them cannot be told"
            " alike; make them of one kind"
        )
    return plan_columns([row for own in rows.values() for row in own], True in are_text, where)


def _sheet(
    source: Path, stamps: dict[str, int], rows: dict[str, list[FileRow]], plan: MetadataPlan
) -> Sheet:
    sheet = Sheet(stamps)
    sheet.notes += [
        f"column {name!r} is left out: {why}" for name, why in sorted(plan.left_out.items())
    ]
    splits = _splits(source)
    for file, own in rows.items():
        for number, row in enumerate(own, 1):
            _add(sheet, splits, file, number, row, plan)
    return sheet


def _splits(source: Path) -> dict[str, str]:
    """Folder -> split, where the folders at the top are splits and no picture lies beside them."""
    top = list_names(source, "", IMAGE_EXTENSIONS)
    return (split_folders(top.folders) or {}) if not top.names else {}


def _add(
    sheet: Sheet,
    splits: dict[str, str],
    file: str,
    number: int,
    row: FileRow,
    plan: MetadataPlan,
) -> None:
    base = file.rpartition("/")[0]
    named = {column: row[column] for column in plan.files if row.get(column) is not None}
    paths = {column: clean_path(base, name) for column, name in named.items()}
    parts = tuple((plan.files[column], path) for column, path in paths.items() if path is not None)
    split = splits.get((parts[0][1] if parts else base).partition("/")[0], "train")
    if not parts or len(parts) < len(paths):
        odd = next((column for column, path in paths.items() if path is None), None)
        why = "names no file"
        if odd is not None:
            why = f"{odd} is {named[odd]!r}"[:200] + ", and no path of a file in its folder"
        sheet.bad.append((split, f"{file} at row {number}", why))
        return
    values = {name: cell for name, cell in row.items() if not is_file_column(name)}
    sheet.add(parts[0][1], SheetRow(split, (file,), parts, values))
