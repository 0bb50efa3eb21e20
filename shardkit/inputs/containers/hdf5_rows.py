"""HDF5 files of others: every dataset with a first axis is a column, named by its path.

Only what the file itself holds is read: a link to another file, or a dataset whose values lie in
others, might lead anywhere, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.errors import CorpusError, FormatError
from shardkit.images.sniff import HEAD_BYTES, image_field
from shardkit.inputs.containers.row_columns import ArrayColumn, How
from shardkit.inputs.containers.row_files import ATTRIBUTES, NO_ROWS, RowFile
from shardkit.inputs.lines import refuse_bomb

LOOK_ROWS = 16
"""Rows of bytes looked at to see whether they are pictures."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5File]:
    """Open a file. Raises FormatError if it is damaged, CorpusError if values lie elsewhere."""
    import h5py

    path.open("rb").close()  # what the system refuses is said in its own words
    with _damage():
        file = h5py.File(path, "r", locking="best-effort")
    with file:
        yield Hdf5File(file)


class Hdf5File(RowFile):
    """An open file."""

    def __init__(self, file: Any) -> None:
        self.columns: list[ArrayColumn] = []
        self.left_out: dict[str, str] = {}
        self._file = file
        with _damage():
            self._visit(file, "")
            fixed = [each.num_bytes for each in self.columns if not each.dtype.hasobject]
            refuse_bomb(sum(fixed), file.id.get_filesize())
        self._hows = {column.name: column.how for column in self.columns}

    def _visit(self, group: Any, base: str) -> None:
        """Take in what lies in a group, and below it, in order of name."""
        import h5py

        if len(group.attrs):
            self.left_out[f"{ATTRIBUTES}{base or 'the file'}"] = _listed(group.attrs)
        for name in sorted(group):
            path = f"{base}/{name}" if base else name
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise CorpusError(f"{path!r} is a link to another file; copy what it leads to")
            if isinstance(link, h5py.SoftLink):
                self.left_out[path] = f"it is a link to {link.path}"
                continue
            held = group[name]
            if isinstance(held, h5py.Group):
                self._visit(held, path)
            elif isinstance(held, h5py.Dataset):
                self._add(path, held)
            else:
                self.left_out[path] = "it is a type, and has no values"

    def _add(self, path: str, data: Any) -> None:
        if data.is_virtual or data.external:
            raise CorpusError(f"the values of {path!r} lie in other files; copy them into one")
        if not data.shape:
            self.left_out[path] = NO_ROWS
            return
        if data.size and not data.id.get_storage_size():
            self.left_out[path] = "nothing was ever written to it"
            return
        if data.attrs:
            self.left_out[f"{ATTRIBUTES}{path}"] = _listed(data.attrs)
        how = _how(data)
        if how is None:
            self.left_out[path] = f"its values are {_told(data)}, which no field can hold"
            return
        self.columns.append(ArrayColumn(path, data.shape, data.dtype, how, _names(data.dtype)))

    def block(self, name: str, start: int, stop: int) -> Any:
        import h5py

        data = self._file[name]
        with _damage():
            rows = data[start:stop]
        if self._hows[name] == "picture":
            return _blobs(rows)
        if self._hows[name] == "txt":
            return [bytes(row) for row in rows]
        base = h5py.check_vlen_dtype(data.dtype)
        if base is None:
            return np.ascontiguousarray(rows)
        return [np.asarray(row, base) for row in rows]

    def prepare(self) -> None:
        pass


def _listed(attributes: Any) -> str:
    return f"{', '.join(sorted(attributes))}"[:200]


def _how(data: Any) -> How | None:
    """What each row of a dataset is; None if no field can hold it."""
    import h5py

    base = h5py.check_vlen_dtype(data.dtype)
    if _hold_pictures(data, base):
        return "picture"
    if h5py.check_string_dtype(data.dtype) is not None:
        return "txt" if data.ndim == 1 else _fixed(data)
    if base is None:
        return _fixed(data)
    return None if data.ndim > 1 or np.dtype(base).hasobject else "ragged"


def _hold_pictures(data: Any, base: Any) -> bool:
    """Return True if rows are bytes, of any length or padded to one, and the first are images."""
    is_padded = data.dtype.kind in "SV" and data.dtype.names is None
    if data.ndim > 1 or not (is_padded or base == np.uint8):
        return False
    held = [value for value in _blobs(data[:LOOK_ROWS]) if value.strip(b"\0")]
    # Strings that end at their first zero, as C has them, keep no more than 8 bytes of an image.
    return bool(held) and all(each[8:] and image_field(each[:HEAD_BYTES]) for each in held)


def _blobs(rows: Any) -> list[bytes]:
    """Return each row's bytes, of JPEG and PNG files without the zeros that pad them."""
    if rows.dtype.hasobject:
        return [np.asarray(row, np.uint8).tobytes() for row in rows]
    held = (rows[i : i + 1].tobytes() for i in range(len(rows)))
    never_end_in_zeros = (b"\xff\xd8", b"\x89PNG")
    return [each.rstrip(b"\0") if each.startswith(never_end_in_zeros) else each for each in held]


def _names(dtype: np.dtype[Any]) -> tuple[tuple[int, str], ...]:
    """Those of an enumeration, by their numbers; its last name where a number has several."""
    import h5py

    found = {int(number): name for name, number in (h5py.check_enum_dtype(dtype) or {}).items()}
    return tuple(sorted(found.items()))


def _fixed(data: Any) -> How | None:
    return None if data.dtype.hasobject else "npy"


def _told(data: Any) -> str:
    import h5py

    if h5py.check_string_dtype(data.dtype) is not None or h5py.check_vlen_dtype(data.dtype):
        return "of any length, on several axes"
    return "references" if h5py.check_ref_dtype(data.dtype) is not None else str(data.dtype)


@contextmanager
def _damage() -> Iterator[None]:
    """What h5py raises of a damaged file, as a FormatError."""
    try:
        yield
    except (FormatError, CorpusError):
        raise
    except (OSError, KeyError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        what = str(error).partition("\n")[0]
        raise FormatError(f"is damaged, or needs a filter that is not there: {what}") from error
