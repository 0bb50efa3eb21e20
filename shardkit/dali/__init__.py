"""NVIDIA DALI: any dataset as its external source, and its own index of tars.

Only what DALI needs lives here; batches come from :mod:`shardkit.batches`.
"""

from shardkit.dali.external_source import ExternalSource, source
from shardkit.dali.tar_index import write_index

__all__ = ["ExternalSource", "source", "write_index"]
