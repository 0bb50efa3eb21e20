"""Folders side by side with files of one name, where no picture tells: sound and its texts."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from shardkit.inputs.annotations.siblings import roles_of
from shardkit.inputs.annotations.stem_fit import HALF, fit
from shardkit.inputs.annotations.tracks import MAX_TRACKS, TrackLook, find_tree, look_at
from shardkit.inputs.odd_names import are_several
from shardkit.inputs.roles import Role, is_annotations
from shardkit.system.paths import show_path


def or_parallel(source: Path) -> str:
    """One more kind to choose, where folders have files of one name."""
    pair = folders_of_one_name(source)
    if pair is None:
        return ""
    one, other = map(show_path, sorted(pair))
    return f", or --corpus parallel, since files in {one} and {other} are of one name"


def folders_of_one_name(source: Path) -> tuple[str, str] | None:
    """Two folders that ``parallel`` would join; None if there are none.

    Half of the names in the one are in the other, and the one holds other kinds of files, or is
    called as annotations are. It is no reading to choose unasked: it is to be told of.

    Raises:
        StorageError: as of :func:`shardkit.inputs.files.walk`.
    """
    tree = find_tree(source)
    names = {name for folders in tree.values() for name in folders}
    if not 1 < len(names) <= MAX_TRACKS or are_several(names):
        return None
    looks = [look for look in look_at(source, tree) if look.stems]
    roles = roles_of(looks)
    pairs = (
        (one.name, other.name) for one, other in permutations(looks, 2) if _fits(one, other, roles)
    )
    return next(pairs, None)


def _fits(one: TrackLook, other: TrackLook, roles: dict[str, Role]) -> bool:
    is_other = one.endings.keys().isdisjoint(other.endings) or (
        is_annotations(roles[one.name]) and not is_annotations(roles[other.name])
    )
    return is_other and fit(one, other).share >= HALF
