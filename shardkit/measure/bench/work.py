"""What is done with every sample: nothing, or what a training loop does with pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardkit import images
from shardkit.batches.transform import Transform
from shardkit.errors import UsageError
from shardkit.images.fields import pictures_of
from shardkit.images.naming import IMAGE
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.measure.bench.options import Read

SIZE = 224
"""Width and height of a crop for training, in pixels."""


class Decode:
    """A transform: all pixels of every picture."""

    def batch(self, columns: Mapping[str, Sequence[Any]], keys: Any) -> dict[str, Any]:
        values, names = pictures_of(columns)
        others = {name: column for name, column in columns.items() if name not in names}
        return {**others, IMAGE: [images.decode(value) for value in values]}

    def __call__(self, sample: Any, rng: Any) -> Any:
        raise NotImplementedError("whole batches only")


def transform_of(read: Read) -> Transform | None:
    """None where samples are taken as they are read."""
    if read == "decode":
        return Decode()
    return images.train(SIZE) if read == "train" else None


def refuse_without_pictures(read: Read, name: str, fields: Sequence[str]) -> None:
    """Raises UsageError where pictures are to be decoded and there are none."""
    if read in ("decode", "train") and IMAGE_FIELDS.isdisjoint(fields):
        raise UsageError(
            f"{name} has the fields {', '.join(fields)}: no pictures to {read}; use --read raw"
        )
