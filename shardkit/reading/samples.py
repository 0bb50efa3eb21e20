"""A batch as columns, and as one dict a sample: what a user's transform takes and returns."""

from __future__ import annotations

from typing import Any

Sample = dict[str, Any]


def samples_of(columns: dict[str, Any], num_samples: int) -> list[Sample]:
    """One dict a sample, with the fields it has."""
    lists = {
        name: values.tolist() if getattr(values, "ndim", 0) == 1 else values
        for name, values in columns.items()
    }
    return [
        {name: values[i] for name, values in lists.items() if values[i] is not None}
        for i in range(num_samples)
    ]


def columns_of(samples: list[Sample]) -> dict[str, list[Any]]:
    """field -> values; None where a sample lacks it."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: [sample.get(name) for sample in samples] for name in names}
