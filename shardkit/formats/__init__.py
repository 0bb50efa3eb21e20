"""The container formats, in one explicit table.

Adding one is a file that satisfies :class:`~shardkit.formats.base.Format`, a line here, and a
section of ``formats.md``; the conformance suite finds it. Importing this imports no container
library: each is imported by the ``write`` that needs it.
"""

from __future__ import annotations

from shardkit.errors import UsageError
from shardkit.formats.base import Extents, Format
from shardkit.formats.hdf5 import Hdf5Format
from shardkit.formats.lmdb import LmdbFormat
from shardkit.formats.npy import NpyFormat
from shardkit.formats.webdataset import WebDatasetFormat

__all__ = ["FORMATS", "Extents", "Format", "get_format"]

FORMATS: dict[str, Format] = {
    "lmdb": LmdbFormat(),
    "hdf5": Hdf5Format(),
    "webdataset": WebDatasetFormat(),
    "npy": NpyFormat(),
}


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
