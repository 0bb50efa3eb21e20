"""Whether a folder holds pictures with annotations, and in which of the known layouts.

Each layout is looked for by itself. If a folder has one, that is its kind. If it has several, or
one that might as well be class folders, it is refused with all readings, and the options that
choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardkit.errors import CorpusError
from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.annotations.caption_files import find_captions
from shardkit.inputs.annotations.coco_file import find_coco
from shardkit.inputs.annotations.companion_names import group_names
from shardkit.inputs.annotations.metadata_files import (
    find_metadata,
    first_columns,
    is_file_column,
    names_files,
)
from shardkit.inputs.annotations.siblings import SiblingVerdict, judge_siblings
from shardkit.inputs.annotations.track_plan import refuse_splits_as_parts
from shardkit.inputs.annotations.tracks import MAX_TRACKS, Tree, find_tree, look_at
from shardkit.inputs.annotations.yolo_files import class_names_of, holds_yolo, label_folders
from shardkit.inputs.files import FolderListing
from shardkit.inputs.folders import peek, split_folders, split_of
from shardkit.inputs.names import extension
from shardkit.inputs.roles import is_annotations, role_of
from shardkit.system.paths import first_few, show_path

PARALLEL = "parallel"
COMPANIONS = "companions"
METADATA = "metadata"
COCO = "coco"
YOLO = "yolo"
CAPTIONS = "captions"

LAYOUTS = (PARALLEL, COMPANIONS, METADATA, COCO, YOLO, CAPTIONS)
"""Kinds that this finds, and no others."""

MAX_WRAPPERS = 4
"""Folders that hold nothing but one folder are entered so often."""

TENTH = 0.1
"""Share of pictures that must have a companion. With fewer, some pictures may just be called so."""


@dataclass(frozen=True)
class LayoutReading:
    """A layout that a folder may be read as; ``what`` is what it holds, in words."""

    kind: str
    what: str


@dataclass(frozen=True)
class CompanionCount:
    """How many pictures in some folders are no companions (``pictures``), and how many are, as
    ``x_mask.png``, ``x.mask.png`` and ``x.png`` beside ``x.jpg`` (``twins``); ``others`` are the
    pictures among ``pictures`` that are no JPEGs."""

    pictures: int
    suffixed: int
    dotted: int
    twins: int
    others: int


def find_layout(source: Path, folders: Sequence[FolderListing], is_paired: bool) -> str | None:
    """The layout of pictures with annotations that a folder has; None if it has none.

    Args:
        folders: some of its folders, with some of their names. is_paired: whether these have files
            of several kinds under one stem, as ``paired`` wants them.

    Raises:
        CorpusError: it may be read in several ways, or the layout lies one folder further down.
    """
    where = show_path(source)
    verdict, tree = judge_folders(source)
    found = [*_listed(source)]
    if verdict is not None and verdict.what == "parallel":
        found.append(_parallel(source, tree))
    companions = judge_companions(count_companions(folders), is_paired)
    if companions is not None and companions.what == "parallel":
        found.append(LayoutReading(COMPANIONS, "pictures with companions (x_mask.png)"))
    found = _without_lesser(source, found)
    if len(found) > 1:
        raise CorpusError(f"{where} may be read in several ways: as {_choices(found)}")
    if found:
        return found[0].kind
    if verdict is not None and verdict.what == "unclear":
        refuse_splits_as_parts(sorted({name for own in tree.values() for name in own}), where)
    for unclear, kind in ((verdict, PARALLEL), (companions, COMPANIONS)):
        if unclear is not None and unclear.what == "unclear":
            raise _unclear(where, unclear, kind)
    _refuse_deeper(source, folders)
    return None


def _listed(source: Path) -> Iterator[LayoutReading]:
    """Layouts that an annotation file makes."""
    metadata = [file for file in find_metadata(source) if names_files(source / file)]
    if metadata:
        what = f"pictures with the columns of {show_path(metadata[0])}"
        yield LayoutReading(METADATA, what)
    coco = find_coco(source)
    if coco:
        yield LayoutReading(COCO, f"pictures with annotations as in {show_path(coco[0])}")
    captions = find_captions(source)
    if captions is not None:
        yield LayoutReading(CAPTIONS, f"pictures with the captions of {show_path(captions)}")


def _without_lesser(source: Path, found: Sequence[LayoutReading]) -> list[LayoutReading]:
    """The same, without folders that metadata names the files of: ``mask_file_name`` says more than
    that stems are equal."""
    kinds = {each.kind for each in found}
    if METADATA not in kinds:
        return [*found]
    columns = {c for file in find_metadata(source) for c in first_columns(source / file)}
    if not any(is_file_column(column) and column != "file_name" for column in columns):
        return [*found]
    lesser = (PARALLEL, COMPANIONS)
    return [each for each in found if each.kind not in lesser]


# --- folders side by side -----------------------------------------------------------------


def judge_folders(source: Path) -> tuple[SiblingVerdict | None, Tree]:
    """What the folders of a source are to one another, and where they lie.

    Files are looked at only where names of folders, or endings, give a reason.
    """
    tree = find_tree(source)
    names = {name for folders in tree.values() for name in folders}
    roles = {name: role_of(name, names) for name in names}
    if len(names) < 2:
        return None, tree
    is_known = any(roles.values())
    if len(names) > MAX_TRACKS:
        is_known = "pictures" in roles.values() and any(map(is_annotations, roles.values()))
    if not is_known and (len(names) > MAX_TRACKS or not _endings_differ(source, tree)):
        return None, tree
    return judge_siblings(look_at(source, tree)), tree


def _endings_differ(source: Path, tree: Tree) -> bool:
    """Whether no ending is common to all folders: those of one split are looked at, and of each
    folder what lies in it itself, or in the first folder in it that holds a file."""
    for folders in tree.values():
        own = [_endings(source, base) for base in folders.values()]
        held = [endings for endings in own if endings]
        return len(held) > 1 and not frozenset.intersection(*held)
    return False


def _endings(source: Path, base: str) -> frozenset[str]:
    for _ in range(MAX_WRAPPERS):
        folder = peek(source, base)
        if folder.names or not folder.folders:
            return frozenset(extension(name) for name in folder.names)
        base = f"{base}/{folder.folders[0]}"
    return frozenset()


def _parallel(source: Path, tree: Tree) -> LayoutReading:
    """Parallel folders, or YOLO's: told by names of classes, or by what files of labels hold."""
    names = sorted({name for folders in tree.values() for name in folders})
    shown = first_few(names, 4)
    labels = label_folders(tree)
    if labels and _hold_text(source, labels):
        is_yolo = bool(class_names_of(source, tree).names) or holds_yolo(source, labels)
        if is_yolo:
            return LayoutReading(YOLO, "pictures with labels as YOLO's")
    return LayoutReading(PARALLEL, f"parallel folders ({shown})")


def _hold_text(source: Path, bases: Sequence[str]) -> bool:
    """Whether nothing but .txt, and caches, lies in folders of labels."""
    endings = {extension(n) for base in bases for n in peek(source, base).names}
    return ".txt" in endings and endings <= {".txt", ".cache", ".names", ".yaml"}


# --- companions ---------------------------------------------------------------------------


def count_companions(folders: Sequence[FolderListing]) -> CompanionCount:
    """Count pictures and companions in some folders."""
    pictures = suffixed = dotted = twins = others = 0
    for folder in folders:
        try:
            grouped = group_names(folder.names)
        except CorpusError:  # some are not clear: those that are speak for the others
            continue
        suffixed += grouped.num_suffixed
        dotted += grouped.num_dotted
        twins += grouped.num_twins
        endings = [extension(name) for name in grouped.samples]
        pictures += len(endings)
        others += sum(ending not in (".jpg", ".jpeg") for ending in endings)
    return CompanionCount(pictures, suffixed, dotted, twins, others)


def judge_companions(found: CompanionCount, is_paired: bool) -> SiblingVerdict | None:
    """Whether pictures have companions: "parallel" if so; None if not.

    ``paired`` has ``x.mask.png`` and ``x.png`` beside ``x.txt`` as fields of one sample already,
    but would make a sample of ``x_mask.png``.

    ``x.png`` beside ``x.jpg`` counts only where every picture that is no JPEG is such a one, of
    half of the JPEGs at least: numbered files of two kinds share some stems by chance.
    """
    is_twin = found.twins > 0 and found.others == 0 and 2 * found.twins >= found.pictures
    named = found.suffixed + (0 if is_paired else found.dotted)
    twins = found.twins if is_twin and not is_paired else 0
    if named + twins == 0:
        is_half = not is_paired and found.twins >= max(found.others, 1)
        return (
            SiblingVerdict("unclear", _some(found.twins, "x.png beside x.jpg")) if is_half else None
        )
    if named + twins < TENTH * found.pictures:
        return SiblingVerdict("unclear", _some(named, "x_mask.png beside x.jpg"))
    return SiblingVerdict("parallel")


def _some(count: int, how: str) -> str:
    return f"{count:,} of the pictures looked at are called as {how}"


# --- what is refused ----------------------------------------------------------------------


def _unclear(where: str, verdict: SiblingVerdict, kind: str) -> CorpusError:
    one = "each file together with those of its name in the other folders"
    if kind == COMPANIONS:
        one = "each picture together with its companions"
    return CorpusError(
        f"{where} may be read in two ways: {verdict.why}; choose --corpus images if"
        f" each picture is a sample, and folders are classes, or --corpus {kind} if a sample is"
        f" {one}"
    )


def _choices(found: Sequence[LayoutReading]) -> str:
    return ", or ".join(f"{each.what} (--corpus {each.kind})" for each in found)


def _refuse_deeper(source: Path, folders: Sequence[FolderListing]) -> None:
    """Raise CorpusError if a layout lies further down, where packing the whole would take its
    folders for a part of a class."""
    top = peek(source, "")
    if len(top.folders) == 1 and not top.names and split_of(top.folders[0]) is None:
        _refuse_wrapped(source, top.folders[0])
    within: dict[str, list[str]] = {}
    for folder in folders:
        parent, slash, name = folder.base.rpartition("/")
        if slash and folder.names:
            within.setdefault(parent, []).append(name)
    splits = split_folders(top.folders) or {}
    for parent, names in within.items():
        images = next((name for name in names if role_of(name) == "pictures"), None)
        masks = next((name for name in names if is_annotations(role_of(name))), None)
        is_judged = parent in splits
        if images and masks and not is_judged and _has_pictures(folders, f"{parent}/{images}"):
            advice = (
                f"{_no_splits(top, parent)}pack {show_path(source / parent)} and the like apart"
            )
            if _count(folders, f"{parent}/{images}") == 1 < _count(folders, f"{parent}/{masks}"):
                advice = (
                    "since one picture has several files there, make one of them, called as the"
                    " picture is, and put the pictures of all such folders, and these, into"
                    f" {images}/ and {masks}/ at the top"
                )
            raise CorpusError(
                f"{show_path(source)}: {show_path(images)} and {show_path(masks)} in"
                f" {show_path(parent)} are parallel folders, which are packed where they lie at the"
                f" top, or in splits; {advice}, or choose --corpus images if each picture is a"
                " sample, and the first folders are classes"
            )


def _no_splits(top: FolderListing, name: str) -> str:
    """What to do with folders beside those called as splits, of which ``name`` may be one."""
    others = [folder for folder in top.folders if split_of(folder) is None]
    return f"move {first_few(others)} away, or " if others and split_of(name) else ""


def _count(folders: Sequence[FolderListing], base: str) -> int:
    return sum(len(folder.names) for folder in folders if folder.base == base)


def _has_pictures(folders: Sequence[FolderListing], base: str) -> bool:
    names = [name for folder in folders if folder.base == base for name in folder.names]
    return any(extension(name) in IMAGE_EXTENSIONS for name in names)


def _refuse_wrapped(source: Path, name: str, depth: int = 1) -> None:
    inner = source / name
    verdict, tree = judge_folders(inner)
    found = [*_listed(inner)]
    if verdict is not None and verdict.what == "parallel":
        found.append(_parallel(inner, tree))
    if found or (verdict is not None and verdict.what == "unclear"):
        what = _choices(found) if found else "folders that are no classes of one kind"
        raise CorpusError(
            f"{show_path(source)} holds nothing but {show_path(name)}, in which there are {what}:"
            f" pack {show_path(inner)}"
        )
    top = peek(inner, "")
    if depth < MAX_WRAPPERS and len(top.folders) == 1 and not top.names:
        _refuse_wrapped(inner, top.folders[0], depth + 1)
