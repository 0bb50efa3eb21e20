"""A folder that the system can open, as the storage of a dataset: mapped, or copied.

Files are copied where a map would not be safe (behind a network or another process) or where its
bytes may not change (``verify=True``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from shardkit.memory.whole_files import map_file
from shardkit.storage.base import Files
from shardkit.storage.copied import CopiedFiles
from shardkit.storage.mapped import MappedFiles
from shardkit.system.file_systems import is_remote
from shardkit.system.opening import open_file
from shardkit.system.paths import show_path


@dataclass(frozen=True)
class Folder:
    """:class:`shardkit.storage.base.Storage` of the files in one folder, or of links in it.

    Attributes:
        check: called after each file is opened: raises if these are not the files that they were.
    """

    path: Path
    check: Callable[[], object] = field(default=int, compare=False)

    def contents(self, name: str, num_bytes: int, *, copied: bool = False) -> memoryview:
        """Mapped, or read: as :func:`shardkit.memory.whole_files.map_file` does."""
        try:
            return map_file(self.path / name, num_bytes, copied=copied)
        finally:
            self.check()

    def size(self, name: str) -> int:
        with closing(open_file(self.path / name)) as file:
            return file.num_bytes

    def files(self, names: Sequence[str], sizes: Sequence[int], *, copied: bool = False) -> Files:
        if copied or must_copy(self.path, names):
            return CopiedFiles(self.path, names, sizes, check=self.check)
        return MappedFiles(self.path, names, sizes, check=self.check)

    def show(self, name: str) -> str:
        return show_path(self.path / name)


def must_copy(folder: Path, names: Sequence[str]) -> bool:
    """Whether files are not safe to map where they lie. An index beside links to tars may be on
    another file system than they are."""
    return any(is_remote(path) for path in [folder, *(folder / name for name in names[:1])])
