"""Where tars are: a path, a folder or a pattern, judged by names alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from shardkit.commit.work_folder import WORK_NAME
from shardkit.errors import UsageError
from shardkit.index.file_names import INDEX_NAME
from shardkit.samples.split_names import splits_by_words
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.tars.patterns import expand, is_pattern

CACHE_NAME = ".shardkit"
"""The folder next to tars that holds their index."""

_COMPRESSED = re.compile(r"\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2?|txz|tzst)", re.IGNORECASE)


def is_tar_source(path: Path) -> bool:
    """Whether a path is a tar, a folder of tars, or a pattern for their names; compressed ones too,
    so that the error says so.

    A folder that a packer of ours has not finished is none: its tars are not all there.
    """
    if os.path.isdir(path):
        return not os.path.isdir(path / WORK_NAME) and bool(_tar_names(path))
    if is_pattern(path):
        return ".tar" in path.name.lower() or ".tgz" in path.name.lower()
    return os.path.isfile(path) and _is_tar_name(path.name)


def _is_tar_name(name: str) -> bool:
    # Hidden ones are what macOS leaves beside files on foreign disks: ._train-000.tar
    return not name.startswith(".") and (name.endswith(".tar") or is_compressed(name))


def is_compressed(name: str) -> bool:
    return _COMPRESSED.search(name) is not None


def _tar_names(folder: Path) -> list[str]:
    """Return the tars in a folder; or, where there are none, those in its folders, if each of them
    is called as a split."""
    names, folders = _list(folder)
    if not names and all(splits_by_words([each]) for each in folders):
        names = [f"{each}/{name}" for each in folders for name in _list(folder / each)[0]]
    return names


def _list(folder: Path) -> tuple[list[str], list[str]]:
    with os_errors(f"listing {show_path(folder)}"), os.scandir(folder) as entries:
        found = sorted((e.name, e.is_dir()) for e in entries if not e.name.startswith("."))
    # A link to nothing counts, and is refused: what was not fetched may not be passed over.
    tars = [name for name, is_folder in found if _is_tar_name(name) and not is_folder]
    return tars, [name for name, is_folder in found if is_folder]


def find_tar_names(path: Path, names: Sequence[str] | None = None) -> tuple[Path, list[str]]:
    """Folder and names of the tars of a dataset, sorted; a single tar is a dataset of its own.

    Raises:
        UsageError: there is none.
    """
    if names is not None:
        return (path if path.is_dir() else path.parent).resolve(), sorted(names)
    if is_pattern(path):
        folder, names = expand(path)
        return folder.resolve(), names
    if not path.is_dir():
        # The tar itself stays unresolved: it may be a link to a blob of no telling name.
        folder, names = path.parent.resolve(), [path.name]
    else:
        folder = path.resolve()
        names = _tar_names(folder)
    if not names or not os.path.lexists(folder / names[0]):
        raise UsageError(f"{show_path(path)} is no tar and no folder of tars")
    return folder, names


def count_beside(source: Path, ignored: dict[str, int]) -> None:
    """Count, by ending, the files that converting a folder of tars passes over, those in folders
    below among them; none where the source is a dataset, or a tar or a pattern, which names what
    is meant."""
    if not source.is_dir() or (source / INDEX_NAME).exists() or not is_tar_source(source):
        return
    taken = {*find_tar_names(source)[1]}
    for folder, below, names in os.walk(source):
        hidden = [n for n in below + names if n.startswith(".") and n != CACHE_NAME]
        below[:] = [name for name in below if not name.startswith(".")]
        others = [
            os.path.splitext(name)[1].lower()
            for name in names
            if not name.startswith(".")
            and os.path.relpath(os.path.join(folder, name), source) not in taken
        ]
        for ending in [*others, *("hidden" for _ in hidden)]:
            ignored[ending] = ignored.get(ending, 0) + 1
