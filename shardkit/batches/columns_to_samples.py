"""A batch as columns, and as one dict a sample: what a user's transform takes and returns."""

from __future__ import annotations

from typing import Any

Sample = dict[str, Any]


def samples_of(columns: dict[str, Any], num_samples: int) -> list[Sample]:
    """One dict a sample, with the fields it has.

    A sample that is returned as it is makes the column that it came from, to the dtype: of an array
    (B,), values are Python's numbers where those come back as they were (int64, float64, bool),
    else NumPy's, or the tensor's.
    """
    lists = {name: _values(column) for name, column in columns.items()}
    return [
        {name: values[i] for name, values in lists.items() if values[i] is not None}
        for i in range(num_samples)
    ]


def _values(column: Any) -> Any:
    """One value a sample, by number."""
    if getattr(column, "ndim", 0) != 1:
        return column
    if str(column.dtype).removeprefix("torch.") in _AS_PYTHONS:
        return column.tolist()
    return list(column)


_AS_PYTHONS = {"int64", "float64", "bool"}


def columns_of(samples: list[Sample]) -> dict[str, list[Any]]:
    """field -> values; None where a sample lacks it."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: [sample.get(name) for sample in samples] for name in names}
