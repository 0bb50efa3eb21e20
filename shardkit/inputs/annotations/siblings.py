"""Class folders, or parallel folders? What names alone say of folders side by side. Pure.

Equal stems alone decide nothing: class folders whose files are numbered from 0001 have equal
stems, too, and are far commoner than masks. Nor does a part in common: of two numbered classes the
stems of the smaller are all in the other. So the rule asks, in this order:

1. Does only one folder hold pictures, and do others have files of its stems? Then these are
   parallel: text, JSON and arrays are no pictures of another class.
2. Is a folder called ``images`` or the like? No class is called so. Where the others, called
   ``masks`` or the like, have its stems, they are parallel; where one of another name has exactly
   its stems, too. Where they have not, it is unclear: neither reading explains the names.
3. Is a folder called ``masks`` or the like, beside one other that is not? If its files have the
   stems and other endings, they are parallel: classes are written by one camera. With the same
   endings it is unclear.
4. Else they are classes, unless all stems are equal, one to one, and either a name that may be both
   (``mask``, ``depth``) or endings that differ from folder to folder speak against it.

What is unclear is refused, with both readings: who packs knows which it is, and says so once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardkit.inputs.annotations.stem_fit import HALF, fit
from shardkit.inputs.annotations.tracks import TrackLook
from shardkit.inputs.roles import Role, is_annotations, role_of
from shardkit.system.paths import show_path


@dataclass(frozen=True)
class SiblingVerdict:
    """What folders side by side are; ``why`` is that of what is unclear."""

    what: Literal["parallel", "classes", "unclear"]
    why: str = ""


PARALLEL, CLASSES = SiblingVerdict("parallel"), SiblingVerdict("classes")


def roles_of(looks: Sequence[TrackLook]) -> dict[str, Role]:
    """The role of each folder, by its name."""
    names = [look.name for look in looks]
    return {name: role_of(name, names) for name in names}


def judge_siblings(looks: Sequence[TrackLook]) -> SiblingVerdict | None:
    """What folders side by side are; None if they do not say, as where there are no pictures."""
    held = opened([look for look in looks if look.stems])
    roles = roles_of(held)
    verdict = _judge(held, roles) if len(held) > 1 else None
    if verdict is None or verdict.what == "classes":
        return _contradiction(held, roles) or verdict
    return verdict


def _judge(held: Sequence[TrackLook], roles: dict[str, Role]) -> SiblingVerdict | None:
    pictured = [look for look in held if look.holds_pictures]
    others = [look for look in held if not look.holds_pictures]
    if not pictured:
        return _judge_arrays(held, roles)
    if len(pictured) == 1:
        return _judge_others(pictured[0], others, roles)
    verdict = _judge_pictured(pictured, roles)
    return None if others and verdict.what == "classes" else verdict


def opened(held: Sequence[TrackLook]) -> list[TrackLook]:
    """The same; in place of a folder of annotations that has no stem of the pictures', the folders
    within it, if one of them has: Oxford's pets have ``annotations/trimaps``."""
    roles = roles_of(held)
    reference = find_reference(held, roles)
    if reference is None:
        return [*held]
    found: list[TrackLook] = []
    for look in held:
        within = look.within() if is_annotations(roles[look.name]) else []
        is_other = look is not reference and not fit(look, reference).share
        fits = is_other and any(fit(each, reference).share >= HALF for each in within)
        found += within if fits else [look]
    return found


def find_reference(held: Sequence[TrackLook], roles: dict[str, Role]) -> TrackLook | None:
    """The folder of the pictures themselves; None if several might be."""
    pictured = [look for look in held if look.holds_pictures]
    wanted = [
        [look for look in held if roles[look.name] == "pictures"],
        pictured,
        [look for look in pictured if not is_annotations(roles[look.name])],
        [look for look in pictured if roles[look.name] == "maybe pictures"],
    ]
    return next((found[0] for found in wanted if len(found) == 1), None)


# --- one folder beside another ------------------------------------------------------------


def _is_one_to_one(looks: Sequence[TrackLook]) -> bool:
    return all(look.stems == looks[0].stems for look in looks)


def _end_alike(looks: Sequence[TrackLook]) -> bool:
    """Whether all have an ending in common; ``.jpg`` and ``.jpeg`` are one."""
    return bool(frozenset.intersection(*(frozenset(map(_spelt, own.endings)) for own in looks)))


def _spelt(ending: str) -> str:
    return {".jpeg": ".jpg", ".jpe": ".jpg", ".jfif": ".jpg", ".tiff": ".tif"}.get(ending, ending)


# --- the rule -----------------------------------------------------------------------------


def _judge_others(
    reference: TrackLook, others: Sequence[TrackLook], roles: dict[str, Role]
) -> SiblingVerdict | None:
    """One folder of pictures, and others of other files."""
    annotations = [look for look in others if is_annotations(roles[look.name])]
    if any(fit(look, reference).share >= HALF for look in annotations):
        return PARALLEL
    if any(_covers(look, reference) for look in others):
        return PARALLEL
    if roles[reference.name] == "pictures" and annotations:
        return _unlike(annotations[0], reference)
    return None


def _covers(look: TrackLook, reference: TrackLook) -> bool:
    """Whether half of the stems of both are common: notes called 1.txt and 2.txt say nothing of
    pictures that are numbered, too."""
    found = fit(look, reference)
    common = len(found.stems & found.others)
    return common >= HALF * max(len(found.stems), len(found.others))


def _contradiction(held: Sequence[TrackLook], roles: dict[str, Role]) -> SiblingVerdict | None:
    """Folders called as of pictures and as of annotations are no classes, however few pictures are
    among their files."""
    held = [look for look in held if look.has_pictures]
    images = [look for look in held if roles[look.name] == "pictures"]
    others = [look for look in held if is_annotations(roles[look.name])]
    return _unlike(others[0], images[0]) if images and others else None


def _judge_arrays(held: Sequence[TrackLook], roles: dict[str, Role]) -> SiblingVerdict | None:
    """No pictures, but arrays: each is a sample of its own unless names say otherwise."""
    reference = find_reference(held, roles)
    if reference is None or not reference.holds_arrays:
        return None
    others = [look for look in held if look is not reference]
    are_known = all(is_annotations(roles[look.name]) for look in others)
    fits = all(fit(look, reference).share >= HALF for look in others)
    return PARALLEL if are_known and fits else None


def _judge_pictured(pictured: Sequence[TrackLook], roles: dict[str, Role]) -> SiblingVerdict:
    """Several folders of pictures."""
    strong = [look for look in pictured if roles[look.name] == "pictures"]
    if len(strong) == 1:
        return _judge_beside(strong[0], [look for look in pictured if look is not strong[0]], roles)
    known = [look for look in pictured if is_annotations(roles[look.name])]
    rest = [look for look in pictured if look not in known]
    if len(strong) > 1:
        pairs = ((look, other) for other in strong for look in pictured if look is not other)
        is_like = any(fit(look, other).share >= HALF for look, other in pairs)
        return _several(strong) if known or is_like else CLASSES
    if not known:
        is_odd = not _end_alike(pictured) and _is_one_to_one(pictured)
        return _equal(pictured) if is_odd else CLASSES
    return _judge_without_images(known, rest, roles)


def _judge_beside(
    reference: TrackLook, others: Sequence[TrackLook], roles: dict[str, Role]
) -> SiblingVerdict:
    """Folders beside one that is called ``images``."""
    known = [look for look in others if is_annotations(roles[look.name])]
    unknown = [look for look in others if look not in known]
    unlike = [look for look in known if fit(look, reference).share < HALF]
    unlike += [look for look in unknown if look.stems != reference.stems]
    if not unlike:
        return PARALLEL
    if not known and not any(fit(look, reference).share for look in unknown):
        return CLASSES
    return _unlike(unlike[0], reference)


def _judge_without_images(
    known: Sequence[TrackLook], rest: Sequence[TrackLook], roles: dict[str, Role]
) -> SiblingVerdict:
    """Folders called ``masks`` or ``mask``, and none called ``images``."""
    sure = [look for look in known if roles[look.name] == "annotations"]
    like = [look for look in known if any(fit(look, other).share >= HALF for other in rest)]
    differ = len(rest) == 1 and not any(_end_alike([look, rest[0]]) for look in known)
    if differ and len(sure) == len(like) == len(known):
        return PARALLEL
    everything = [*rest, *known]
    is_odd = (differ and like) or _is_one_to_one(everything) or any(look in like for look in sure)
    return _equal(everything) if is_odd else CLASSES


# --- why it is unclear --------------------------------------------------------------------


def _unlike(look: TrackLook, reference: TrackLook) -> SiblingVerdict:
    common = len(look.stems & reference.stems)
    return SiblingVerdict(
        "unclear",
        f"of the {len(look.stems):,} names in {show_path(look.name)}, without their endings,"
        f" {common:,} are those of files in {show_path(reference.name)}, which has"
        f" {len(reference.stems):,}",
    )


def _equal(looks: Sequence[TrackLook]) -> SiblingVerdict:
    names = ", ".join(show_path(look.name) for look in looks[:4])
    return SiblingVerdict(
        "unclear", f"files of one name, but for its ending, lie in each of {names}"
    )


def _several(looks: Sequence[TrackLook]) -> SiblingVerdict:
    names = " and ".join(show_path(look.name) for look in looks)
    return SiblingVerdict("unclear", f"{names} are all called as folders of pictures are")
