"""Opening a file of arrays, whatever kind it is; or a folder of ``.npy`` or idx files, one a
column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.containers.hdf5_rows import open_hdf5
from shardkit.inputs.containers.idx_files import is_idx_name
from shardkit.inputs.containers.npz import open_npz
from shardkit.inputs.containers.row_files import ArrayFolder, RowFile, SafetensorsFile
from shardkit.inputs.endings import NPY, NPZ, SAFETENSORS
from shardkit.inputs.names import extension
from shardkit.system.paths import show_path


@contextmanager
def open_rows(
    path: Path, names: Sequence[str] | None = None, scratch: Path | None = None, stamp: int = 0
) -> Iterator[RowFile]:
    """Open a file of arrays, or of a folder the ``.npy`` and idx files of these names.

    Args:
        names: columns that will be read; None for all of a file. scratch: where decompressed copies
            lie that last as long as the pack; None where little is read. stamp: the file's.

    Raises:
        FormatError: the file is damaged; says which. CorpusError: it cannot be packed as it is.
        OSError.
    """
    try:
        if path.is_dir():
            yield ArrayFolder(path, names or [], scratch)
        elif (kind := extension(path.name)) == NPY or is_idx_name(path.name):
            yield ArrayFolder(path.parent, [path.name], scratch)
        elif kind == SAFETENSORS:
            yield SafetensorsFile(path)
        elif kind == NPZ:
            with open_npz(path, names, scratch, stamp) as npz:
                yield npz
        else:
            with open_hdf5(path) as hdf5:
                yield hdf5
    except (FormatError, CorpusError) as error:
        if str(error).startswith(show_path(path)):
            raise
        named = type(error)(f"{show_path(path)}: {error}")
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named from error
