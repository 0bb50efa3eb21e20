"""Telling a dataset of Hugging Face ``datasets``, of which packing files needs nothing more."""

from __future__ import annotations

_KINDS = frozenset({"Dataset", "DatasetDict", "IterableDataset", "IterableDatasetDict"})


def is_hugging_face(source: object) -> bool:
    """Whether this is a dataset of ``datasets``, or several splits of one; that library is not
    imported to tell."""
    return any(
        made.__name__ in _KINDS and made.__module__.partition(".")[0] == "datasets"
        for made in type(source).__mro__
    )
