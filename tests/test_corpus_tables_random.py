"""Tables of any columns and values: each comes back as it was put in."""

from __future__ import annotations

import base64
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq
from tables import arrow_stream, state
from test_corpus_files import read_all

import shardkit
from shardkit.inputs.open import open_corpus

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)

INTS = {
    f"{'u' * unsigned}int{bits}": (0, 2**bits - 1)
    if unsigned
    else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for bits in (8, 16, 32, 64)
    for unsigned in (False, True)
}


@dataclass(frozen=True)
class Kind:
    """A type, values of it, and what a field of it is: its ending and its value."""

    type: Any
    values: st.SearchStrategy[Any]
    ending: str


@st.composite
def leaves(draw: st.DrawFn) -> tuple[Any, st.SearchStrategy[Any]]:
    """Types that JSON has words for, or bytes."""
    name = draw(st.sampled_from(["string", "bool", "binary", "float64", *INTS]))
    if name in INTS:
        return getattr(pa, name)(), st.integers(*INTS[name])
    values = {
        "string": TEXT,
        "bool": st.booleans(),
        "binary": st.binary(max_size=5),
        "float64": st.floats(allow_nan=False),
    }
    types = {
        "string": pa.string(),
        "bool": pa.bool_(),
        "binary": pa.binary(),
        "float64": pa.float64(),
    }
    return types[name], values[name]


@st.composite
def nested(draw: st.DrawFn, depth: int = 3) -> tuple[Any, st.SearchStrategy[Any]]:
    """Lists, structs and maps of them."""
    how = (
        draw(st.sampled_from(["leaf", "list", "large", "fixed", "struct", "map"]))
        if depth
        else "leaf"
    )
    if how == "leaf":
        held, values = draw(leaves())
        return held, st.none() | values
    if how == "struct":
        inner = [draw(nested(depth - 1)) for _ in range(draw(st.integers(0, 3)))]
        names = [f"m{i}" for i in range(len(inner))]
        held = pa.struct([pa.field(n, t) for n, (t, _) in zip(names, inner, strict=True)])
        members = {n: v for n, (_, v) in zip(names, inner, strict=True)}
        return held, st.none() | st.fixed_dictionaries(members)
    inner_type, inner_values = draw(nested(depth - 1))
    if how == "map":
        pairs = st.tuples(TEXT, inner_values)
        return pa.map_(pa.string(), inner_type), st.none() | st.lists(pairs, max_size=3)
    size = draw(st.integers(1, 2))  # pyarrow reads none of 0 from Parquet
    if how == "fixed":
        exact = st.lists(inner_values, min_size=size, max_size=size)
        return pa.list_(inner_type, size), st.none() | exact
    made = pa.large_list if how == "large" else pa.list_
    return made(inner_type), st.none() | st.lists(inner_values, max_size=3)


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    how = draw(st.sampled_from(["text", "number", "array", "tensor", "bytes", "nested"]))
    if how == "text":
        return Kind(draw(st.sampled_from([pa.string(), pa.large_string()])), TEXT, "txt")
    if how == "bytes":  # none that some library takes for a file
        return Kind(pa.binary(), st.binary(max_size=6).map(lambda b: b"\0" + b), "bin")
    name = draw(st.sampled_from([*INTS, "float32", "float64", "bool"]))
    values: st.SearchStrategy[Any] = st.booleans()
    if name in INTS:
        values = st.integers(*INTS[name])
    elif name != "bool":
        values = st.floats(width=32 if name == "float32" else 64)
    held = pa.bool_() if name == "bool" else getattr(pa, name)()
    if how == "number":
        return Kind(held, values, "npy")
    if how == "array":
        return Kind(pa.list_(held), st.lists(values, max_size=4), "npy")
    if how == "tensor":
        row = st.lists(values, min_size=2, max_size=2)
        return Kind(pa.list_(pa.list_(held, 2)), st.lists(row, max_size=3), "npy")
    inner_type, inner_values = draw(nested())
    return Kind(
        pa.struct([pa.field("v", inner_type)]), st.fixed_dictionaries({"v": inner_values}), "json"
    )


def plain(value: Any) -> Any:
    """What JSON has for a value, by the rules of the documentation."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: plain(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [plain(own) for own in value]
    return value


def check(kind: Kind, value: Any, stored: Any) -> None:
    if value is None:
        assert stored is None
    elif kind.ending == "txt":
        assert bytes(stored) == value.encode()
    elif kind.ending == "bin":
        assert bytes(stored) == value
    elif kind.ending == "json":
        assert json.loads(stored) == plain(value)
    else:
        held, depth = kind.type, 0
        while hasattr(held, "value_type"):
            held, depth = held.value_type, depth + 1
        expected = np.array(value, np.dtype(held.to_pandas_dtype()))
        if depth == 2:
            expected = expected.reshape(-1, 2)
        found = np.load(io.BytesIO(bytes(stored)))
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_any_table_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("any")
    count = data.draw(st.integers(1, 4), label="columns")
    rows = data.draw(st.integers(1, 5), label="rows")
    columns = {f"c{i}": data.draw(kinds()) for i in range(count)}
    held = {
        name: data.draw(st.lists(st.none() | kind.values, min_size=rows, max_size=rows))
        for name, kind in columns.items()
    }
    arrays = [pa.array(held[name], kind.type) for name, kind in columns.items()]
    table = pa.table(dict(zip(columns, arrays, strict=True)))
    write = data.draw(st.sampled_from([as_parquet, as_saved]))
    if write is as_parquet and any("struct<>" in str(kind.type) for kind in columns.values()):
        write = as_saved  # parquet has no struct without members
    write(folder, table)
    corpus = open_corpus(folder)
    (batch,) = read_all(corpus, folder / "scratch").values()
    texts = [name for name, kind in columns.items() if kind.ending == "txt"]
    kept = [i for i in range(rows) if any(values[i] is not None for values in held.values())]
    assert len(batch.rejects) == rows - len(kept)
    for name, kind in columns.items():
        field = "txt" if texts == [name] else f"{name}.{kind.ending}"
        stored = batch.columns.pop(field, [None] * len(kept))
        for i, value in zip(kept, stored, strict=True):
            check(kind, held[name][i], value)
    assert batch.columns == {}  # no other field


def as_parquet(folder: Path, table: pa.Table) -> None:
    pq.write_table(table, folder / "t.parquet", row_group_size=2)


def as_saved(folder: Path, table: pa.Table) -> None:
    (folder / "t.arrow").write_bytes(arrow_stream(table, 2))
    (folder / "state.json").write_text(state(["t.arrow"]))
    (folder / "dataset_info.json").write_text("{}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(st.lists(st.floats(width=32) | st.none(), min_size=1, max_size=6), st.data())
def test_numbers_come_back_from_every_container(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[float | None], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    table = pa.table({"x": pa.array(numbers, pa.float32()), "id": [*range(len(numbers))]})
    (folder / "in").mkdir()
    as_parquet(folder / "in", table)
    to = data.draw(st.sampled_from(["lmdb", "hdf5", "webdataset", "npy"]))
    shardkit.pack(folder / "in", folder / "out", to=to, workers=0, progress=False)
    ds = shardkit.open(folder / "out")
    assert ds.read(range(len(ds)))["id.npy"].tolist() == [*range(len(numbers))]
    for row, number in enumerate(numbers):
        found = ds[row].get("x.npy")
        assert (found is None) == (number is None)
        if number is not None:
            assert found.dtype == np.float32 and found.shape == ()
            assert found.tobytes() == np.float32(number).tobytes() or math.isnan(number)
