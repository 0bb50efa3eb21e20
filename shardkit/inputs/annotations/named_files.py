"""Which file of a source a name in an annotation file means."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.files import walk
from shardkit.inputs.folders import split_of
from shardkit.inputs.names import cut_ending, encode, join
from shardkit.inputs.roles import role_of
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
    wanted = {last for name in names for last in (_last(name), _last(_slashed(name)))}
    found: dict[str, list[str]] = {}
    if not wanted:
        return found
    for folder in walk(source, measure=False):
        for name in wanted.intersection(folder.names):
            found.setdefault(name, []).append(folder.base)
    return found


def place_names(
    names: Sequence[str], folders: dict[str, list[str]], file: str, split: str | None
) -> tuple[Sequence[str], str | None]:
    """Return the names in an annotation file as paths in a folder, and that folder as of
    :func:`base_of`.

    Where no picture is there as they stand, as on the machine of whoever wrote them, slashes stand
    for backslashes, and the folders that all begin with are cut off one by one, or all folders.
    The pictures found then must lie in no folder that is called as none of those, unless it is
    called as any folder of pictures is: ``camera1/1.jpg`` is not ``camera2/1.jpg``.

    Raises:
        CorpusError: as of :func:`base_of`.
    """
    if (base := base_of(names, folders, file, split)) is not None:
        return names, base
    parts = [_slashed(name).split("/") for name in names]
    shared = posixpath.commonprefix([own[:-1] for own in parts])
    for start in (*range(len(shared) + 1), -1):
        cut = ["/".join(own[start:]) for own in parts]
        off = {part for own in parts for part in own[:start]} if start else set()
        if len({*cut}) < len({*names}) or len({*filter(None, map(split_of, off))}) > 1:
            break
        own_split = split or next(filter(None, map(split_of, off)), None)
        base = base_of(cut, folders, file, own_split)
        if base is not None:
            found = base.split("/") if base else []
            is_there = all(part in off or role_of(part) == "pictures" for part in found)
            return (cut, base) if is_there or not start else (names, None)
    return names, None


def none_there(names: Sequence[str], folders: dict[str, list[str]], split: str | None) -> str:
    """Say that no picture is where an annotation file says, and what to do."""
    why = f"none of the {len(names):,} pictures that it names is there"
    for name in names:
        last = _last(_slashed(name))
        for base in folders.get(last, ()):
            if not _is_of_another(base, split):
                found = show_path(join(base, last))
                return f"{why}; if {name!r} is {found}, correct the names in it, else fetch them"
    return f"{why}; fetch them"


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _slashed(name: str) -> str:
    return name.replace("\\", "/")


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
