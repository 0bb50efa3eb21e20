"""Names of folders that speak against the folders being classes. Pure.

Splits and annotations are often told by a word within a name: ``bounding_box_train``, ``trainA``,
``masks_png``, ``X_GroundTruth``. Classes have such words, too: ImageNet's ``bullet_train`` and
``test_tube``. So one such name among many says nothing; what counts is how many of them there are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from shardkit.inputs.folders import split_of
from shardkit.inputs.roles import Role, role_of
from shardkit.system.paths import first_few, show_path

_FEW = 8
"""So few folders may be called after splits, of which half are enough; more are classes unless all
of them are called so."""

_VERY_FEW = 3
"""Among so few folders, one that is called just as a split is decides."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""Words by ``_``, ``-``, blanks and the like, and by capitals: ``GroundTruth``, ``trainA``."""


class OddClasses(NamedTuple):
    """What speaks against folders being classes, in words, and what to do then."""

    why: str
    advice: str


def splits_in(name: str) -> set[str]:
    """The splits that a name, or words in it, are called after."""
    found = {split_of(name), *map(split_of, _WORD.findall(name))}
    return {split for split in found if split is not None}


def role_in(name: str) -> Role:
    """What a name, or words in it, says that a folder holds; that of annotations counts most."""
    words = _WORD.findall(name)
    runs = [words[i:k] for i in range(len(words)) for k in range(i + 1, min(i + 3, len(words)) + 1)]
    found = {role_of(name), *(role_of("_".join(run)) for run in runs)}
    order: list[Role] = ["annotations", "pictures", "maybe annotations", "maybe pictures"]
    return next((role for role in order if role in found), "")


def called_as_splits(names: Sequence[str], where: str) -> OddClasses | None:
    """Folders side by side, of which not all are called just as splits are, that are called after
    splits nevertheless. Folders of annotations beside them are no classes, either."""
    if len(names) > _FEW and not all(map(splits_in, names)):
        return None
    splits = {name: found for name in names if (found := splits_in(name))}
    others = [name for name in names if name not in splits]
    num_odd = len(splits) + sum(role_in(name) == "annotations" for name in others)
    is_half = 2 * num_odd >= len(names)
    is_exact = 1 < len(names) <= _VERY_FEW and any(split_of(name) for name in names)
    if not is_exact and (not are_several(splits) or not is_half):
        return None
    why = f"folders {first_few([*splits])} are called after splits"
    if len(splits) == 1:
        why = f"folder {first_few([*splits])} is called as a split"
    beside = "are" if len(others) > 1 else "is"
    why += f", and {first_few(others)} {beside} not" if others else ", and more"
    one = "it is one" if len(splits) == 1 else "they are splits"
    return OddClasses(why, f"if {one}, {_split_advice(splits, others, where)}")


def are_several(names: Iterable[str]) -> bool:
    """Whether names are called after several splits."""
    return len({split for name in names for split in splits_in(name)}) > 1


def _split_advice(splits: dict[str, set[str]], others: Sequence[str], where: str) -> str:
    """What makes splits of folders called after them: they are renamed where each is a split of its
    own, and put into folders of splits where the words besides may be classes."""
    apart = f"pack {where}/{next(iter(splits))} and the like apart"
    if any(len(found) > 1 for found in splits.values()):
        return apart
    split = {name: next(iter(found)) for name, found in splits.items()}
    move = f"move {first_few(others)} away" if others else ""
    if len({*split.values()}) == len(split):
        renamed = [f"{show_path(n)} to {s}" for n, s in split.items() if split_of(n) is None]
        doing = [f"rename {', '.join(renamed)}"] if renamed else []
        return f"{' and '.join([*doing, *filter(None, [move])])}, or {apart}"
    if not others and not any(map(role_in, splits)) and (name := _first_with_rest(split)):
        return f"move {show_path(name)} to {split[name]}/{_rest(name)} and so on, or {apart}"
    if any(role_in(name) == "annotations" for name in splits):
        return (
            "put the pictures of each split, and what belongs to them, side by side, as"
            f" train/images and train/masks, or {apart}"
        )
    return apart


def _first_with_rest(split: dict[str, str]) -> str:
    rests = {name: _rest(name) for name in split}
    return next(iter(split)) if all(rests.values()) else ""


def _rest(name: str) -> str:
    """The words of a name that name no split."""
    return "_".join(word for word in _WORD.findall(name) if split_of(word) is None)


def called_as_parts(names: Sequence[str]) -> OddClasses | None:
    """Few folders of which each is called as pictures or as annotations are, and one surely.

    ``cat_images`` beside ``dog_images`` are classes: what is surely called so begins with it.
    """
    if not 1 < len(names) <= _FEW:
        return None
    roles = {name: role_in(name) for name in names}
    if not all(roles.values()):
        return None
    has_annotations = "annotations" in roles.values()
    if not has_annotations and not all(role_of(_first_word(n)) == "pictures" for n in names):
        return None
    why = f"folders {first_few(names)} are called as pictures or annotations are"
    advice = "rename them to images, masks and the like if files of one name are one sample"
    return OddClasses(why, advice if has_annotations else "pack each apart")


def _first_word(name: str) -> str:
    return next(iter(_WORD.findall(name)), "")


def called_as_parts_within(within: Sequence[tuple[str, Collection[str]]]) -> OddClasses | None:
    """Folders within those of classes that are called as splits, or as parts of samples.

    Args:
        within: where a folder of a class lies, and the names of those within; of some classes.
    """
    odd = [(base, names) for base, names in within if _are_parts(names)]
    if not odd or 2 * len(odd) < len(within):
        return None
    base, names = odd[0]
    why = (
        f"{first_few(sorted(names))} in {show_path(base)} are called as splits, or as pictures or"
        " annotations are, and would all be of that class"
    )
    return OddClasses(why, base)


def _are_parts(names: Collection[str]) -> bool:
    if len(names) > _FEW:
        return False
    roles = [role_in(name) for name in names]
    splits = {split for name in names if (split := split_of(name)) is not None}
    are_known = len(names) > 1 and all(roles)
    return "annotations" in roles or are_known or len(splits) > 1
