"""Whether the files of one folder are called as those of another, but for what names end in. Pure.

``leftImg8bit/a_leftImg8bit.png`` beside ``gtFine/a_gtFine_color.png`` and
``gtFine/a_gtFine_labelIds.png``: names of both folders may end in words of their own, and one
folder may have several files for each of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from shardkit.inputs.annotations.tracks import TrackLook

HALF = 0.5
"""Share of the smaller folder's stems that the other must have. Masks are often of some pictures
only, and a few pictures are lost in any dataset; folders that have nothing to do with one another
share far less, or, numbered from 1, all, which is why names have a say."""

MAX_SUFFIXES = 8
"""Of one folder. More words are no kinds of files."""


@dataclass(frozen=True)
class StemFit:
    """How well the stems of one folder are those of another.

    Attributes:
        share: of the smaller folder's, how many are the other's. suffixes: what names of the one
            end in besides, as in ``0001_mask.png``. own_suffix: the same of the other. stems,
            others: those of both without it.
    """

    share: float
    suffixes: tuple[str, ...]
    own_suffix: str
    stems: frozenset[str]
    others: frozenset[str]


def fit(look: TrackLook, other: TrackLook, own_suffix: str | None = None) -> StemFit:
    """How well the stems of ``look`` are those of ``other``, whose names all end in ``own_suffix``;
    None looks for the first that makes them fit."""
    own = ["", *shared_suffixes(other.stems)] if own_suffix is None else [own_suffix]
    found = [_fit(look.stems, other.stems, own[0])]
    for suffix in own[1:]:
        if found[-1].share >= HALF:
            break
        found.append(_fit(look.stems, other.stems, suffix))
    return found[-1] if found[-1].share >= HALF else found[0]


def fit_in_each_split(look: TrackLook, other: TrackLook) -> bool:
    """Whether the stems of one folder are those of another in each of several splits, though what
    names end in besides is each split's own: ``21_training.tif`` and ``01_test.tif``."""
    own, others = _by_split(look.stems), _by_split(other.stems)
    common = own.keys() & others.keys()
    looks = [(TrackLook("", own[split]), TrackLook("", others[split])) for split in common]
    return len(others) > 1 and bool(looks) and all(fit(*pair).share >= HALF for pair in looks)


def _by_split(stems: AbstractSet[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for stem in stems:
        found.setdefault(stem.partition("//")[0], set()).add(stem)
    return found


def common_suffix(looks: Sequence[TrackLook], other: TrackLook) -> str:
    """What the names of ``other`` end in besides, if more of ``looks`` fit it so than as it is."""
    shares = {
        suffix: sum(_fit(look.stems, other.stems, suffix).share for look in looks)
        for suffix in ("", *shared_suffixes(other.stems))
    }
    return max(shares, key=shares.__getitem__)


def _fit(stems: AbstractSet[str], other: AbstractSet[str], own_suffix: str) -> StemFit:
    others = frozenset(cut_suffix(stem, [own_suffix])[0] for stem in other)
    suffixes = () if stems <= others else _find_suffixes(stems, others)
    cut = frozenset(cut_suffix(stem, suffixes)[0] for stem in stems)
    share = len(cut & others) / min(len(cut), len(others))
    return StemFit(share, suffixes, own_suffix, cut, others)


def cut_suffix(stem: str, suffixes: Sequence[str]) -> tuple[str, str]:
    """A stem without the longest of the suffixes that it ends in, and that suffix."""
    for suffix in sorted(suffixes, key=len, reverse=True):
        rest = stem[: len(stem) - len(suffix)]
        if suffix and stem.endswith(suffix) and rest and not rest.endswith("/"):
            return rest, suffix
    return stem, ""


def _find_suffixes(stems: AbstractSet[str], others: AbstractSet[str]) -> tuple[str, ...]:
    """What follows one of ``others`` in half of the stems, at least, that begin with one.

    Where some stems of a split are those of others as they are, a suffix must follow some of these,
    too: else ``1_b``, whose picture is not there, would be the mask of ``1`` beside ``1_a`` and its
    own.
    """
    following: dict[str, set[str]] = {}
    for stem in stems:
        rest = stem if stem in others else _longest_start(stem, others)
        if rest is not None:
            following.setdefault(stem[len(rest) :], set()).add(rest)
    matched = set().union(*following.values())
    exact = following.get("", set())
    splits = {stem.partition("//")[0] for stem in exact}
    found = [
        suffix
        for suffix, own in sorted(following.items())
        if any(map(str.isalpha, suffix))
        and len(own) >= HALF * len(matched)
        and (own & exact or splits.isdisjoint(stem.partition("//")[0] for stem in own))
    ]
    is_clear = all(
        cut_suffix(rest + suffix, found) == (rest, suffix)
        for suffix, own in following.items()
        if suffix in found or not suffix
        for rest in own
    )
    return tuple(found) if is_clear and len(found) <= MAX_SUFFIXES else ()


def _longest_start(stem: str, others: AbstractSet[str]) -> str | None:
    ends = (i for i in range(len(stem) - 1, 0, -1) if stem[i] in "_-.")
    return next((stem[:i] for i in ends if stem[:i] in others), None)


def shared_suffixes(stems: AbstractSet[str]) -> list[str]:
    """What all stems end in, from a ``_``, ``-`` or ``.`` on and with a letter in it; the shortest
    first."""
    name = min(stems).rpartition("/")[2]
    starts = [i for i in range(len(name) - 1, 0, -1) if name[i] in "_-."]
    found = [name[i:] for i in starts if any(letter.isalpha() for letter in name[i:])]
    return [suffix for suffix in found if all(each.endswith(suffix) for each in stems)]
