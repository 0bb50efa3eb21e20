"""YOLO's layout: ``images/0001.jpg`` and ``labels/0001.txt``, with names of classes beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardkit.inputs.annotations.parallel import ParallelCorpus
from shardkit.inputs.annotations.tracks import find_tree
from shardkit.inputs.annotations.yolo_files import class_names_of, lists_of_splits
from shardkit.inputs.base import Run
from shardkit.system.paths import show_path


class YoloCorpus(ParallelCorpus):
    """Parallel folders, of which that of labels gives field ``labels.txt``, to the byte. Classes
    are those that ``data.yaml`` or ``classes.txt`` names. A picture without a file of labels lacks
    the field: nothing is on it, or nobody has looked."""

    kind = "yolo"
    has_text = False
    noun = "YOLO's pictures and labels"

    def __init__(self, source: Path) -> None:
        super().__init__(source)
        found = class_names_of(source, find_tree(source))
        self.classes = found.names
        self._names = found.files
        self.used = frozenset(found.files)

    def runs(self, scratch: Path) -> Iterator[Run]:
        yield from super().runs(scratch)
        self.notes += [
            f"{show_path(path)} names its splits by lists of files ({', '.join(lists)}), which are"
            " not read: splits are those of folders alone"
            for path, text in self._names.items()
            if (lists := lists_of_splits(text))
        ]

    def spec(self) -> dict[str, Any]:
        files = {path: {"text": text} for path, text in self._names.items()}
        return {**super().spec(), "annotations": files}
