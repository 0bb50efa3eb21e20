"""shardkit: keep GPUs fed from small files.

Public names are loaded when first used, so that ``import shardkit`` costs nothing and packing
never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "pack": "shardkit.packing.pack",
    "PackResult": "shardkit.packing.pack",
    "convert": "shardkit.packing.convert",
    "unpack": "shardkit.reading.unpack",
    "verify": "shardkit.reading.verify",
    "info": "shardkit.reading.describe",
    "open": "shardkit.readers",
    "Dataset": "shardkit.reading.dataset",
    "ShardkitError": "shardkit.errors",
}

__all__ = ["__version__", "errors", "readers", *_HOME]

if TYPE_CHECKING:
    from shardkit import errors as errors
    from shardkit import readers as readers
    from shardkit.errors import ShardkitError as ShardkitError
    from shardkit.packing.convert import convert as convert
    from shardkit.packing.pack import PackResult as PackResult
    from shardkit.packing.pack import pack as pack
    from shardkit.readers import open as open
    from shardkit.reading.dataset import Dataset as Dataset
    from shardkit.reading.describe import info as info
    from shardkit.reading.unpack import unpack as unpack
    from shardkit.reading.verify import verify as verify


def __getattr__(name: str) -> Any:
    if name in ("errors", "readers"):
        return import_module(f"shardkit.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'shardkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
