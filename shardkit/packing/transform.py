"""What happens to samples between reading and writing."""

from __future__ import annotations

import io
import os

from shardkit.errors import UsageError
from shardkit.images.sniff import IMAGE_FIELDS
from shardkit.sample import SampleBatch, Value, unpack_paths


def check_images(batch: SampleBatch) -> SampleBatch:
    """Move samples whose pictures do not decode to ``rejects``.

    Raises:
        UsageError: neither pillow-simd nor pillow is installed.
    """
    names = [name for name in batch.columns if name in IMAGE_FIELDS]
    reasons: dict[int, tuple[str, str]] = {}
    for name in names:
        for i, value in enumerate(batch.columns[name]):
            if value is not None and (reason := _decode_error(value)):
                reasons[i] = name, reason
    return drop(batch, reasons) if reasons else batch


def drop(batch: SampleBatch, reasons: dict[int, tuple[str, str]]) -> SampleBatch:
    """Without the samples at the given places, for which one field and its reason are given; the
    files those came from become rejects."""
    kept = batch.take([i for i in range(len(batch)) if i not in reasons])
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
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            "checking images needs a decoder: pip install 'shardkit[simd]' or 'shardkit[pillow]'"
        ) from error
    try:
        with Image.open(io.BytesIO(value)) as image:
            image.load()
    # Decoders of damaged files raise nearly anything: struct.error, SyntaxError, zlib.error ...
    except Exception as error:
        return f"does not decode: {type(error).__name__}: {error}"
    return None
