"""Which folders side by side are packed, what their fields are called, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations

from shardkit.errors import CorpusError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.annotations.siblings import find_reference, opened, roles_of
from shardkit.inputs.annotations.stem_fit import (
    HALF,
    StemFit,
    common_suffix,
    cut_suffix,
    fit,
    fit_in_each_split,
)
from shardkit.inputs.annotations.tracks import TrackLook
from shardkit.inputs.odd_names import are_several, splits_in
from shardkit.system.paths import first_few, show_path

_ODD = re.compile(r"[^a-z0-9_.-]+")


@dataclass(frozen=True)
class TrackPlan:
    """How folders become fields.

    Attributes:
        views: folder -> what its names end in besides the stem -> what fields are called before
            the ending; ``""`` for those of the folder of the pictures themselves, if there is one.
        main: the folder of the pictures themselves; ``""`` if there is none, or if it holds none.
        notes: what there is to say, a line each.
    """

    views: dict[str, dict[str, str]]
    main: str = ""
    notes: list[str] = field(default_factory=list)


def plan_tracks(looks: Sequence[TrackLook], where: str) -> TrackPlan | None:
    """The plan for folders of parallel files; None if there are not two of them.

    Raises:
        CorpusError: two folders have no stem in common, would give one field's name, or are called
            after splits.
    """
    held = opened([look for look in looks if look.stems])
    if len(held) < 2:
        return None
    roles = roles_of(held)
    for look in held:
        if not roles[look.name]:
            _refuse_parts_within(look, where)
    refuse_splits_as_parts([look.name for look in held], where)
    reference = find_reference(held, roles)
    if reference is None:
        return _plan_of_equals(held, where)
    others = [look for look in held if look is not reference]
    own_suffix = common_suffix(others, reference)
    fits = {look.name: fit(look, reference, own_suffix) for look in others}
    own = frozenset(cut_suffix(stem, [own_suffix])[0] for stem in reference.stems)
    fits[reference.name] = StemFit(1.0, (own_suffix,) * bool(own_suffix), own_suffix, own, own)
    kept = [look for look in held if fits[look.name].share]
    _refuse_unlike([look for look in held if look not in kept], reference, where)
    if len(kept) < 2:
        raise CorpusError(
            f"{where}: no other folder has a file called as one in {show_path(reference.name)},"
            " but for the ending; rename them, or choose another --corpus"
        )
    views = _views({each.name: fits[each.name].suffixes for each in kept}, reference.name, where)
    notes = [f"{show_path(reference.name)}: {_besides([own_suffix])}"] if own_suffix else []
    for look in held:
        if look not in kept:
            notes.append(
                f"{show_path(look.name)}/ is passed over: no file in it is called as one in"
                f" {show_path(reference.name)}"
            )
        elif look is not reference:
            its = fits[look.name]
            notes += _notes(look.name, its, _pictured(reference, own_suffix), its.others)
    main = reference.name if reference.holds_pictures else ""
    return TrackPlan(views, main, notes)


def _plan_of_equals(held: Sequence[TrackLook], where: str) -> TrackPlan:
    """The plan where several folders might be that of the pictures themselves: each is called by
    its own name."""
    base = max(held, key=lambda look: sum(fit(other, look, "").share for other in held))
    fits = {look.name: fit(look, base, "") for look in held}
    everything = frozenset[str]().union(*(own.stems for own in fits.values()))
    if len(everything) == sum(len(own.stems) for own in fits.values()):
        raise CorpusError(
            f"{where}: no two folders have files of one name but for the ending; rename them, or"
            " choose another --corpus"
        )
    notes = [note for name, own in fits.items() for note in _notes(name, own, everything)]
    return TrackPlan(_views({n: own.suffixes for n, own in fits.items()}, None, where), notes=notes)


def refuse_splits_as_parts(names: Sequence[str], where: str) -> None:
    """Refuse folders called after several splits: a picture of ``train`` and one of ``test`` are
    never one sample, though both are called ``000``.

    Raises:
        CorpusError: so they are.
    """
    splits = [name for name in names if splits_in(name)]
    if not are_several(splits):
        return
    one, others = show_path(splits[0]), [name for name in names if name not in splits]
    advice = "pack each apart"
    if others:
        advice = (
            f"move what lies in {one} to {one}/images, and what {first_few(others)} holds of it to"
            f" {one}/masks or the like, and so for each split"
        )
    raise CorpusError(
        f"{where}: folders {first_few(splits)} are called after splits, so that files of one name"
        f" in them are no parts of one sample; {advice}"
    )


def _refuse_parts_within(look: TrackLook, where: str) -> None:
    """Refuse a folder that is itself one of parallel folders: samples of ``00/velodyne`` and of
    ``01/velodyne`` would be one, since their numbers are."""
    for one, other in combinations(look.within(), 2):
        if one.endings.keys().isdisjoint(other.endings) and fit(one, other).share >= HALF:
            name, first, second = (show_path(each) for each in (look.name, one.name, other.name))
            part = second.rpartition("/")[2]
            raise CorpusError(
                f"{where}: {first} and {second} are parallel folders within {name}, so that {name}"
                f" is no part of a sample: pack {where}/{name} and the like apart, or move what"
                f" lies in them, as {second} to {part}/{name}"
            )


def _refuse_unlike(unlike: Sequence[TrackLook], reference: TrackLook, where: str) -> None:
    """Text and the like without a picture are passed over; pictures and arrays never are."""
    for look in unlike:
        if look.holds_pictures or look.holds_arrays:
            advice = f"rename them, or move {show_path(look.name)} away"
            if fit_in_each_split(look, reference):
                advice = (
                    "in each split for itself they are, since what names end in besides is the"
                    " split's own: pack the folder of each split apart, with --corpus parallel"
                )
            raise CorpusError(
                f"{where}: no file in {show_path(look.name)} is called as one in"
                f" {show_path(reference.name)}, but for the ending; {advice}"
            )


# --- names of fields ----------------------------------------------------------------------


def _views(
    suffixes: Mapping[str, Sequence[str]], main: str | None, where: str
) -> dict[str, dict[str, str]]:
    """Folder -> suffix -> view: the folder's own name, with the suffix where it has several, and
    with the folder's above it if that name is another's, too; none for the ``main`` one."""
    names = [name for name in suffixes if name != main]
    last = {name: view_of(name.rpartition("/")[2]) for name in names}
    plain = {
        name: view if [*last.values()].count(view) == 1 else view_of(name.replace("/", "_"))
        for name, view in last.items()
    }
    views = {name: _of_folder(view, suffixes[name]) for name, view in plain.items()}
    owners: dict[str, str] = {}
    for name, own in views.items():
        for view in {*own.values()}:
            if (other := owners.setdefault(view, name)) != name:
                raise CorpusError(
                    f"{where}: {show_path(other)} and {show_path(name)} would both be called"
                    f" {view!r} as fields; rename one"
                )
    if main is not None:
        views[main] = {"": "", **dict.fromkeys(suffixes[main], "")}
    return views


def _of_folder(view: str, suffixes: Sequence[str]) -> dict[str, str]:
    """Suffix -> view, in a folder of one view: all the same, unless there are several suffixes."""
    found = {"": view}
    for suffix in suffixes:
        word = view_of(suffix.strip("_-."))
        if len(suffixes) < 2:
            word = view
        elif not word.startswith(view):
            word = view_of(f"{view}_{word}")
        found[suffix] = word
    return found


def view_of(name: str) -> str:
    """What fields of a folder, or of a word, are called before their ending."""
    view = _ODD.sub("_", name.lower()).lstrip(".-")[:40]
    return view if is_field_name(f"{view}.x") else f"_{view}"


# --- what is said -------------------------------------------------------------------------


def _notes(
    name: str, its: StemFit, wanted: Set[str], pictures: Set[str] | None = None
) -> list[str]:
    """Args: wanted: stems that the folder may lack. pictures: those of the folder of the pictures,
    if there is one."""
    where = show_path(name)
    of = "samples" if pictures is None else "pictures"
    found = [f"{where}: {_besides(its.suffixes)}"] if its.suffixes else []
    if missing := wanted - its.stems:
        found.append(
            f"{where}: {len(missing):,} of {len(wanted):,} {of} have no file there:"
            f" {shown(missing)}"
        )
    if pictures is not None and (more := its.stems - pictures):
        found.append(f"{where}: {_no_picture(len(more))}: {shown(more)}")
    return found


def _no_picture(count: int) -> str:
    if count == 1:
        return "1 file has no picture, and is a sample without one"
    return f"{count:,} files have no picture, and are samples without one"


def _besides(suffixes: Sequence[str]) -> str:
    how = ", which name its fields" if len(suffixes) > 1 else ""
    return f"names end in {', '.join(map(repr, suffixes))} besides{how}"


def _pictured(reference: TrackLook, suffix: str) -> frozenset[str]:
    """The stems of pictures, or of all files if it holds none."""
    stems = reference.pictured if reference.holds_pictures else reference.stems
    return frozenset(cut_suffix(stem, [suffix])[0] for stem in stems)


def shown(stems: Iterable[str]) -> str:
    """The first few of ``split//path``."""
    names = sorted(each.replace("//", "/").removeprefix("train/") for each in stems)
    return first_few(names)
