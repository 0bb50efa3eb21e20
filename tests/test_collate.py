"""Columns that are said to be views of one array are views of one tensor."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shardkit.reading.collate import Shifted, collate


def storages(batch: dict[str, Any]) -> int:
    return len({tensor.untyped_storage().data_ptr() for tensor in batch.values()})


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (3, 1), (0, 4)])
def test_shifted_windows_are_views_of_one_tensor(dtype: Any, shape: tuple[int, int]) -> None:
    windows = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    batch = collate(Shifted(windows))
    assert [*batch] == ["inputs", "labels"]
    assert storages(batch) == 1
    assert batch["inputs"].untyped_storage().nbytes() == windows.nbytes
    for name, expected in {"inputs": windows[:, :-1], "labels": windows[:, 1:]}.items():
        assert batch[name].shape == expected.shape
        assert (batch[name].numpy() == expected).all()
        assert batch[name].numpy().dtype == dtype


def test_what_is_written_to_a_column_is_in_the_batch() -> None:
    columns = Shifted(np.arange(12).reshape(3, 4))
    columns["inputs"][0, 1] = 99
    batch = collate(columns)
    assert batch["inputs"][0, 1] == batch["labels"][0, 0] == 99


def test_a_transform_may_add_replace_and_remove_columns() -> None:
    windows = np.arange(12).reshape(3, 4)
    added = Shifted(windows)
    added["more"] = np.ones(3)
    batch = collate(added)
    assert batch["more"].tolist() == [1, 1, 1]
    assert storages({name: batch[name] for name in ("inputs", "labels")}) == 1

    replaced = Shifted(windows)
    replaced["labels"] = replaced["inputs"]
    batch = collate(replaced)
    assert batch["labels"].tolist() == batch["inputs"].tolist() == windows[:, :-1].tolist()

    removed = Shifted(windows)
    del removed["inputs"]
    assert {name: value.tolist() for name, value in collate(removed).items()} == {
        "labels": windows[:, 1:].tolist()
    }


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
def test_a_copy_is_a_dict_of_two_arrays(copied: Callable[[Any], Any]) -> None:
    columns = copied(Shifted(np.arange(12).reshape(3, 4)))
    assert type(columns) is dict
    columns["inputs"][0, 1] = 99
    batch = collate(columns)
    assert batch["inputs"].tolist() == [[0, 99, 2], [4, 5, 6], [8, 9, 10]]
    assert batch["labels"].tolist() == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]


READ_ONLY = np.arange(12).reshape(3, 4)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "values",
    [
        READ_ONLY,
        np.arange(12).reshape(3, 4)[:, ::-1],
        np.arange(12).reshape(3, 4)[:, 1:],
        np.arange(12, dtype=">i8").reshape(3, 4),
        np.arange(12, dtype="<f2").reshape(3, 4)[:, 1:].real,
    ],
    ids=["read-only", "backwards", "part", "swapped", "real"],
)
def test_an_array_that_torch_cannot_take_is_copied(values: Any) -> None:
    tensor = collate({"a": values})["a"]
    assert isinstance(tensor, torch.Tensor)
    assert (tensor.numpy() == values).all()
    assert tensor.untyped_storage().nbytes() == values.nbytes
