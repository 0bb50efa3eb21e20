"""The container formats, in one explicit table.

Adding one is a class derived from :class:`~shardkit.formats.format.Format`, a line here, and a
section of ``formats.md``; the conformance suite finds it. Importing this imports no container
library: each is imported by the ``write`` that needs it.
"""

from __future__ import annotations

from collections.abc import Callable

from shardkit.errors import UsageError
from shardkit.formats.format import Extents, Format
from shardkit.formats.hdf5 import Hdf5Format
from shardkit.formats.lmdb import LmdbFormat
from shardkit.formats.npy import NpyFormat
from shardkit.formats.webdataset import WebDatasetFormat

__all__ = ["FORMATS", "FOR_TOKENS", "TARS", "Extents", "Format", "get_format", "names_of"]

FORMATS: dict[str, Format] = {
    "lmdb": LmdbFormat(),
    "hdf5": Hdf5Format(),
    "webdataset": WebDatasetFormat(),
    "npy": NpyFormat(),
}

FOR_TOKENS = NpyFormat.name
"""Where tokens go unless a format is chosen: all ids of a shard are then one plain array."""

TARS = WebDatasetFormat.name
"""The format whose shards are tars, and what tars of others are read as."""


def get_format(name: str) -> Format:
    """The format of that name or alias, in any case of letters.

    Raises:
        UsageError: there is none.
    """
    wanted = name.lower()
    for known, made in FORMATS.items():
        if wanted == known or wanted in made.aliases:
            return made
    raise UsageError(f"{name!r} is no format; choose one of {', '.join(FORMATS)}")


def names_of(can: Callable[[Format], object]) -> str:
    """The formats that have a capability, as words of a message: ``"hdf5 or npy"``."""
    return " or ".join(made.name for made in FORMATS.values() if can(made))
