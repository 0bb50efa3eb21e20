"""Views of one array are views of one tensor, where that array is no more than they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from shardkit.reading.collate import collate


def storages(batch: dict[str, Any]) -> int:
    return len({tensor.untyped_storage().data_ptr() for tensor in batch.values()})


def test_views_side_by_side() -> None:
    base = np.arange(12).reshape(3, 4)
    batch = collate({"a": base[:, :-1], "b": base[:, 1:], "c": base[::2]})
    assert storages(batch) == 1
    assert batch["a"].tolist() == base[:, :-1].tolist()
    assert batch["b"].tolist() == base[:, 1:].tolist()
    assert batch["c"].tolist() == base[::2].tolist()
    base[0, 1] = 99
    assert batch["a"][0, 1] == batch["b"][0, 0] == 99


LARGE = np.arange(1000).reshape(10, 100)
READ_ONLY = np.arange(12).reshape(3, 4)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "columns",
    [
        {"a": LARGE[:, :3], "b": LARGE[:, 3:6]},
        {"a": np.arange(12).reshape(3, 4)[:, :-1]},
        {"a": READ_ONLY[:, :-1], "b": READ_ONLY[:, 1:]},
        {"a": (base := np.arange(12).reshape(3, 4))[:, ::-1], "b": base[:, :-1]},
        {"a": (base := np.arange(12).reshape(3, 4))[:, :-1], "b": base.view("<f8")[:, 1:]},
        {"a": (base := np.arange(12, dtype=">i8").reshape(3, 4))[:, :-1], "b": base[:, 1:]},
        {"a": (base := np.arange(12, dtype="<f2").reshape(3, 4))[:, :-1], "b": base[:, 1:].real},
    ],
    ids=["larger", "alone", "read-only", "backwards", "two dtypes", "swapped", "real"],
)
def test_others_have_the_values_all_the_same(columns: dict[str, Any]) -> None:
    batch = collate(columns)
    for name, values in columns.items():
        assert isinstance(batch[name], torch.Tensor)
        assert (batch[name].numpy() == values).all()
        assert batch[name].untyped_storage().nbytes() <= max(values.nbytes, 24 * 4)


def test_parts_of_a_number_that_lie_between_elements() -> None:
    raw = np.zeros(3 * 32 + 8, np.uint8)
    base = np.ndarray((3, 4), "<i8", raw)
    between = np.ndarray((3, 3), "<i8", raw, 4, (32, 8))
    batch = collate({"a": base[:, :-1], "b": base[:, 1:], "c": between})
    assert batch["c"].shape == (3, 3)
