"""Guards against silent mislabelling: what speaks against taking folders for classes, and sets of
files that are not all there.

Class folders are the first-level folders of a source, or of each split. Folders of masks, of splits
or of other files would become classes as well, and nothing in a batch would show it. So a source
whose folders are named as those are is refused, unless its kind was given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Look
from shardkit.inputs.files import DOCUMENTS, SYSTEM_NAMES, FolderListing, extension, join, stem
from shardkit.inputs.folders import split_folders, split_of, split_roots
from shardkit.samples.numbered_files import missing_files, twice_counted
from shardkit.system.paths import first_few, show_path

Role = Literal["pictures", "maybe pictures", "annotations", "maybe annotations", ""]

ANNOTATIONS: tuple[Role, Role] = ("annotations", "maybe annotations")


_NAMES: dict[Role, str] = {
    "pictures": "image images img imgs jpegimages rgb leftimg8bit",
    "maybe pictures": "picture pictures photo photos color colour frames",
    "annotations": """
        masks labels annotations anns annots segmentations segmentation_masks segmentationclass
        segmentationobject groundtruth ground_truth gt gts trimaps mattes bboxes label_maps
        depth_maps instance_masks semantic_masks xmls jsons gtfine gtcoarse
        """,
    "maybe annotations": """
        mask label annotation ann annot seg segs segmentation depth depths depth_map disparity edge
        edges contour contours normals flow alpha alphas matte trimap text texts txt caption
        captions hr lr input inputs target targets noisy clean blur sharp source
        json xml semantic instance instances panoptic parsing saliency heatmap heatmaps boxes bbox
        polygons keypoints
        """,
}
_WORDS = {role: frozenset(names.split()) for role, names in _NAMES.items()}
"""Contents of a folder -> names that say so."""

_NUMBER = re.compile(r"[_-][0-9]+$")
"""KITTI's ``image_2`` and ``label_2`` are a camera's."""


def role_of(name: str, beside: Iterable[str] = ()) -> Role:
    """Return what a folder named ``name`` holds, among those ``beside`` it.

    ``train_masks`` beside ``train`` says it of both. ``beer_label`` beside ``beer`` does not: those
    may be classes.
    """
    word = _word(name)
    for role, words in _WORDS.items():
        if word in words:
            return role
    for i in (i for i, letter in enumerate(word) if letter == "_"):
        if _belongs_to(word, word[:i]) and any(
            _word(other) == word[:i] for other in beside if other != name
        ):
            return "annotations"
    if split_of(word) is None:  # of a thousand folders, few are called as splits
        return ""
    if any(_belongs_to(_word(other), word) for other in beside if other != name):
        return "pictures"
    return ""


def _word(name: str) -> str:
    return _NUMBER.sub("", name.rpartition("/")[2].lower()).replace("-", "_").replace(" ", "_")


def _belongs_to(word: str, other: str) -> bool:
    """Return True if a folder is named after one of images, and after its view of those."""
    rest = word.removeprefix(f"{other}_")
    is_other = other in _WORDS["pictures"] or split_of(other) is not None
    return is_other and rest != word and any(rest in _WORDS[role] for role in ANNOTATIONS)


FEW = 8
"""Folders up to which half of the names decide. Among many, classes have words of splits and of
parts of samples, too: ImageNet's ``bullet_train`` and ``test_tube``."""

MOST_LOOKS = 4
"""Folders of classes that are looked into for folders that no class has."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""Words by ``_``, ``-``, blanks and the like, and by capitals: ``GroundTruth``, ``trainA``."""


def splits_in(name: str) -> set[str]:
    """Return the splits that a name, or a word in it, is named after."""
    found = {split_of(name), *map(split_of, _WORD.findall(name))}
    return {split for split in found if split is not None}


def role_in(name: str) -> Role:
    """Return what a name, or words in it, says that a folder holds; annotations count most."""
    words = _WORD.findall(name)
    runs = [words[i:k] for i in range(len(words)) for k in range(i + 1, min(i + 3, len(words)) + 1)]
    found = {role_of(name), *(role_of("_".join(run)) for run in runs)}
    order: list[Role] = ["annotations", "pictures", "maybe annotations", "maybe pictures"]
    return next((role for role in order if role in found), "")


def doubt_names(names: Sequence[str]) -> str:
    """Return why folders of these names are hardly classes; ``""`` if nothing speaks against it."""
    if odd := [name for name in names if role_of(name) == "annotations"]:
        return f"{first_few(odd)} would be a class, and is named as annotations are"
    if len(names) > 1 and (odd := [name for name in names if role_of(name) == "pictures"]):
        return f"{first_few(odd)} would be a class, and is named as any folder of images"
    exact = [name for name in names if split_of(name)]
    others = [name for name in names if name not in exact]
    if exact and others and (len(exact) > 1 or len(names) <= 3):
        return f"folders {first_few(exact)} are named as splits, and {first_few(others)} are not"
    told = [name for name in names if splits_in(name)]
    num_splits = len({split for name in told for split in splits_in(name)})
    parts = [name for name in names if name not in told and role_in(name) == "annotations"]
    is_half = len(names) <= FEW and 2 * (len(told) + len(parts)) >= len(names)
    if num_splits > 1 and (is_half or len(told) == len(names)):
        return f"folders {first_few(told)} are named after splits"
    roles = [role_in(name) for name in names] if 1 < len(names) <= FEW else [""]
    begin = all(role_of((_WORD.findall(name) or [""])[0]) == "pictures" for name in names)
    if all(roles) and ("annotations" in roles or begin):
        return f"folders {first_few(names)} are named as images or annotations are"
    return ""


def doubt_classes(look: Look, kind: str, extensions: frozenset[str]) -> tuple[str, str]:
    """Return why the folders of a source are hardly classes, and what to do; ``("", "")`` if
    nothing speaks against it.

    Args:
        kind: what the source is taken for.
        extensions: those of its samples.
    """
    top = look.top
    if not top.folders:
        return "", ""
    rename = (
        "rename folders of splits to train, val and test, and move others away; for files that are"
        " one sample together see docs/recipes/annotations.md"
    )
    roots = split_roots(_samples(look, "", extensions))
    splits = [name for name in top.folders if split_of(name)]
    others = [name for name in top.folders if name not in splits]
    if not roots[0].base and others and any(look.list(name).folders for name in splits):
        why = f"folders {first_few(splits)} are named as splits, and {first_few(others)} are not"
        return why, rename
    if not roots[0].base and (why := doubt_names(top.folders)):
        apart = show_path(look.source / top.folders[0])
        return why, f"{rename}, or pack {apart} and the like by themselves"
    tops = [_samples(look, root.base, extensions) for root in roots]
    if any(each.names and each.folders for each in tops):
        return "", ""  # the kind itself refuses it
    places: dict[str, list[str]] = {}  # class -> where its folders lie
    for root, each in zip(roots, tops, strict=True):
        for name in each.folders:
            places.setdefault(name, []).append(join(root.base, name))
    holding = [name for name, own in places.items() if _hold_any(look, own, extensions)]
    empty = [name for name in places if name not in holding]
    others = [name for name in empty if _hold_any(look, places[name], None)]
    if len(holding) == 1 and (others or _fork(look, places[holding[0]], extensions)):
        where = first_few(places[holding[0]])
        beside = f", and there are other files in {first_few(others)}" if others else ""
        return (
            f"all {kind} lie in {where}{beside}",
            f"pack {show_path(look.source / places[holding[0]][0])}",
        )
    if others and (holding or any(each.names for each in tops)):
        where = first_few(places[others[0]])
        return f"{where} holds files, and none of them is a sample of {kind}", "move it away"
    if roots[0].base and (why := doubt_names(holding)):
        return why, rename
    bases = [base for own in list(places.values())[:MOST_LOOKS] for base in own]
    odd = []
    for base in bases:
        names = look.list(base).folders[: FEW + 1]
        roles = [role_in(name) for name in names] if len(names) <= FEW else []
        several = {split_of(name) for name in names if roles} - {None}
        if "annotations" in roles or (len(roles) > 1 and all(roles)) or len(several) > 1:
            odd.append(base)
    if odd and 2 * len(odd) >= len(bases):
        return (
            f"{first_few(look.list(odd[0]).folders)} in {show_path(odd[0])} are named as splits, or"
            " as images or annotations are, and would all be of that class",
            f"pack {show_path(look.source / odd[0])} and the like by themselves",
        )
    return "", ""


def refuse_splits_below(look: Look) -> None:
    """Raise CorpusError if a source holds nothing but a folder with splits in it: they would be
    one."""
    base, folder = "", look.top
    while len(folder.folders) == 1 and split_of(folder.folders[0]) is None:
        if any(stem(name).lower() not in DOCUMENTS for name in folder.names):
            return
        base = join(base, folder.folders[0])
        folder = look.list(base)
        if len(folder.folders) > 1 and split_folders(folder.folders) is not None:
            raise CorpusError(
                f"{show_path(look.source)} holds nothing but {show_path(base)}, in which"
                f" {first_few(folder.folders)} are splits, which would be one: pack"
                f" {show_path(look.source / base)}"
            )


def _samples(look: Look, base: str, extensions: frozenset[str]) -> FolderListing:
    found = look.list(base)
    names = [name for name in found.names if extension(name) in extensions]
    return FolderListing(base, found.folders, names)


def _fork(look: Look, bases: Sequence[str], extensions: frozenset[str]) -> bool:
    """Return True if several folders of samples lie in these, or in the only folder within."""
    below: set[str] = set()
    while bases and len(below) < 2:
        names = {(base, name) for base in bases for name in look.list(base).folders}
        names = {each for each in names if _hold_any(look, ["/".join(each)], extensions)}
        below = {name for _, name in names}
        bases = ["/".join(each) for each in names]
    return len(below) > 1


def _hold_any(look: Look, bases: Iterable[str], extensions: frozenset[str] | None) -> bool:
    """Return True if folders hold a file of these extensions, at any depth; one that cannot be
    listed is taken to hold some, and packing reports it. Most looks end at the first name."""
    seen: set[tuple[int, int]] = set()
    folders = [os.path.join(look.source, base) for base in bases]
    while folders:
        try:
            folder = folders.pop()
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                return True  # a link that loops, which packing names
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith(".") or entry.name in SYSTEM_NAMES:
                        continue
                    if entry.is_dir():
                        folders.append(entry.path)
                    elif extensions is None or extension(entry.name) in extensions:
                        return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
    return False


# --- masks among images ----------------------------------------------------------------------

_OF_MASKS = (
    "masks? segm? segmentations? labels? gt groundtruth depth alpha matte trimap edges? normals?"
    " parts? instances? semantic annotations? superpixels"
)
MASK_WORD = rf"(?:{'|'.join(_OF_MASKS.split())})(?:[_-]?[0-9]{{1,4}})?"
"""A pattern of what follows an image's stem in the name of its mask."""

COMPANION = re.compile(rf"(?<=.)[_.\- ]{MASK_WORD}\Z", re.IGNORECASE | re.DOTALL)
"""The end of a companion's stem: what it shows of its image."""

_MASK = re.compile(rf"^(.+)[_.\- ]{MASK_WORD}\.[^.\n]+$", re.IGNORECASE | re.MULTILINE)


def masks_in(names: Sequence[str]) -> list[str]:
    """Return names that tell of a mask of another image among them: ``1_mask.png`` of ``1.jpg``."""
    # Without digits most names are the same: 0.1 us a name in place of 0.7 us.
    forms = {*os.fsencode("\n".join(names)).translate(None, b"0123456789").split(b"\n")}
    if not any(_MASK.match("x" + os.fsdecode(form)) for form in forms):
        return []
    found = [*_MASK.finditer("\n".join(names))]
    stems = {name.rpartition(".")[0] for name in names}
    return [each[0] for each in found if each[1] in stems]


# --- files that are not all there -----------------------------------------------------------


def refuse_missing(paths: Iterable[str], source: Path) -> None:
    """Raise CorpusError if names of files below ``source`` tell of more files, or of two sets of
    one name, one of which may repeat the other."""
    paths = [*paths]
    if twice := twice_counted(paths):
        one, other = map(show_path, twice)
        raise CorpusError(
            f"{show_path(source)} holds {one} beside {other}, which are not of one set: one of"
            " the two may be an old one; move it away"
        )
    if missing := missing_files(paths):
        files = f"{len(missing):,} file{'s' * (len(missing) != 1)}"
        raise CorpusError(
            f"{show_path(source)} lacks {files} that the names of the others tell"
            f" of: {first_few(missing)}; fetch them, or, if the rest alone is meant, give it names"
            " without '-of-', or pack a folder of links to it that have such names"
        )


def notes_on_splits(splits: Sequence[str]) -> list[str]:
    """Return a line if two splits are called as different people call one and the same."""
    twins = [split for split in ("val", "valid", "validation") if split in splits]
    shown = " and ".join(map(repr, twins))
    return [f"{shown} are two splits; rename one if they are one"] * (len(twins) > 1)


# --- labels -----------------------------------------------------------------------------------

LABEL_NAMES = ("label", "labels", "cls")
"""Names of a column of class numbers, in any kind of input."""

ARRAY_LABELS = frozenset({*LABEL_NAMES, "y", "target", "targets", "class"})
"""Names of such a column among arrays and records, too."""


def notes_on_labels(names: Iterable[str], sure: Iterable[str] = ()) -> list[str]:
    """Return a line on columns that are not taken for labels, and look like some, as
    ``fine_labels``, ``y`` or ``category`` do, or are ``sure`` to be some."""
    words = {name: re.split("[^a-z]+", name.lower()) for name in names}
    wanted = ARRAY_LABELS - {"y"} | {"category", "categories"}
    alike = {name for name, own in words.items() if own == ["y"] or not wanted.isdisjoint(own)}
    odd = sorted({*alike, *sure})
    if not odd:
        return []
    return [
        f"{first_few(odd)}: not cls, though named as labels: whole numbers from 0 become cls, if"
        " one column alone has them and is called label (of arrays and records also y or target):"
        " docs/recipes"
    ]
