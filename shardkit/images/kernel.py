"""The compiled kernel: a batch of JPEGs to the pixels of a training batch, in one call.

``kernel.c`` decodes only the part of each picture that its crop needs, no larger than needed,
resizes it with antialiasing straight into its slot and flips it there, on threads of its own, with
the GIL released for the whole batch. Of a file with restart markers, ``scan.h`` passes over what
stands between those beside and above the crop without decoding it.

Wheels bring it. Installed from source, it is built where a C compiler and the headers of
libjpeg-turbo are, and left out elsewhere. Ask :func:`is_available`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from shardkit.arrays import Array
from shardkit.errors import UsageError
from shardkit.images.limits import MAX_PIXELS
from shardkit.samples.sample import Value

MAX_SIDE = 65_500
"""Of a slot, in pixels: libjpeg's limit for a picture."""

MAX_THREADS = 256


class Status(IntEnum):
    """What became of a slot. All but ``OK`` leave it black."""

    OK = 0
    ELSEWHERE = 1
    """Not for the kernel: the caller decodes it another way, or finds that nothing can."""
    BROKEN = 2
    TOO_LARGE = 3
    BAD_BOX = 4


_MESSAGES = {
    Status.OK: "decoded",
    Status.ELSEWHERE: "not for the kernel, which decodes 8-bit greyscale and colour JPEGs",
    Status.BROKEN: "damaged or cut off: the JPEG does not decode",
    Status.TOO_LARGE: "too large: more pixels than max_pixels, or more than 100 scans",
    Status.BAD_BOX: "the crop box is empty or not inside the picture",
}


def message(status: int) -> str:
    """A slot's status in words."""
    return _MESSAGES[Status(status)]


def is_available() -> bool:
    """Was the kernel built with this installation?"""
    return not why_not()


@cache
def why_not() -> str:
    """Why the kernel cannot be used, and what to do; empty if it can."""
    try:
        _compiled()
    except ImportError as error:
        return (
            "shardkit was installed without its compiled kernel: install a C compiler and the "
            "headers of Python and libjpeg-turbo (Debian: gcc python3-dev libjpeg-dev), then "
            f"shardkit again ({error})"
        )
    return ""


@cache
def warn_if_absent() -> None:
    """Warn, once in a process, that something else has to do what the kernel would do faster."""
    if reason := why_not():
        warnings.warn(
            f"pictures are decoded more slowly than they could be: {reason}",
            stacklevel=6,  # who called shardkit.images.train or eval
        )


def _compiled() -> ModuleType:
    return import_module("shardkit.images._kernel")


def headers(values: Sequence[Value]) -> tuple[Array, Array]:
    """The sizes of a batch of pictures, from their frame headers: nothing is decoded.

    Returns:
        (B, 2) int32 width and height in pixels, 0 where there is none; and the (B,) int32 status:
        ``ELSEWHERE`` for what is no JPEG (size 0) or a JPEG that is not for the kernel (its size),
        ``BROKEN`` for a JPEG without a frame header.

    Raises:
        UsageError: a value is no buffer, or the kernel is not there.
    """
    sizes = np.zeros((len(values), 2), np.int32)
    status = np.zeros(len(values), np.int32)
    _call("headers", values, sizes, status)
    return sizes, status


def crop_resize(
    values: Sequence[Value],
    boxes: Array,
    flips: Array,
    out: Array,
    threads: int = 1,
    max_pixels: int = MAX_PIXELS,
    is_cropped_first: bool = False,
) -> Array:
    """Decode, crop, resize and flip a batch of JPEGs into ``out``.

    Each slot gets what ``Image.resize((width, height), BILINEAR, box)`` makes of the whole picture,
    within 1 of 255 where the crop is less than twice the slot's size. Larger crops are decoded at
    1/2, 1/4 or 1/8, which is faster and differs more: on ImageNet by up to 3 of 255 in the mean of
    a picture, and 50 in a pixel. Pixels do not depend on ``threads``.

    Args:
        values: (B,) JPEG files, held for the call.
        boxes: (B, 4) x, y, width, height of the crop in pixels of the full picture; fractions
            count.
        flips: (B,) bool: mirror it from left to right.
        out: (B, height, width, 3) uint8 RGB, C-contiguous.
        threads: to use, the caller's among them.
        is_cropped_first: the filter does not see what lies around the box, as when a picture is
            cropped and then resized; else it does, as when it is resized and then cropped.
        max_pixels: refuse larger pictures. A progressive one takes 6 bytes a pixel meanwhile.

    Returns:
        (B,) int32, a :class:`Status` a slot. A slot that failed is black, and the others are not
        affected. ``BROKEN``: libjpeg refuses the file; what lies behind the last row that the crop
        needs is not looked at, nor what restart markers let it pass over, so a file damaged only
        there passes. ``ELSEWHERE`` also where a file
        does not end as it should, or libjpeg warns of damage that decoders disagree about: the
        caller's own decoder shall judge it, as if there were no kernel. EXIF orientation is not
        applied.

    Raises:
        UsageError: arguments of the wrong shape or type, or the kernel is not there.
    """
    count = len(values)
    _check_slots(out, count)
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads must be 1 to {MAX_THREADS}, got {threads}")
    boxes = _array("boxes", boxes, np.float64, (count, 4)).copy()  # nobody changes it meanwhile
    flips = _array("flips", flips, np.bool_, (count,))
    status = np.zeros(count, np.int32)
    height, width = out.shape[1:3]
    _call(
        "crop_resize",
        values,
        boxes,
        flips,
        out,
        status,
        height,
        width,
        threads,
        max_pixels,
        is_cropped_first,
    )
    return status


def _check_slots(out: Array, count: int) -> None:
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
        raise UsageError(f"out must be a uint8 array, got {getattr(out, 'dtype', type(out))}")
    if out.ndim != 4 or out.shape[0] != count or out.shape[3] != 3:
        raise UsageError(f"out must be ({count}, height, width, 3), got {out.shape}")
    if not 1 <= min(out.shape[1:3]) <= max(out.shape[1:3]) <= MAX_SIDE:
        raise UsageError(f"slots must be 1 to {MAX_SIDE} pixels a side, got {out.shape[1:3]}")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise UsageError("out must be C-contiguous and writable")


def _array(name: str, given: Array, dtype: Any, shape: tuple[int, ...]) -> Array:
    try:
        array = np.ascontiguousarray(given, dtype)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be an array of {shape} numbers: {error}") from error
    if array.shape != shape:
        raise UsageError(f"{name} must be {shape}, got {array.shape}")
    return array


def _call(name: str, *args: Any) -> None:
    if reason := why_not():
        raise UsageError(reason)
    try:
        getattr(_compiled(), name)(*args)
    except (TypeError, BufferError) as error:
        raise UsageError(f"values must be buffers of bytes: {error}") from error
