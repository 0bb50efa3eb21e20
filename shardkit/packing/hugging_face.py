"""Telling a dataset of Hugging Face ``datasets``, of which packing files needs nothing more."""

from __future__ import annotations

_KINDS = frozenset({"Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"})


def is_hugging_face(source: object) -> bool:
    """Return True for a dataset of ``datasets`` or several splits of such, without importing that
    library."""
    if type(source) is dict:
        return bool(source) and all(map(is_hugging_face, source.values()))
    return any(
        made.__name__ in _KINDS and made.__module__.partition(".")[0] == "datasets"
        for made in type(source).__mro__
    )


def are_tables(source: object) -> bool:
    """Return True for a table of pyarrow, pandas, polars or another library that gives Arrow's
    stream of record batches, and for a dict of splits of such."""
    held = [*source.values()] if isinstance(source, dict) else [source]
    return bool(held) and all(hasattr(one, "__arrow_c_stream__") for one in held)
