"""The folder of an export: made beside its destination, whose place it takes when it is whole.

Other tools do not know how ours tell that something is not whole: what has the name is taken for
all of it. So nothing has the name before everything is written and synced, and then all has it. A
killed export leaves a hidden folder beside the destination; the next one removes it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from shardkit.commit.durable_files import atomic_write, fsync_path
from shardkit.commit.own_files import read_own
from shardkit.commit.work_folder import WorkFolder
from shardkit.errors import DestinationError
from shardkit.operations.unpack import refuse_dataset
from shardkit.remote.urls import refuse_overlap
from shardkit.system.paths import show_path

MARKER = ".export.json"
"""The file that says that a folder is an export, and which files are: no others may be lost."""

_FORMAT = "shardkit export"


class ExportFolder:
    """Holds the place where an export is made. A context manager: without :meth:`publish`, all that
    was written goes.

    Attributes:
        dest: the destination. new: the folder to write into.

    Raises:
        DestinationError: the destination is taken, overlaps the dataset, or another process writes
            there.
    """

    def __init__(self, dest: Path, source: Path, overwrite: bool) -> None:
        self.dest = dest.resolve()
        refuse_overlap(self.dest, source.resolve())
        refuse_dataset(self.dest)
        self._overwrite = overwrite
        self._refuse_taken()
        work = self.dest.with_name(f".{self.dest.name}.exporting")
        self._folder = WorkFolder(self.dest, work)
        self.new, self._old = self._folder.stage, work / "old"
        try:
            self._settle()
            self._refuse_taken()  # another call may have finished meanwhile
            self.new.mkdir()
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def __enter__(self) -> ExportFolder:
        return self

    def publish(self, record: dict[str, Any]) -> int:
        """Give the folder its name. Return the bytes of all files in it, but for its marker.

        ``record`` is what else the marker says, as JSON.
        """
        sizes = {name: (self.new / name).stat().st_size for name in _files_in(self.new)}
        marker = {"format": _FORMAT, **record, "files": sizes}
        atomic_write(self.new / MARKER, [json.dumps(marker, indent=1).encode() + b"\n"])
        for folder, _, names in os.walk(self.new):
            for name in names:
                fsync_path(Path(folder, name))
            fsync_path(Path(folder))
        if self.dest.exists():
            self.dest.rename(self._old)
        self.new.rename(self.dest)
        fsync_path(self.dest.parent)
        return sum(sizes.values())

    def _settle(self) -> None:
        """End what this call, or one that was killed, had begun: what stood at the destination is
        there again if nothing took its place, and else goes; what is not whole goes."""
        if self._old.exists() and not self.dest.exists():
            self._old.rename(self.dest)
        self._folder.clear()

    def _refuse_taken(self) -> None:
        name = show_path(self.dest)
        if not self.dest.exists():
            return
        if not self.dest.is_dir():
            raise DestinationError(f"{name} exists and is no folder; choose another destination")
        if self.dest == Path.cwd() or self.dest.is_mount():
            raise DestinationError(
                f"{name} is in use, and an export takes the place of its destination as a whole;"
                " name a folder in it"
            )
        found = _files_in(self.dest)
        if not found and not any(self.dest.iterdir()):
            return
        listed = _listed(self.dest)
        if listed is None:
            raise DestinationError(
                f"{name} exists and is no export, so nothing in it will be replaced; choose another"
                " destination"
            )
        if not self._overwrite:
            raise DestinationError(
                f"{name} already exists; pass --overwrite to replace it, or choose another"
                " destination"
            )
        if others := [file for file in found if file not in listed]:
            raise DestinationError(
                f"{show_path(self.dest / others[0])} was written by no export, and would be lost;"
                " move it away, or choose another destination"
            )

    def __exit__(self, *error: object) -> None:
        try:
            self._settle()
        except OSError:
            if error[0] is None:
                raise
            # The error under way says more than that its traces could not be removed.
        finally:
            self._folder.close()


def _files_in(folder: Path) -> list[str]:
    """Return the relative paths, sorted, of all that is no folder."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _listed(folder: Path) -> set[str] | None:
    """Return the files that an export wrote, and its marker; None if the folder is none."""
    try:
        raw = json.loads(read_own(folder / MARKER) or b"")
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
        return None
    files = raw.get("files")
    return {*files, MARKER} if isinstance(files, dict) else None
