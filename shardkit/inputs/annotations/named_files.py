"""Which file of a source a name in an annotation file means."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.files import walk
from shardkit.inputs.folders import split_of
from shardkit.inputs.names import cut_ending, encode, join
from shardkit.system.paths import show_path


def clean_path(base: str, name: object) -> str | None:
    """A path relative to the source, of a name in a file that lies in ``base``; None if it is none,
    leads out of the source, or has no ending that can name a field."""
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    path = posixpath.normpath(join(base, name))
    try:
        encode([path])
    except UnicodeEncodeError:  # half a surrogate pair
        return None
    ending = cut_ending(path.rpartition("/")[2])[1]
    is_inside = not name.startswith("/") and path.partition("/")[0] != ".."
    return path if is_inside and ending and is_field_name("x" + ending) else None


def folders_of(source: Path, names: Iterable[str]) -> dict[str, list[str]]:
    """Last part of a name -> the folders that hold a file called so."""
    wanted = {name.rpartition("/")[2] for name in names}
    found: dict[str, list[str]] = {}
    if not wanted:
        return found
    for folder in walk(source, measure=False):
        for name in wanted.intersection(folder.names):
            found.setdefault(name, []).append(folder.base)
    return found


def base_of(
    names: Iterable[str], folders: dict[str, list[str]], file: str, split: str | None
) -> str | None:
    """The folder that the names in an annotation file are relative to; None if no picture of those
    names is there.

    It is the one that the file lies in, or one called after the file's split, if half as many of
    the pictures are there as anywhere; else that which has most of them.

    Raises:
        CorpusError: several have as many.
    """
    votes: Counter[str] = Counter()
    for name in names:
        folder, _, last = name.rpartition("/")
        for base in folders.get(last, ()):
            if _is_of_another(base, split):
                continue
            if base == folder or not folder:
                votes["" if folder else base] += 1
            elif base.endswith(f"/{folder}"):
                votes[base[: -len(folder) - 1]] += 1
    if not votes:
        return None
    most = max(votes.values())
    own = file.rpartition("/")[0]
    near = [
        base for base in sorted(votes) if 2 * votes[base] >= most and _is_near(base, own, split)
    ]
    best = near[:1] or [base for base in sorted(votes) if votes[base] == most]
    if len(best) > 1 or len(near) > 1:
        one, other = (show_path(base or ".") for base in (near if len(near) > 1 else best)[:2])
        raise CorpusError(
            f"{show_path(file)} may name the pictures in {one} or those in {other}; move it to"
            " those that it names, or pack them apart"
        )
    return best[0]


def _is_of_another(base: str, split: str | None) -> bool:
    """Whether a folder is called after another split: ``0001.jpg`` of val is not that of train."""
    found = [_alike(part) for part in map(split_of, base.split("/")) if part is not None]
    return split is not None and bool(found) and _alike(split) not in found


def _is_near(base: str, own: str, split: str | None) -> bool:
    parts = [_alike(part) for part in map(split_of, base.split("/")) if part is not None]
    return (split is not None and _alike(split) in parts) or (base == own and own != "")


def _alike(split: str) -> str:
    return "val" if split in ("valid", "validation", "dev") else split
