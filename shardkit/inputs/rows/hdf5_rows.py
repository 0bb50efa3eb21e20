"""HDF5 files: every dataset with a first axis is a column, called by its path.

Only what the file itself holds is read: a link to another file, or a dataset whose values lie in
others, might lead anywhere, and is refused.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.lines import refuse_bomb
from shardkit.inputs.rows.row_columns import LOOK_ROWS, ArrayFile
from shardkit.system.paths import first_few


class Hdf5File(ArrayFile):
    """An open HDF5 file."""

    texts = "S"

    def __init__(self, path: Path, stack: ExitStack) -> None:
        import h5py

        super().__init__()
        path.open("rb").close()  # what the system refuses is reported in its own words
        self._file = stack.enter_context(h5py.File(path, "r", locking="best-effort"))
        self._seen = {h5py.h5o.get_info(self._file.id).addr}
        attributes = {*self._file.attrs}
        self._visit(self._file, "", attributes)
        if attributes:
            self.left_out["attributes"] = f"no field holds them: {first_few(sorted(attributes))}"
        fixed = [each.num_bytes for each in self.columns.values() if not each.dtype.hasobject]
        refuse_bomb(sum(fixed), self._file.id.get_filesize())

    def _visit(self, group: Any, base: str, attributes: set[str]) -> None:
        """Add what lies in a group, and below it, in order of name."""
        import h5py

        for name in sorted(group):
            path = f"{base}/{name}" if base else name
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise CorpusError(f"{path!r} is a link to another file; copy what it leads to")
            if isinstance(link, h5py.SoftLink):
                self.left_out[path] = f"it is a link to {link.path}"
                continue
            held = group[name]
            address = h5py.h5o.get_info(held.id).addr
            if address in self._seen:  # hard links may nest, and double at each level
                self.left_out[path] = "it is another name of what came before"
                continue
            self._seen.add(address)
            attributes.update(held.attrs)
            if isinstance(held, h5py.Dataset) and h5py.check_enum_dtype(held.dtype):
                attributes.add(f"names of numbers of {path}")
            if isinstance(held, h5py.Group):
                self._visit(held, path, attributes)
            elif not isinstance(held, h5py.Dataset):
                self.left_out[path] = "it is a type, and has no values"
            elif held.is_virtual or held.external:
                raise CorpusError(f"the values of {path!r} lie in other files; copy them into one")
            elif held.shape and held.size and not held.id.get_storage_size():
                self.left_out[path] = "nothing was ever written to it"
            else:
                is_blob = held.ndim == 1 and held.dtype.kind in "SVO"
                self.add(path, held.dtype, held.shape, held[:LOOK_ROWS] if is_blob else None)

    def array(self, name: str) -> Any:
        return self._file[name]
