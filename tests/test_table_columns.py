"""What fields become in a table: a pure decision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_data import npy

from shardkit.operations.export_table import (
    ArrayType,
    ExportColumn,
    array_type,
    can_be_classes,
    columns_for,
    features_of,
    lists_of,
)

FLOATS = ArrayType("<f4", 2)


def names(fields: list[str], together: set[tuple[str, str]] = frozenset()) -> dict[str, str]:  # type: ignore[assignment]
    """Field -> its column."""
    arrays = {field: FLOATS for field in fields if field.endswith("npy")}
    made = columns_for(sorted(fields), together, arrays, has_labels=True)
    return {field: column.name for column in made for field in column.fields}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (["cls", "jpg"], ["label", "image"]),
        (["jpg", "png", "webp"], ["image", "image", "image"]),
        (["jpg", "mask.png", "caption.txt"], ["image", "mask", "caption"]),
        (["txt", "json", "wav", "mp4"], ["text", "json", "audio", "video"]),
        (["txt", "text"], ["txt", "text"]),
        (["npy", "feat.npy", "bin", "x.bin"], ["npy", "feat", "bin", "x.bin"]),
        (["mask.png", "mask.jpg"], ["mask", "mask"]),
        (["caption.txt", "caption.jpg"], ["caption.txt", "caption"]),
        (["jpg", "image"], ["jpg", "image"]),  # a field of that very name
        (["jpg", "image.npy"], ["image", "image.npy"]),
        (["cls", "left.cls"], ["label", "left"]),
    ],
)
def test_names(fields: list[str], expected: list[str]) -> None:
    assert names(fields) == dict(zip(fields, expected, strict=True))


def test_pictures_of_one_sample_are_columns_of_their_own() -> None:
    assert names(["jpg", "png"], {("jpg", "png")}) == {"jpg": "jpg", "png": "png"}
    found = names(["a.jpg", "a.png", "gif"], {("a.jpg", "a.png")})
    assert found == {"a.jpg": "a.jpg", "a.png": "a.png", "gif": "image"}


FIELD = st.text("ab", max_size=2).flatmap(
    lambda name: st.sampled_from(
        ["jpg", "png", "txt", "text", "cls", "npy", "bin", "json", "image"]
    ).map(lambda ending: f"{name}.{ending}" if name else ending)
)


@given(st.sets(FIELD, min_size=1, max_size=9), st.booleans())
def test_every_field_is_in_one_column_of_a_name_of_its_own(fields: set[str], alone: bool) -> None:
    ordered = sorted(fields)
    pairs = {(a, b) for a in ordered for b in ordered} if alone else set()
    made = columns_for(ordered, pairs, {}, has_labels=True)
    assert sorted(field for column in made for field in column.fields) == ordered
    assert len({column.name for column in made}) == len(made)
    assert all(len(column.fields) == 1 for column in made) or not alone


def test_a_label_that_is_no_number_is_text() -> None:
    assert columns_for(["cls"], set(), {}, has_labels=False) == [
        ExportColumn("cls", ("cls",), "text")
    ]


def test_class_names_that_repeat_name_nothing() -> None:
    assert features_of([ExportColumn("label", ("cls",), "label", names=("a", "b"))])["label"] == {
        "names": ["a", "b"],
        "_type": "ClassLabel",
    }
    assert can_be_classes(["a", "b"]) and can_be_classes(("a",))
    for classes in (None, [], ["a", "a"], "ab", {"0": "a"}, [1, 2]):
        assert not can_be_classes(classes)


def test_types_of_arrays() -> None:
    big, little = npy(np.zeros((2, 2), ">f4")), npy(np.zeros((1, 5), "<f4"))
    assert array_type([big, None, little]) == {FLOATS}
    for odd in (npy(np.zeros(2, "<c8")), npy(np.array(["text"])), b"no array", b""):
        assert array_type([odd]) == {None}
    assert array_type([None]) == set()


@given(st.integers(0, 3), st.data())
def test_lists(ndim: int, data: st.DataObject) -> None:
    shapes = st.lists(st.integers(0, 3), min_size=ndim, max_size=ndim).map(tuple)
    arrays = [
        None if shape is None else np.arange(np.prod(shape, dtype=int), dtype="<i4").reshape(shape)
        for shape in data.draw(st.lists(st.none() | shapes, max_size=5))
    ]
    found = lists_of(arrays, ArrayType("<i4", ndim))
    found.validate(full=True)
    assert found.to_pylist() == [None if array is None else array.tolist() for array in arrays]
