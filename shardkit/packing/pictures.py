"""What packing does with the pictures of samples, between reading and writing them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence

from shardkit.errors import BadImageError, SampleError
from shardkit.images.choice import ImageChoice
from shardkit.images.decode import decode
from shardkit.images.encode import rewrite
from shardkit.images.markers import is_jpeg
from shardkit.images.naming import RAW_FIELD, field_of, renamed
from shardkit.images.restarting import FIELD, left_as_it_is, without_restarts
from shardkit.images.sniff import HEAD_BYTES, IMAGE_FIELDS, image_field
from shardkit.samples.encoding import parse_npy
from shardkit.samples.sample import SampleBatch, Value, rename_field, unpack_paths


def check_images(batch: SampleBatch) -> SampleBatch:
    """Move samples of which a picture (``jpg``, ``mask.png``) does not decode to ``rejects``.

    Raises:
        UsageError: neither pillow-simd nor pillow is installed.
    """
    names = [name for name in batch.columns if name.rpartition(".")[2] in IMAGE_FIELDS]
    reasons: dict[int, tuple[str, str]] = {}
    for name in names:
        for i, value in enumerate(batch.columns[name]):
            if value is not None and (reason := _decode_error(value)):
                reasons[i] = name, reason
    return without(batch, batch, reasons)


def without(
    batch: SampleBatch, made: SampleBatch, reasons: dict[int, tuple[str, str]]
) -> SampleBatch:
    """``made`` of ``batch``, sample by sample, but for those at the given places, for which one
    field and its reason are given: the files those came from become rejects."""
    if not reasons:
        return made
    kept = made.take([i for i in range(len(made)) if i not in reasons])
    kept.rejects = batch.rejects + [
        (_path(batch, i, name), reason) for i, (name, reason) in sorted(reasons.items())
    ]
    return kept


def _path(batch: SampleBatch, i: int, name: str) -> str:
    """The file a field came from; tars made by others name none, so there it is the key."""
    key = batch.keys[i]
    for field, path, _ in unpack_paths(key, batch.paths[i], [*batch.fields(i)]):
        if field == name:
            return os.fsdecode(path)
    return os.fsdecode(key)


def _decode_error(value: Value) -> str | None:
    try:
        decode(value)
    except BadImageError as error:
        return str(error)
    return None


def remove_restarts(batch: SampleBatch) -> SampleBatch:
    """JPEGs as they were before restart markers were added. Else a file that is given markers once
    more would have them twice, and ``unpack``, which removes them once, not give the original.

    JPEGs that are too damaged for it go to ``rejects``.

    Raises:
        UsageError: what removes them was not built.
    """
    values: list[Value | None] = [*batch.columns.get(FIELD, [])]
    reasons: dict[int, tuple[str, str]] = {}
    for i, value in enumerate(values):
        try:
            values[i] = None if value is None else without_restarts(value)
        except SampleError as error:
            reasons[i] = FIELD, str(error)
    columns = batch.columns | ({FIELD: values} if values else {})
    made = SampleBatch(batch.keys, batch.paths, columns, batch.rejects, batch.counts)
    return without(batch, made, reasons)


# --- pictures written anew ----------------------------------------------------------------


_IN_FIELD = "in field "
"""Counted of each field that holds pictures and is not looked at."""


def rewrite_images(batch: SampleBatch, choice: ImageChoice) -> SampleBatch:
    """Make of each sample's picture what was chosen; those that do not decode go to ``rejects``.

    A picture is a field that is named by its kind alone, such as ``jpg``: one called ``mask.png``
    is left as it is. A sample with two of them is rejected, since one may be labels of the other's
    pixels, unless nothing is lost of either.

    Raises:
        UsageError: what writes them is not installed.
    """
    names = [name for name in batch.columns if name in IMAGE_FIELDS]
    made: dict[str, list[Value | None]] = {}
    reasons: dict[int, tuple[str, str]] = {}
    paths = [*batch.paths]
    counts = Counter[str]()
    for i in range(len(batch)):
        held = [name for name in names if batch.columns[name][i] is not None]
        own = Counter[str]()
        for name in held:
            try:
                if len(held) > 1 and choice.writes_anew:
                    raise SampleError(two_pictures(held))
                field, value, paths[i] = _rewritten(batch, i, name, choice, own)
            except SampleError as error:
                reasons[i] = name, str(error)
                break
            made.setdefault(field, [None] * len(batch))[i] = value
        else:
            _count_others(batch, i, names, choice, own)
            counts.update(own)
    others = {name: values for name, values in batch.columns.items() if name not in names}
    done = SampleBatch(batch.keys, paths, others | made, batch.rejects, counts)
    return without(batch, done, reasons)


def _count_others(
    batch: SampleBatch, i: int, pictures: list[str], choice: ImageChoice, counts: Counter[str]
) -> None:
    """Count a sample's pictures in fields not looked at, such as ``jpeg`` of other tars."""
    for name, value in batch.fields(i).items():
        if name in pictures:
            continue
        if choice.restarts and is_jpeg(value):
            left_as_it_is(value, counts)
        if choice.writes_anew and image_field(bytes(value[:HEAD_BYTES])) is not None:
            counts[_IN_FIELD + name] += 1


def told_of_others(counts: Mapping[str, int]) -> str:
    """What was counted of pictures that nothing was done to, in words; ``""`` if there are none."""
    found = sorted(name for name in counts if name.startswith(_IN_FIELD))
    if not found:
        return ""
    where = ", ".join(f"{counts[name]:,} {name}" for name in found)
    return (
        f"pictures left as they are: {where}; only fields called jpg, png and the like are written"
        " anew"
    )


def two_pictures(names: list[str]) -> str:
    return (
        f"its sample has two pictures, {' and '.join(names)}, and one may be labels of the other's"
        " pixels; give that one a name of its own, as in x.mask.png, and it is left as it is"
    )


def _rewritten(
    batch: SampleBatch, i: int, name: str, choice: ImageChoice, counts: Counter[str]
) -> tuple[str, Value, bytes]:
    """(field, value, encoded paths) of a sample whose picture is in field ``name``; counted."""
    value = batch.columns[name][i]
    key, packed = batch.keys[i], batch.paths[i]
    kind, value = rewrite(value, name, choice, counts)  # type: ignore[arg-type]  # it is not None
    field = field_of(kind)
    if field == name:
        return field, value, packed
    if field in batch.columns and batch.columns[field][i] is not None:
        raise SampleError(f"its sample has a field {field} already; rename that file")
    fields = [*batch.fields(i)]
    for one, path, _ in unpack_paths(key, packed, fields):
        if one == name:
            packed = rename_field(key, packed, fields, name, field, renamed(path, key, field))
    return field, value, packed


def require_one_shape(batch: SampleBatch) -> None:
    """Raise SampleError unless all raw pictures have the shape of the first."""
    first: tuple[int, ...] | None = None
    for i, value in enumerate(batch.columns.get(RAW_FIELD, [])):
        shape = first if value is None else parse_npy(value).shape
        first = first or shape
        if shape != first:
            raise unequal_shapes(_path(batch, i, RAW_FIELD), shape or (), first or ())


def unequal_shapes(where: str, shape: Sequence[int], other: Sequence[int]) -> SampleError:
    """The error for raw pictures of two shapes (H, W, 3)."""
    sizes = ["x".join(map(str, reversed(s[:2]))) for s in (shape, other)]
    return SampleError(
        f"{where} is {sizes[0]}, and pictures before it are {sizes[1]}: image_format raw stores one"
        " shape; pass --crop N to make all of them NxN, and --overwrite"
    )
