"""Rows of files, each a sample: what Parquet tables, saved datasets and lines of JSON share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from shardkit.errors import FormatError
from shardkit.inputs.base import Input, Run
from shardkit.inputs.files import cut_ending, input_stamp, join
from shardkit.inputs.folders import Root, nothing_found, walk_named
from shardkit.inputs.guards import notes_on_splits, refuse_missing
from shardkit.inputs.lines import plain_name
from shardkit.inputs.look import Claim, Look, Strength
from shardkit.inputs.tables.hub import check_card, splits_of_paths
from shardkit.samples.sample import SampleBatch, Value, pack_paths, part_of_file
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors

REJECT = b"!"
"""Begins a locator that holds, in place of a row, why a whole file is refused."""

RUN_ROWS = 65_536

Files = list[tuple[Root, str]]
"""Files relative to the source, each with its split's root; those of one split together."""

Cell = tuple[str, Value, bytes]
"""(field, value, what follows the row's number in the path of the file it is restored as)."""

Listed = tuple[Sequence[bytes], Sequence[int], Sequence[int]]
"""Locators, numbers for keys, and bytes of some rows of a file."""


class RowFiles(Input):
    """Rows of one file, or of a folder of such files.

    A run's base is the file; where the source itself is the file, ``""``. Keys and paths carry the
    row's number, and a compressed file's name without ``.gz`` or ``.zst``.

    Attributes:
        unit: what a row's number counts. is_part: True if a value is a part of its file, so that
            the file is restored.
    """

    options = frozenset({"text_field", "fields"})
    is_one_file = True
    unit = "row"
    is_part = False
    source: Path
    file_notes: list[str]
    has_card_classes = False

    @classmethod
    def claim(cls, look: Look) -> Claim | None:
        num_files = look.count(cls.extensions)
        reading = f"a sample is a row of {cls.noun}"
        return Claim(Strength.FILES, reading, num_files) if num_files else None

    def refuse_folder(self, base: str) -> None:
        """Raise CorpusError if the files of a folder are not what they seem."""

    def listed(self, base: str, stamp: int, scratch: Path) -> Iterator[Listed]:
        """Return the rows of a file. Raises FormatError, which does not name it."""
        raise NotImplementedError

    def rows(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        """Return the cells of each row of a run, or why there are none."""
        raise NotImplementedError

    def splits(self) -> list[str]:
        return list(dict.fromkeys(root.split for root, _ in self.files({})))

    def files(self, ignored: dict[str, int]) -> Files:
        """Return every file, in the split of its folder at the top, or else of its name; others are
        counted in ``ignored``, and notes are in ``file_notes``."""
        self.file_notes = []
        if not self.source.is_dir():
            return [(Root("train", ""), "")]
        self.refuse_folder("")  # which is not walked if the folders in it are splits
        found: dict[str, Root] = {}
        is_wanted = lambda name: cut_ending(name)[1] in self.extensions  # noqa: E731
        for root, folder in walk_named(self.source, is_wanted, ignored):
            self.refuse_folder(folder.base)
            names = sorted(folder.names + folder.lost)
            found |= {join(folder.base, name): root for name in names}
        refuse_missing(found, self.source)
        if not all(root.base for root in found.values()):
            splits = splits_of_paths([*found], self.source)
            made = sorted(zip(splits, found, strict=True), key=itemgetter(0))
            found = {path: Root(split, "") for split, path in made}
        splits = list(dict.fromkeys(root.split for root in found.values()))
        self.has_card_classes = check_card(self.source, splits)
        self.file_notes += notes_on_splits(splits)
        return [(root, path) for path, root in found.items()]

    def runs(self, scratch: Path) -> Iterator[Run]:
        self.ignored.clear()
        is_empty = True
        for root, base in self.files(self.ignored):
            path = self.source / base
            prefix = os.fsencode(root.key_base(plain_name(base or self.source.name)))
            with os_errors(f"listing what {show_path(path)} holds"):
                try:
                    stamp = input_stamp(path)
                    for locators, numbers, sizes in self.listed(base, stamp, scratch):
                        is_empty = False
                        keys = [b"%s/%012d" % (prefix, number) for number in numbers]
                        stamps = [stamp] * len(keys)
                        yield Run(root.split, base, None, [*locators], keys, [*sizes], stamps)
                except FormatError as error:
                    is_empty = False
                    reason = REJECT + os.fsencode(str(error))
                    yield Run(root.split, base, None, [reason], [prefix], [0], [0])
        if is_empty:
            raise nothing_found(self.noun, self.source, self.ignored)

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        path, name = self.source / run.base, os.fsencode(plain_name(run.base or self.source.name))
        batch = SampleBatch()
        kept: list[list[Cell]] = []
        with os_errors(f"reading {show_path(path)}"):
            for i, (key, cells) in enumerate(zip(run.keys, self._found(run, scratch), strict=True)):
                if isinstance(cells, str):
                    batch.rejects.append((self.entry_name(run, i), cells))
                    continue
                number = key.rpartition(b"/")[2]
                cells.sort(key=itemgetter(0))
                paths = [b"%s/%s%s" % (name, number, suffix) for _, _, suffix in cells]
                own = part_of_file(int(number), name) if self.is_part else pack_paths(key, paths)
                batch.keys.append(key)
                batch.paths.append(own)
                kept.append(cells)
        for i, cells in enumerate(kept):
            for field, value, _ in cells:
                if field not in batch.columns:
                    batch.columns[field] = [None] * len(kept)
                batch.columns[field][i] = value
        return batch

    def _found(self, run: Run, scratch: Path) -> Iterator[list[Cell] | str]:
        """Yield what :meth:`rows` does, or why the file has no rows."""
        if not len(run):
            return
        first, why = run.locators[0], ""
        try:
            if first.startswith(REJECT):
                why = os.fsdecode(first[len(REJECT) :])
            elif input_stamp(self.source / run.base) != run.stamps[0]:
                why = "the file changed while packing"
        except FormatError as error:
            why = str(error)
        yield from [why] * len(run) if why else self.rows(run, scratch)

    def entry_name(self, run: Run, i: int) -> str:
        name, number = run.base or self.source.name, run.locators[i].partition(b":")[0]
        if number.startswith(REJECT):
            return name
        return f"{plain_name(name)} at {self.unit} {os.fsdecode(number)}"
