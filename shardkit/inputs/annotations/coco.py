"""Images with annotations as COCO has them: boxes, outlines, captions, keypoints.

An annotation file may have some hundred megabytes. It is parsed by ijson, one array at a time, and
annotations go to a temporary file when samples are listed.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import ijson

from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.annotations.listed import (
    ListedCorpus,
    ListedRow,
    annotation_folders,
    place_names,
)
from shardkit.inputs.corpus import Claim, Look, Run, Strength
from shardkit.inputs.file_parts import Scalar, view_of
from shardkit.inputs.files import cut_ending, input_stamp, join
from shardkit.inputs.folders import split_of
from shardkit.system.file_io import pread
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

MAX_FILES = 32
"""JSON files of one folder that are looked into; more are one an image."""

HEAD_BYTES = 1 << 20
"""Looked at to tell whether a file is COCO's: ``images`` mostly stand first."""

KEPT_BYTES = 1 << 20
"""The most JSON of categories that ``shardkit.json`` keeps."""

MAX_DEPTH = 1_000
"""The deepest nesting of JSON."""

_FIRST = re.compile(rb'\s*\{\s*"(info|licenses|images|annotations|categories|type|videos)"')
_ARRAY = re.compile(rb'"(images|annotations)"\s*:\s*\[')


class CocoCorpus(ListedCorpus):
    """Images that annotation files list, each a sample. Its field ``json`` holds its record as
    ``image``, those of its annotations as ``annotations``, and names of the ``categories`` that
    occur, by id.

    Where files of several kinds hold the same images, ``instances_train2017.json`` next to
    ``captions_train2017.json``, fields are ``instances.json`` and ``captions.json``. Classes are
    the categories, in order of id; their records are kept in ``shardkit.json``.
    """

    kind = "coco"
    noun = "images named by annotation files of COCO's"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        held = {file: CocoFile(source / file) for file in find_coco(Look(source))}
        records: dict[str, dict[str, int | str]] = {}
        splits: dict[str, str] = {}
        kinds = {file: "_".join(w for w in _words(file) if not split_of(w)) for file in held}
        for file, one in held.items():
            names = [*one.images.values()]
            split = _split(_words(file)) or _split(file.split("/"))
            paths = place_names(names, self.names, file, split)
            if not paths:
                why = f"none of its {len(names):,} images is there ({names[0]}, ...)"
                self.told.append(
                    f"{show_path(file)} is passed over: {why}; fetch them, or correct the names"
                )
                continue
            self.files[file] = one.stamp
            for path, own in zip(paths, one.images, strict=True):
                its = split or _split(path.split("/")[:-1]) or "train"
                if splits.setdefault(path, its) != its:
                    both = f"split {splits[path]} and, by {show_path(file)}, in split {its}"
                    raise CorpusError(f"{show_path(path)} is in {both}; keep it in one")
                if any(kinds[other] == kinds[file] for other in records.setdefault(path, {})):
                    twice = f"twice in {show_path(file)}, or there and in a file of its kind"
                    raise CorpusError(f"{show_path(path)} is named {twice}; keep one")
                records[path][file] = own
        if held and not self.files:
            raise CorpusError(f"{show_path(source)}: {'; '.join(self.told)}")
        for path, own_records in records.items():
            self.add(path, ListedRow(splits[path], tuple(own_records), own_records))
        self._held = {file: held[file] for file in self.files}
        self._fields = dict.fromkeys(self.files, "json")
        if len({kinds[file] for file in self.files}) > 1:
            self._fields = {f: f"{view_of(kinds[f])}.json".removeprefix("_.") for f in self.files}
        names_of = [item for one in self._held.values() for item in one.categories.items()]
        if odd := [name for own, name in names_of if dict(names_of)[own] != name]:
            where = f"{show_path(source)}: category {odd[0]!r}"
            raise CorpusError(f"{where} has another name in another file; pack them apart")
        self.classes = [name for _, name in sorted({*names_of}, key=_by_id)] or None

    def spec(self) -> dict[str, Any]:
        made = {
            f: {"field": own, "categories": self._held[f].kept} for f, own in self._fields.items()
        }
        return {**super().spec(), "annotations": made}

    def runs(self, scratch: Path) -> Iterator[Run]:
        scratch.mkdir(parents=True, exist_ok=True)
        for number, one in enumerate(self._held.values()):
            one.spill(scratch / f"coco-{number}.json")
        yield from super().runs(scratch)
        for file, one in self._held.items():
            if one.num_strays:
                num = f"{one.num_strays:,} annotations of images not listed"
                self.notes.append(f"{show_path(file)}: passed over {num}")

    def values(self, row: ListedRow) -> dict[str, Scalar]:
        return {self._fields[file]: self._held[file].json(own) for file, own in row.record.items()}

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        found = [show_path(file) for file in find_coco(look)]
        what = f"images with annotations as in {found[0]}" if found else ""
        return Claim(Strength.MARKED, what, len(found)) if found else None


class CocoFile:
    """An annotation file. Raises CorpusError if it is none.

    Attributes:
        stamp: of the file. images: id -> file_name. categories: id -> name. kept: their records.
        num_strays: annotations of images that the file does not list, known after ``spill``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.num_strays = 0
        self.images: dict[int | str, str] = {}
        self._records: dict[int | str, str] = {}
        for own, record, text in self._records_of("images", "id"):
            name = record.get("file_name")
            if not isinstance(name, str) or own in self.images:
                raise self._fault(f"image {own!r} has no file_name, or is there twice")
            self.images[own] = name
            self._records[own] = text
        if not self.images:
            raise self._fault("it has no images")
        categories = [(own, one) for own, one, _ in self._records_of("categories", "id")]
        found = dict(categories)
        if len(found) < len(categories):
            raise self._fault("two categories have one id")
        self.categories = {
            own: str(one.get("name")) for own, one in sorted(found.items(), key=_by_id)
        }
        self.kept = [*found.values()] if len(json.dumps(found)) <= KEPT_BYTES else []
        self.stamp = input_stamp(path)

    def spill(self, path: Path) -> None:
        """Write the records of annotations to a temporary file, for :meth:`json`."""
        if input_stamp(self._path) != self.stamp:
            raise self._fault("it changed since it was opened; run it again")
        self._own: dict[int | str, list[int]] = {image: [] for image in self.images}
        self._spilled, self._starts = path, array("q", [0])
        self._kinds: list[Any] = []
        self.num_strays = 0
        with path.open("wb") as out:
            for image, record, text in self._records_of("annotations", "image_id"):
                if image not in self._own:
                    self.num_strays += 1
                    continue
                self._own[image].append(len(self._kinds))
                self._kinds.append(record.get("category_id"))
                self._starts.append(self._starts[-1] + out.write(text.encode()))

    def json(self, image: int | str) -> str:
        """Return the JSON of one image: its record, and those of its annotations, if the file has
        any; and names of the categories that occur."""
        parts = [f'"image": {self._records[image]}']
        if self._kinds:
            own = self._own[image]
            spans = [(self._starts[i], self._starts[i + 1]) for i in own]
            with self._spilled.open("rb", buffering=0) as file:
                texts = [pread(file.fileno(), end - start, start).decode() for start, end in spans]
            parts.append(f'"annotations": [{", ".join(texts)}]')
        if self._kinds and self.categories:
            held = [self._kinds[i] for i in own]
            names = {kind: name for kind, name in self.categories.items() if kind in held}
            parts.append(f'"categories": {json.dumps(names)}')
        return f"{{{', '.join(parts)}}}"

    def _records_of(self, name: str, id_name: str) -> Iterator[tuple[int | str, Any, str]]:
        """Yield the records of an array: an id of each, the record, and its JSON."""
        with os_errors(f"reading {show_path(self._path)}"):
            try:
                input_stamp(self._path)  # raises for a FIFO, which opening would wait for
                with self._path.open("rb") as file:
                    held = _Shallow(file)
                    for record in ijson.items(held, f"{name}.item", buf_size=4096, use_float=True):
                        own = record.get(id_name) if isinstance(record, dict) else None
                        if isinstance(own, bool) or not isinstance(own, int | str):
                            raise ValueError(f"one of its {name} has no {id_name}")
                        yield own, record, json.dumps(record, ensure_ascii=False)
            except RecursionError as error:
                raise self._fault(f"a record of its {name} is nested too deep") from error
            except (FormatError, ValueError, ijson.JSONError) as error:
                raise self._fault(" ".join(str(error).split())[:200]) from error

    def _fault(self, why: str) -> CorpusError:
        return CorpusError(
            f"{show_path(self._path)} is no annotation file of COCO's: {why}; correct it or move it"
            " away, or choose another --corpus"
        )


class _Shallow:
    """A file of JSON that must not be nested deep. ijson takes memory by the square of
    the depth: 20 GB for 100 KB of brackets. Brackets in texts count, too, and mostly cancel."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._depth = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._depth += sum(map(data.count, (b"[", b"{"))) - sum(map(data.count, (b"]", b"}")))
        if self._depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH:,} deep")
        return data


def find_coco(look: Look) -> list[str]:
    """Return the annotation files of a source: those that begin as COCO's do."""
    found = []
    for base in annotation_folders(look):
        names = [name for name in look.list(base).names if name.lower().endswith(".json")]
        for path in (join(base, name) for name in names[: MAX_FILES * (len(names) <= MAX_FILES)]):
            head = look.head(path) and look.head(path, HEAD_BYTES)
            found += [path] if _FIRST.match(head) and _ARRAY.search(head) else []
    return found


def _by_id(item: tuple[int | str, Any]) -> tuple[bool, int | str]:
    return isinstance(item[0], str), item[0]


def _words(file: str) -> list[str]:
    return re.findall("[A-Za-z0-9]+", cut_ending(file.rpartition("/")[2])[0])


def _split(words: list[str]) -> str | None:
    """Return the one split that words name."""
    found = {split for word in words if (split := split_of(word)) is not None}
    return found.pop() if len(found) == 1 else None
