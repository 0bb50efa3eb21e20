"""Files that a table names by path, where it does not hold their bytes itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardkit.errors import FormatError, SampleError
from shardkit.inputs.files import input_stamp, read_files
from shardkit.inputs.tables.arrow_types import MEDIA, is_file, plain_type
from shardkit.inputs.tables.columns import PackedColumn
from shardkit.inputs.tables.json_values import plain
from shardkit.inputs.tables.table_files import Table
from shardkit.samples.sample import Value
from shardkit.system.paths import show_path

STAMP_BITS = 2**63 - 1
"""Of stamps that are added up, see :mod:`shardkit.system.stamps`."""

ADVICE = (
    "put it there, or write the table with its files inside, as save_to_disk and push_to_hub of"
    " datasets do"
)


class Beside:
    """The files below the folder that a table lies in, or below the source that it is a part of.

    None of another place is opened, whatever a table says: tables come from others.

    Attributes:
        measured: the files that were found by :meth:`measure`.
    """

    def __init__(self, source: Path, base: str) -> None:
        table = source / base if base else source
        self._folders = list(dict.fromkeys([table.parent, source if base else table.parent]))
        self.measured: set[str] = set()

    def find(self, path: str) -> Path | None:
        """The file, or None if there is none."""
        if not path or "\0" in path or ".." in path.split("/"):
            return None
        for folder in self._folders:
            whole = Path(os.path.join(folder.absolute(), path))  # an absolute path stays as it is
            if whole.is_relative_to(folder.absolute()) and whole.is_file():
                return whole
        return None

    def measure(self, path: str) -> tuple[int, int] | None:
        """(bytes, stamp) of the file; None if there is none."""
        found = self.find(path)
        try:
            if found is None:
                return None
            measured = found.stat().st_size, input_stamp(found)
            self.measured.add(os.path.normpath(found))
            return measured
        except FormatError:  # it went meanwhile
            return None

    def read(self, path: str) -> Value:
        """The contents of the file; huge ones are mapped.

        Raises:
            SampleError: there is no such file.
        """
        found = self.find(path)
        if found is None:
            where = show_path(self._folders[-1])
            raise SampleError(
                f"names the file {show_path(path)[:200]} and holds no bytes of it, and in {where}"
                f" there is no such file; {ADVICE}"
            )
        (value,) = read_files(found.parent, [os.fsencode(found.name)], [found.stat().st_size])
        if isinstance(value, str):
            raise SampleError(f"names the file {show_path(path)[:200]}, which {value}")
        return value


def files_beside(
    table: Table, columns: Sequence[PackedColumn], beside: Beside
) -> dict[int, tuple[int, int]]:
    """Row -> (bytes, stamp) of the files that it names and that lie beside the table."""
    found: dict[int, tuple[int, int]] = {}
    for column in columns:
        field = table.schema.field(column.name)
        if column.how not in MEDIA or column.many or not is_file(plain_type(field.type)):
            continue
        for part, start in enumerate(table.starts):
            row = start
            for array in table.paths(column.name, part):
                for path in paths_alone(array):
                    if path and (measured := beside.measure(path)) is not None:
                        size, stamp = found.get(row, (0, 0))
                        found[row] = size + measured[0], (stamp + measured[1]) & STAMP_BITS
                    row += 1
    return found


def paths_alone(array: Any) -> list[str | None]:
    """The paths of an array of ``{bytes, path}``; None where there is none, or there are bytes."""
    array = plain(array)
    names = [array.type.field(i).name for i in range(array.type.num_fields)]
    if "path" not in names:
        return [None] * len(array)
    array.validate(full=True)
    members = dict(zip(names, array.flatten(), strict=True))
    paths: list[str | None] = plain(members["path"]).to_pylist()
    if "bytes" not in members:
        return paths
    lacking = members["bytes"].is_null().to_pylist()
    return [path if is_null else None for path, is_null in zip(paths, lacking, strict=True)]
