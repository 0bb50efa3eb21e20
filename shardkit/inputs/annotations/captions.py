"""Pictures with captions in one file: ``image,caption``, or ``image#0`` and a tab, as Flickr's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shardkit.errors import CorpusError
from shardkit.inputs.annotations.caption_files import find_captions, read_captions
from shardkit.inputs.annotations.listed import ListedCorpus, Sheet, SheetRow, Values
from shardkit.inputs.annotations.named_files import clean_path, folders_of, none_there, place_names
from shardkit.inputs.files import input_stamp
from shardkit.inputs.names import join
from shardkit.system.paths import show_path


class CaptionsCorpus(ListedCorpus):
    """Field ``txt`` is a picture's caption; where pictures have several, ``captions.json`` is all
    of them, in the file's order. Class folders give ``cls``, as ever, where there are two at least.
    """

    kind = "captions"
    has_text = True
    noun = "pictures named by a file of captions"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        file = find_captions(source)
        self.sheet = Sheet() if file is None else _sheet(source, file)
        self._has_several = any(len(row.record) > 1 for row in self.sheet.rows.values())
        self.take_folder_classes()

    def spec(self) -> dict[str, Any]:
        return {**super().spec(), "annotations": {file: {} for file in self.sheet.files}}

    def values(self, row: SheetRow) -> Values:
        if self._has_several:
            return {"captions.json": json.dumps(row.record, ensure_ascii=False)}
        return {"txt": row.record[0]}


def _sheet(source: Path, file: str) -> Sheet:
    sheet = Sheet({file: input_stamp(source / file)})
    captions: dict[str, list[str]] = {}
    for name, caption in read_captions(source / file):
        captions.setdefault(name, []).append(caption)
    folders = folders_of(source, captions)
    names, base = place_names([*captions], folders, file, None)
    if base is None:
        why = none_there([*captions], folders, None)
        raise CorpusError(f"{show_path(source / file)}: {why}, or choose another --corpus")
    for name, own in zip(names, captions.values(), strict=True):
        path = clean_path(base, name)
        if path is None:
            sheet.bad.append(("train", join(file, name), "is no path of a file in the source"))
        else:
            sheet.add(path, SheetRow("train", (file,), (("", path),), own))
    return sheet
