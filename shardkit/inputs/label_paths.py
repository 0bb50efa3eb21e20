"""Paths in a table of labels that are no paths relative to the source, and can be understood."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.inputs.label_names import Folder, fitting_names
from shardkit.system.paths import first_few, show_path


@dataclass(frozen=True)
class Spelling:
    """How a table writes paths: as they are, or with backslashes, from a folder of the source or
    beside it.

    Attributes:
        below: the folder that they are relative to; None if they are taken as they stand.
        above: the folders before that, which the source itself lies in.
    """

    below: str | None = None
    above: str = ""

    def path(self, cell: str) -> str:
        """Relative to the source, if it is a path at all."""
        if self.below is None:
            return posixpath.normpath(cell)
        path = posixpath.normpath(cell.replace("\\", "/"))
        while path.startswith("../"):
            path = path[3:]
        path = path.removeprefix(self.above)
        return f"{self.below}/{path}" if self.below and "/" in path else path

    def fitting(self, cells: Set[str], folders: Sequence[Folder]) -> set[str]:
        """Those of some cells that name a file."""
        found = fitting_names({self.path(cell) for cell in cells}, folders)
        return {cell for cell in cells if self.path(cell) in found}


def guess_spelling(file: Path, cells: Set[str], folders: Sequence[Folder]) -> Spelling | None:
    """How a table writes paths, none of which is that of a file as it stands; None if that is not
    known.

    Raises:
        CorpusError: they fit below several folders.
    """
    if Spelling("").fitting(cells, folders):
        return Spelling("")
    paths = {path for cell in cells if "/" in (path := Spelling("").path(cell))}
    top = [folder for folder in folders if not folder[1]]
    for above in _shared(paths):
        below = {path for path in paths if "/" in path.removeprefix(above)}
        spelling = Spelling("", above)
        if spelling.fitting(below, folders) or spelling.fitting(paths, top):
            return spelling
    ends = {posixpath.dirname(path) for path in paths}
    bases = {base for _, base, _ in folders}
    tops = {base[: -len(end) - 1] for end in ends for base in bases if base.endswith("/" + end)}
    fits = sorted(top for top in tops if Spelling(top).fitting(paths, folders))
    if len(fits) > 1:
        raise CorpusError(
            f"{show_path(file)}: its paths are not relative to the source, and fit below"
            f" {first_few(fits)}; pack one of these, or write the paths from the source on"
        )
    return Spelling(fits[0]) if fits else None


def _shared(paths: Set[str]) -> list[str]:
    """The folders that most paths begin with, each with its slash: ``a/``, ``a/b/``."""
    first = Counter(path.partition("/")[0] for path in paths).most_common(1)
    own = [path for path in paths if first and path.startswith(f"{first[0][0]}/")]
    shared = posixpath.commonprefix([path.split("/")[:-1] for path in own])
    return ["/".join([*shared[:i], ""]) for i in range(1, len(shared) + 1)]
