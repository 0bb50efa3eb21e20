"""The compiled module that writes a JPEG's coefficients anew, see ``restarts.c``.

Wheels bring it. Installed from source, it is built where a C compiler and the headers of
libjpeg-turbo are, and left out elsewhere. Ask :func:`why_not`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from importlib import import_module
from types import ModuleType

from shardkit.errors import UsageError
from shardkit.images.limits import MAX_PIXELS
from shardkit.samples.sample import Value

MAX_SCANS = 100
"""Of a progressive JPEG. The compiled module reads no more."""


class Recoded(IntEnum):
    """What came of it."""

    OK = 0
    UNLIKE = 1
    """It reads well, but cannot be written with the same pixels, or not at all."""
    BROKEN = 2
    TOO_LARGE = 3
    """More pixels or scans than are decoded anywhere else."""


@cache
def why_not() -> str:
    """Why the compiled module cannot be used, and what to do; empty if it can."""
    try:
        _compiled()
    except ImportError as error:
        return (
            "shardkit was installed without its compiled module for restart markers: install a C "
            "compiler and the headers of Python and libjpeg-turbo (Debian: gcc python3-dev "
            f"libjpeg-dev), then shardkit again ({error})"
        )
    return ""


def require() -> None:
    """Raise ``UsageError`` if the compiled module is not there."""
    if reason := why_not():
        raise UsageError(reason)


def _compiled() -> ModuleType:
    return import_module("shardkit.images._restarts")


def recode(
    jpeg: Value, header: bytes = b"", script: bytes = b"", interval: int = 0
) -> tuple[Recoded, bytes]:
    """A JPEG of the same coefficients, without the GIL. Its header is none to keep.

    Args:
        header: take the Huffman tables and the restart interval that it defines, up to its scan;
            without one, take the best tables, and ``interval``, in MCUs.
        script: write these scans, see ``restart_note.py``; without it, all in one.

    Raises:
        UsageError: the compiled module is not there.
        MemoryError: the coefficients do not fit.
    """
    require()
    status, made = _compiled().recode(jpeg, header, script, interval, MAX_PIXELS)
    return Recoded(status), made
