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
    "PackResult": "shardkit.packing.result",
    "Writer": "shardkit.packing.objects",
    "merge": "shardkit.versions.merge_datasets",
    "append": "shardkit.versions.append",
    "edit": "shardkit.versions.edit",
    "prune": "shardkit.versions.revision",
    "VersionResult": "shardkit.versions.revision",
    "convert": "shardkit.operations.exports",
    "unpack": "shardkit.operations.unpack",
    "verify": "shardkit.operations.verify",
    "info": "shardkit.operations.info",
    "show": "shardkit.operations.show",
    "diff": "shardkit.operations.diff",
    "open": "shardkit.readers",
    "Dataset": "shardkit.reading.dataset",
    "TokenDataset": "shardkit.sequences.token_dataset",
    "concat": "shardkit.reading.concat",
    "mix": "shardkit.reading.mix",
    "Order": "shardkit.order.epochs",
    "BatchSampler": "shardkit.order.sampler",
    "Sampler": "shardkit.order.sampler",
    "Source": "shardkit.batches.source",
    "Stream": "shardkit.batches.stream",
    "Loader": "shardkit.loading.loader",
    "CudaPrefetcher": "shardkit.loading.cuda_prefetch",
    "normalize": "shardkit.loading.normalize",
    "bench": "shardkit.measure.bench.benchmark",
    "stage": "shardkit.operations.stage",
    "tune": "shardkit.measure.tuning",
    "Tuning": "shardkit.measure.tuning",
    "watch": "shardkit.watching.by_hand",
    "ShardkitError": "shardkit.errors",
}

_MODULES = ("dali", "errors", "images", "readers")

__all__ = ["__version__", *_MODULES, *_HOME]

if TYPE_CHECKING:
    from shardkit import dali as dali
    from shardkit import errors as errors
    from shardkit import images as images
    from shardkit import readers as readers
    from shardkit.batches.source import Source as Source
    from shardkit.batches.stream import Stream as Stream
    from shardkit.errors import ShardkitError as ShardkitError
    from shardkit.loading.cuda_prefetch import CudaPrefetcher as CudaPrefetcher
    from shardkit.loading.loader import Loader as Loader
    from shardkit.loading.normalize import normalize as normalize
    from shardkit.measure.bench.benchmark import bench as bench
    from shardkit.measure.tuning import Tuning as Tuning
    from shardkit.measure.tuning import tune as tune
    from shardkit.operations.diff import diff as diff
    from shardkit.operations.exports import convert as convert
    from shardkit.operations.info import info as info
    from shardkit.operations.show import show as show
    from shardkit.operations.stage import stage as stage
    from shardkit.operations.unpack import unpack as unpack
    from shardkit.operations.verify import verify as verify
    from shardkit.order.epochs import Order as Order
    from shardkit.order.sampler import BatchSampler as BatchSampler
    from shardkit.order.sampler import Sampler as Sampler
    from shardkit.packing.objects import Writer as Writer
    from shardkit.packing.pack import pack as pack
    from shardkit.packing.result import PackResult as PackResult
    from shardkit.readers import open as open
    from shardkit.reading.concat import concat as concat
    from shardkit.reading.dataset import Dataset as Dataset
    from shardkit.reading.mix import mix as mix
    from shardkit.sequences.token_dataset import TokenDataset as TokenDataset
    from shardkit.versions.append import append as append
    from shardkit.versions.edit import edit as edit
    from shardkit.versions.merge_datasets import merge as merge
    from shardkit.versions.revision import VersionResult as VersionResult
    from shardkit.versions.revision import prune as prune
    from shardkit.watching.by_hand import watch as watch


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"shardkit.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'shardkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
