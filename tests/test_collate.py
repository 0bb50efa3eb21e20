"""Columns that are said to be views of one array are views of one tensor."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from shardkit import Loader
from shardkit.batches.collate import Shifted, collate
from shardkit.errors import UsageError


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


# --- numbers: a dtype that does not depend on which samples meet --------------------------


def identity(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


DTYPES = ["int64", "int32", "uint8", "float64", "float32", "float16", "bool", "complex64", ">i4"]


class OfEveryDtype:
    """A column (B,) and one (B, 2) of each dtype that torch has, as arrays and as tensors."""

    def __len__(self) -> int:
        return 8

    def read(self, rows: Any) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for dtype in DTYPES:
            columns[dtype] = rows.astype(dtype)
            columns[f"{dtype} x 2"] = np.stack([rows, rows], axis=1).astype(dtype)
            if dtype[0] != ">":
                columns[f"tensor {dtype}"] = torch.from_numpy(rows.astype(dtype))
        columns["bytes"] = [b"%d" % row for row in rows]
        columns["text"] = np.array([str(row) for row in rows])
        columns["some"] = [None if row % 2 else int(row) for row in rows]
        return columns


def test_a_transform_that_changes_nothing_changes_no_dtype() -> None:
    (plain,) = Loader(OfEveryDtype(), 8, workers=0)
    (same,) = Loader(OfEveryDtype(), 8, workers=0, transform=identity)
    assert list(plain) == list(same)
    for name, values in plain.items():
        assert type(values) is type(same[name]), name
        if isinstance(values, torch.Tensor):
            assert values.dtype == same[name].dtype, name
            assert torch.equal(values, same[name]), name
        else:
            assert values == same[name], name


def test_labels_stay_pythons_numbers_in_samples() -> None:
    from shardkit.batches.columns_to_samples import samples_of

    columns = {"cls": np.arange(2), "ok": np.array([True, False]), "x": np.zeros(2, np.float32)}
    types = [type(value) for value in samples_of(columns, 2)[0].values()]
    assert types == [int, bool, np.float32]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], torch.int64),
        ([1.0, 2.0], torch.float64),
        ([True, False], torch.bool),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([np.int64(1), 2], torch.int64),
        ([np.float64(1), 2.0], torch.float64),
    ],
)
def test_numbers_of_one_dtype_become_a_tensor(values: Any, dtype: torch.dtype) -> None:
    assert collate({"a": values})["a"].dtype == dtype


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 2.5], "float64 and int64"),
        ([True, 2], "bool and int64"),
        ([1.0, False], "bool and float64"),
        ([np.float32(1), np.float64(2)], "float32 and float64"),
        ([np.float32(1), 2.0], "float32 and float64"),
        ([np.zeros(2, np.float32), np.zeros(2)], "float32 and float64"),
        ([2**63, 1], "an integer that int64 cannot hold"),
        ([2**70, 1], "an integer that int64 cannot hold"),
    ],
)
def test_numbers_of_several_dtypes_are_refused(values: Any, said: str) -> None:
    with pytest.raises(UsageError, match=rf"field 'a' has {said}"):
        collate({"a": values})


@pytest.mark.parametrize("values", [[1, None], [1, "x"], [np.str_("a"), np.str_("b")], [1j, 2j]])
def test_what_is_no_column_of_numbers_stays_a_list(values: Any) -> None:
    assert collate({"a": values})["a"] == values
