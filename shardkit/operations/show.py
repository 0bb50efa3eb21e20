"""``show``: some samples of a dataset, as a person wants to look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardkit.arguments import integer
from shardkit.arrays import Integers
from shardkit.errors import UsageError
from shardkit.images.sheet import Tile, contact_sheet
from shardkit.operations.look import FieldView, Looker, ShownField
from shardkit.order.epochs import Order
from shardkit.reading.dataset import Dataset
from shardkit.system.durable_files import write_output
from shardkit.system.paths import as_path, show_path

NUM_SHOWN = 3
NUM_DRAWN = 24
"""Samples, if nobody says how many: what fits on a screen, and on a sheet."""


@dataclass(frozen=True)
class ShownSample:
    """One sample, by its row in the split."""

    row: int
    key: str
    fields: list[ShownField]


@dataclass(frozen=True)
class Shown:
    """What ``shardkit show`` prints.

    Attributes:
        num_samples: of the split. sheet: the picture that was written. notes: what could not be
            shown, and why.
    """

    path: str
    split: str
    num_samples: int
    samples: list[ShownSample]
    sheet: str | None
    notes: list[str]

    @property
    def ok(self) -> bool:
        """Whether all that was looked at is whole; ``verify`` looks at every byte."""
        return all(field.kind != "broken" for each in self.samples for field in each.fields)


def show(
    dataset: str | Path,
    *,
    split: str | None = None,
    rows: Sequence[int] | None = None,
    num: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Shown:
    """FieldView at some samples: text and tokens as text, pictures by kind and size.

    Only the beginnings of values are read, so that samples of any size are shown at once.

    Args:
        dataset: its folder, or tars made by others. split: may be left out where there is one, or
            one called ``train``. rows: which samples. num: or how many, drawn by ``seed`` and
            listed by row; 3, or 24 with ``out``. out: draw their pictures, too, on one sheet: a
            .png file, replaced if it is there.

    Raises:
        UsageError: no such rows, or nothing to draw. DataError: the dataset's index is damaged; a
            sample that is damaged is shown as ``broken``.
    """
    if rows is not None and num is not None:
        raise UsageError("give either rows or num: those samples, or so many")
    target = None if out is None else _check_target(as_path(out, "out"))
    source = Dataset(dataset, split)
    count = (NUM_DRAWN if target else NUM_SHOWN) if num is None else integer("num", num, 1)
    chosen = _drawn(len(source), count, seed) if rows is None else _checked(source, rows)
    looker = Looker(source, thumbnails=target is not None)
    samples, tiles = [], list[Tile]()
    for row, key in zip(chosen, source.keys(chosen), strict=True):
        looks = looker.look(row)
        sample = ShownSample(row, key, [look.field for look in looks])
        samples.append(sample)
        tiles += _tiles(sample, looks) if target else []
    if target is not None:
        _draw(target, tiles)
    sheet = None if target is None else str(target)
    return Shown(str(dataset), source.split, len(source), samples, sheet, looker.notes)


def _check_target(path: Path) -> Path:
    if path.suffix.lower() != ".png":  # so no slip of the hand overwrites a shard
        raise UsageError(f"a sheet is a .png file, got {show_path(path)}")
    return path


def _drawn(num_rows: int, num: int, seed: int) -> list[int]:
    """Rows of all over the split: many a corpus lies in the order of its classes."""
    positions = np.arange(min(num, num_rows), dtype=np.int64)
    drawn: Integers = Order(num_rows, "full", seed).rows(positions)
    return sorted(drawn.tolist())


def _checked(source: Dataset, rows: Sequence[int]) -> list[int]:
    numbers = [integer("a row", row, None) for row in rows]
    for row in numbers:
        if not 0 <= row < len(source):
            raise UsageError(f"row {row} is outside 0..{len(source) - 1} of {source.split}")
    return numbers


# --- the sheet ----------------------------------------------------------------------------


def _tiles(sample: ShownSample, looks: list[FieldView]) -> list[Tile]:
    """One a picture, those that do not decode among them."""
    pictures = [look for look in looks if look.is_picture]
    note = [f"row {sample.row}"]
    note += [f"class {field.what}" for field in sample.fields if field.kind == "class"]
    return [
        Tile(look.thumbnail, sample.key, ", ".join(note + [look.field.name][len(pictures) == 1 :]))
        for look in pictures
    ]


def _draw(target: Path, tiles: list[Tile]) -> None:
    if not tiles:
        raise UsageError("these samples have no pictures to draw: leave out the sheet")
    write_output(target, contact_sheet(tiles))
