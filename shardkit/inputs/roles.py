"""What the name of a folder says that it holds: pictures, annotations of pictures, or nothing sure.

There are two lists of each. A folder of the first list is hardly ever a class. One of the second
may be a class as well: classes of faces are called ``mask`` and ``no_mask``, those of paintings
``photos`` and ``drawings``. Those alone decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from shardkit.inputs.folders import split_of

Role = Literal["pictures", "maybe pictures", "annotations", "maybe annotations", ""]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PICTURES = _words("image images img imgs jpegimages rgb leftimg8bit")

_MAYBE_PICTURES = _words("picture pictures photo photos color colour frames")

_ANNOTATIONS = _words(
    """
    masks labels annotations anns annots segmentations segmentation_masks segmentationclass
    segmentationobject groundtruth ground_truth gt gts trimaps mattes bboxes label_maps depth_maps
    instance_masks semantic_masks xmls jsons gtfine gtcoarse
    """
)

_MAYBE_ANNOTATIONS = _words(
    """
    mask label annotation ann annot seg segs segmentation depth depths depth_map disparity edge
    edges contour contours normals flow alpha alphas matte trimap text texts txt caption captions
    hr lr input inputs target targets noisy clean blur sharp source
    json xml semantic instance instances panoptic parsing saliency heatmap heatmaps boxes bbox
    polygons keypoints
    """
)

_NUMBER = re.compile(r"[_-][0-9]+$")
"""KITTI's ``image_2`` and ``label_2`` are a camera's."""


def role_of(name: str, beside: Iterable[str] = ()) -> Role:
    """What a folder called ``name`` holds, among those ``beside`` it.

    ``train_masks`` beside ``train`` says it of both. ``beer_label`` beside ``beer`` does not: those
    may be classes.
    """
    word = _word(name)
    for role, words in _WORDS.items():
        if word in words:
            return role
    for i in (i for i, letter in enumerate(word) if letter == "_"):
        if _belongs_to(word, word[:i]) and _is_among(word[:i], name, beside):
            return "annotations"
    if split_of(word) is None:  # of a thousand folders, few are called as splits
        return ""
    if any(_belongs_to(_word(other), word) for other in beside if other != name):
        return "pictures"
    return ""


def _is_among(word: str, name: str, beside: Iterable[str]) -> bool:
    return any(_word(other) == word for other in beside if other != name)


_WORDS: dict[Role, frozenset[str]] = {
    "pictures": _PICTURES,
    "maybe pictures": _MAYBE_PICTURES,
    "annotations": _ANNOTATIONS,
    "maybe annotations": _MAYBE_ANNOTATIONS,
}


def is_annotations(role: Role) -> bool:
    return role in ("annotations", "maybe annotations")


def _word(name: str) -> str:
    return _NUMBER.sub("", name.rpartition("/")[2].lower()).replace("-", "_").replace(" ", "_")


def _belongs_to(word: str, other: str) -> bool:
    """Whether a folder is called after another of pictures and what it holds of those."""
    rest = word.removeprefix(f"{other}_")
    is_other = other in _PICTURES or split_of(other) is not None
    return is_other and rest != word and rest in _ANNOTATIONS | _MAYBE_ANNOTATIONS


IMAGES = "images"
"""What the folder of a split's pictures is, where it is called as the split is."""


def split_tracks(names: Sequence[str]) -> dict[str, dict[str, str]] | None:
    """Split -> what it holds -> folder, where each folder is called after both, as Kaggle's
    ``train``, ``train_masks`` and ``test``; None if one is not, or if none holds annotations."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        split, word = _split_and_word(name)
        if split is None or found.setdefault(split, {}).setdefault(word, name) != name:
            return None
    words = {_word(word) for own in found.values() for word in own}
    if len(names) < 2 or words.isdisjoint(_ANNOTATIONS | _MAYBE_ANNOTATIONS):
        return None
    return {split: found[split] for split in sorted(found)}


_MEDICAL = re.compile("(images|labels)(Tr|Va|Ts)")
"""The folders of the Medical Segmentation Decathlon."""

_MEDICAL_SPLITS = {"Tr": "train", "Va": "val", "Ts": "test"}


def _split_and_word(name: str) -> tuple[str | None, str]:
    if (split := split_of(name)) is not None:
        return split, IMAGES
    if (found := _MEDICAL.fullmatch(name)) is not None:
        return _MEDICAL_SPLITS[found[2]], found[1]
    first, _, rest = re.sub("[- ]", "_", name).partition("_")
    if (split := split_of(first)) is not None and any(rest.lower() in w for w in _WORDS.values()):
        return split, rest
    rest, _, last = re.sub("[- ]", "_", name).rpartition("_")
    if (split := split_of(last)) is not None and any(rest.lower() in w for w in _WORDS.values()):
        return split, rest
    return None, ""
