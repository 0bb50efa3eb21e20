"""Pictures with annotations as COCO has them: boxes, outlines, captions, keypoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError, StorageError
from shardkit.inputs.annotations.coco_file import CocoFile, find_coco, read_coco
from shardkit.inputs.annotations.listed import ListedCorpus, Sheet, SheetRow, Values, class_folders
from shardkit.inputs.annotations.named_files import (
    clean_path,
    folders_of,
    none_there,
    place_names,
)
from shardkit.inputs.annotations.track_plan import view_of
from shardkit.inputs.folders import split_of
from shardkit.inputs.names import cut_ending, join
from shardkit.system.paths import first_few, show_path
from shardkit.system.stamps import stamp_of_open

KEPT_BYTES = 1 << 20
"""Of JSON, an entry of the annotation file may have to be kept in ``shardkit.json``."""


class CocoCorpus(ListedCorpus):
    """Each picture that an annotation file lists is a sample. Field ``json`` is its record, as
    ``image``, and those of its annotations, as ``annotations``, to the byte as they stand in the
    file; and names of the ``categories`` that occur, by id.

    Where files of several kinds tell of the pictures, ``instances_train2017.json`` beside
    ``captions_train2017.json``, fields are called ``instances.json`` and ``captions.json``. Classes
    are the categories, in order of id; what else the files hold is kept in ``shardkit.json``.
    """

    kind = "coco"
    noun = "pictures named by annotation files of COCO's"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        files = {file: read_coco(source / file) for file in find_coco(source)}
        self.sheet, self._files_used = _sheet(source, files)
        self._fields = _fields(self._files_used)
        self.classes = _classes(self._files_used)
        self._open: dict[str, int] = {}

    def spec(self) -> dict[str, Any]:
        kept = {file: _kept(held)[0] for file, held in self._files_used.items()}
        annotations = {f: {"field": self._fields[f], "rest": rest} for f, rest in kept.items()}
        return {**super().spec(), "annotations": annotations}

    def values(self, row: SheetRow) -> Values:
        return {
            self._fields[file]: self._files_used[file].record(self._open[file], image)
            for file, image in row.record
        }

    @contextmanager
    def opened(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, held in self._files_used.items():
                file = stack.enter_context(held.path.open("rb", buffering=0))
                if stamp_of_open(file.fileno(), held.path) != held.stamp:
                    raise StorageError(
                        f"{show_path(held.path)} changed while packing; run it again"
                    )
                self._open[name] = file.fileno()
            try:
                yield
            finally:
                self._open.clear()


def _sheet(source: Path, files: Mapping[str, CocoFile]) -> tuple[Sheet, dict[str, CocoFile]]:
    """What all files say, and those of which a picture is there.

    Raises:
        CorpusError: two files tell of one picture in one field, or in two splits; of no file a
            picture is there.
    """
    folders = folders_of(source, (name for held in files.values() for name in held.names))
    sheet = Sheet()
    used: dict[str, CocoFile] = {}
    records: dict[str, list[tuple[str, int]]] = {}
    splits: dict[str, str] = {}
    for file, held in files.items():
        split = _split_of_file(file) or _split_of_folder(file.rpartition("/")[0])
        names, base = place_names(held.names, folders, file, split)
        if base is None:
            why = none_there(held.names, folders, split)
            sheet.notes.append(f"{show_path(file)} is passed over: {why}")
            continue
        if names != held.names:
            first = show_path(join(base, names[0]))
            sheet.notes.append(f"{show_path(file)}: {held.names[0]!r} and the like are {first}")
        used[file] = held
        sheet.files[file] = held.stamp
        sheet.notes += _notes(file, held)
        own = split or _split_of_folder(base) or "train"
        for number, name in enumerate(names):
            path = clean_path(base, name)
            if path is None:
                why = f"file_name is {name!r}"[:200] + ", and no path of a file in the source"
                sheet.bad.append((own, f"{file}: image {number + 1}", why))
                continue
            records.setdefault(path, []).append((file, number))
            _refuse_two_splits(path, splits.setdefault(path, own), own, records[path])
    if files and not used:
        raise CorpusError(f"{show_path(source)}: {'; '.join(sheet.notes)}")
    _add_rows(sheet, records, splits, _fields(used))
    if sheet.rows and (classes := class_folders(source)) is not None:
        sheet.notes.append(f"the names of the folders ({first_few(classes)}) are no labels here")
    return sheet, used


def _add_rows(
    sheet: Sheet,
    records: Mapping[str, Sequence[tuple[str, int]]],
    splits: Mapping[str, str],
    fields: Mapping[str, str],
) -> None:
    for path, own in records.items():
        files = tuple(file for file, _ in own)
        if len({fields[file] for file in files}) < len(files):
            raise CorpusError(
                f"{show_path(path)} is named twice in {', '.join(map(show_path, {*files}))}, which"
                " both tell of it in one field; keep one"
            )
        sheet.add(path, SheetRow(splits[path], files, (("", path),), own))


def _refuse_two_splits(
    path: str, split: str, other: str, records: Sequence[tuple[str, int]]
) -> None:
    if split != other:
        files = " and ".join(show_path(file) for file, _ in records)
        raise CorpusError(
            f"{show_path(path)} is in split {split} and in split {other} by {files}; keep it in one"
        )


def _words(file: str) -> list[str]:
    return [word for word in re.split(r"[^A-Za-z0-9]+", _stem(file)) if word]


def _stem(file: str) -> str:
    return cut_ending(file.rpartition("/")[2])[0]


def _split_of_file(file: str) -> str | None:
    """``instances_train2017.json`` is of split ``train``."""
    found = {split for word in _words(file) if (split := split_of(word)) is not None}
    return found.pop() if len(found) == 1 else None


def _split_of_folder(base: str) -> str | None:
    found = [split for part in base.split("/") if (split := split_of(part)) is not None]
    return found[-1] if found else None


def _fields(files: Iterable[str]) -> dict[str, str]:
    """File -> field: ``json``, unless files of several kinds are there."""
    kinds = {f: "_".join(word for word in _words(f) if split_of(word) is None) for f in files}
    if len({*kinds.values()}) < 2:
        return dict.fromkeys(kinds, "json")
    return {file: f"{view_of(kind)}.json" if kind else "json" for file, kind in kinds.items()}


def _classes(files: Mapping[str, CocoFile]) -> list[str] | None:
    """Names of all categories in order of id.

    Raises:
        CorpusError: an id has another name in another file.
    """
    names: dict[int | str, str] = {}
    for file, held in files.items():
        for own, name in held.category_names.items():
            if (other := names.setdefault(own, name)) != name:
                raise CorpusError(
                    f"{show_path(file)}: category {own!r} is {name!r}, and {other!r} in a file"
                    " before; pack them apart"
                )
    ids = sorted(names, key=lambda own: (isinstance(own, str), own))
    return [names[own] for own in ids] or None


def _notes(file: str, held: CocoFile) -> list[str]:
    notes = []
    if held.num_strays:
        notes.append(
            f"{show_path(file)}: {held.num_strays:,} annotations are of images that it does not"
            " list, and are passed over"
        )
    notes += [
        f"{show_path(file)}: its entry {name!r} is not kept, for it has over {KEPT_BYTES:,} bytes"
        for name in _kept(held)[1]
    ]
    return notes


def _kept(held: CocoFile) -> tuple[dict[str, Any], list[str]]:
    """The other entries of a file, and names of those too large to be kept."""
    large = [name for name, value in held.rest.items() if len(json.dumps(value)) > KEPT_BYTES]
    return {name: value for name, value in held.rest.items() if name not in large}, large
