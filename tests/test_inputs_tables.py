"""Tables as inputs: each column becomes a field, by its type and what Hugging Face says of it."""

from __future__ import annotations

import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import nothing_left_open, picture, write
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq
from tables import arrow_stream, parquet, save, save_dict, state
from test_inputs_files import read_all

import shardkit
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import CORPORA, from_spec, open_corpus
from shardkit.inputs.tables import tabular
from shardkit.inputs.tables.column_fields import (
    TableColumn,
    ending_of,
    kept_name,
    make_plan,
)
from shardkit.samples.sample import SampleBatch, unpack_paths

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}
FILE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(30)


def files(*values: dict[str, Any] | None) -> pa.Array:
    """A column as ``datasets`` stores files."""
    return pa.array([v and {"bytes": None, "path": None, **v} for v in values], FILE)


def with_features(table: pa.Table, **features: Any) -> pa.Table:
    """The schema's entry of ``datasets``."""
    info = {"info": {"features": features}}
    return table.replace_schema_metadata({"huggingface": json.dumps(info)})


def labels_of(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def save_parquet(folder: Path, table: pa.Table) -> Path:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=3)
    write(folder / "t.parquet", out.getvalue())
    return folder


def save_hf(folder: Path, table: pa.Table) -> Path:
    write(folder / "t.arrow", arrow_stream(table, 3))
    write(folder / "state.json", state(["t.arrow"]))
    write(folder / "dataset_info.json", "{}")
    return folder


@pytest.fixture(params=[save_parquet, save_hf])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param


def read_table(source: Path, scratch: Path, **options: Any) -> SampleBatch:
    with nothing_left_open():
        (batch,) = read_all(open_corpus(source, **options), scratch).values()
    return batch


def value_of(stored: Any) -> Any:
    """Return what a stored value means: arrays as (dtype, nested lists), JSON as Python has it."""
    if stored is None:
        return None
    data = bytes(stored)
    if not data.startswith(b"\x93NUMPY"):
        return json.loads(data)
    array = np.load(io.BytesIO(data))
    return array.dtype.name, array.tolist()


# --- what a column becomes ----------------------------------------------------------------

F16 = pa.array(np.array([1.5, 0, 65504], np.float16), mask=np.array([0, 1, 0], bool))
TENSOR = pa.fixed_shape_tensor(pa.int8(), [2, 2])
ROWS: dict[str, tuple[pa.Array, str, list[Any]]] = {
    "int8": (pa.array([1, None, -128], pa.int8()), "npy", [("int8", 1), None, ("int8", -128)]),
    "float16": (F16, "npy", [("float16", 1.5), None, ("float16", 65504)]),
    "dictionary": (pa.array([7, None]).dictionary_encode(), "npy", [("int64", 7), None]),
    "list": (pa.array([[1.5], [], None]), "npy", [("float64", [1.5]), ("float64", []), None]),
    "fixed in list": (
        pa.array([[[1, 2]] * 3, []], pa.list_(pa.list_(pa.int8(), 2))),
        "npy",
        [("int8", [[1, 2]] * 3), ("int8", [])],
    ),
    "tensor": (
        pa.ExtensionArray.from_storage(TENSOR, pa.array([[1, 2, 3, 4]], TENSOR.storage_type)),
        "npy",
        [("int8", [[1, 2], [3, 4]])],
    ),
    "lists in lists": (pa.array([[[1, 2], [3]], None]), "json", [[[1, 2], [3]], None]),
    "struct": (pa.array([{"a": 1, "b": ["x"]}, None]), "json", [{"a": 1, "b": ["x"]}, None]),
    "time": (
        pa.array([1_000_001], pa.timestamp("us", "Europe/Berlin")),
        "json",
        ["1970-01-01 01:00:01.000001+01:00"],
    ),
    "decimal": (pa.array([Decimal("-12.30")], pa.decimal128(10, 2)), "json", ["-12.30"]),
    "bytes in a list": (pa.array([[b"\0\xff", b""]]), "json", [["AP8=", ""]]),
}


@pytest.mark.parametrize("kind", ROWS)
def test_columns_become_arrays_and_json(tmp_path: Path, kind: str) -> None:
    column, ending, expected = ROWS[kind]
    table = pa.table({"x": column, "n": [*range(len(column))]})
    batch = read_table(save_hf(tmp_path / "in", table), tmp_path)
    assert [value_of(value) for value in batch.columns[f"x.{ending}"]] == expected
    assert batch.columns.keys() == {f"x.{ending}", "n.npy"}


def test_a_list_with_a_null_or_of_another_shape_is_json_for_that_row_alone(tmp_path: Path) -> None:
    ragged = pa.array([[1, 2], [1, None, 3], None], pa.list_(pa.int32()))
    grid = pa.array([[[1, 2, 3]], [[1], [2, 3]], []], pa.list_(pa.list_(pa.int16())))
    table = with_features(
        pa.table({"x": ragged, "grid": grid, "n": [0, 1, 2]}), grid={"_type": "Array2D"}
    )
    columns = read_table(save_parquet(tmp_path / "in", table), tmp_path).columns
    assert [*map(value_of, columns["x.npy"])] == [("int32", [1, 2]), None, None]
    assert [*map(value_of, columns["x.json"])] == [None, [1, None, 3], None]
    assert [*map(value_of, columns["grid.npy"])] == [("int16", [[1, 2, 3]]), None, ("int16", [])]
    assert [*map(value_of, columns["grid.json"])] == [None, [[1], [2, 3]], None]


def test_texts(tmp_path: Path) -> None:
    caption = pa.array(["ä", "", None])
    for number, held in enumerate((caption.cast(pa.large_string()), caption.dictionary_encode())):
        table = pa.table({"caption": held, "text": ["1", "2", "3"]})
        batch = read_table(save_parquet(tmp_path / f"{number}", table), tmp_path)
        assert batch.columns["caption.txt"] == ["ä".encode(), b"", None]
        assert batch.columns["txt"] == [b"1", b"2", b"3"]


def test_bytes_of_which_nothing_is_known(tmp_path: Path) -> None:
    """Though one of them, far behind, begins as a picture does."""
    values = [b"\0\1\2", None, *[b"abc"] * 20, b"P5\n"]
    table = pa.table({"b": pa.array(values, pa.large_binary()), "n": [*range(len(values))]})
    batch = read_table(save_hf(tmp_path / "in", table), tmp_path)
    assert batch.columns.keys() == {"b.bin", "n.npy"} and batch.columns["b.bin"] == values


# --- files --------------------------------------------------------------------------------


def test_pictures_and_classes(tmp_path: Path, store: Any) -> None:
    jpg, png = picture(1), picture(2, kind="PNG")
    held = files({"bytes": jpg, "path": "n01/a.JPEG"}, {"bytes": png}, None, {})
    table = pa.table({"image": held, "label": [2, 0, -1, 1]})
    table = with_features(table, image={"_type": "Image"}, label=labels_of("a", "b", "c"))
    corpus = open_corpus(store(tmp_path / "in", table))
    assert corpus.classes == ["a", "b", "c"] and corpus.has_pictures and not corpus.has_text
    batch = read_table(tmp_path / "in", tmp_path)
    assert batch.columns == {
        "jpg": [jpg, None, None],
        "png": [None, png, None],
        "cls": [b"2", b"0", b"1"],
    }
    assert "has a null in each column" in batch.rejects[0][1]
    row = batch.keys[0].partition(b"/")[0] + b"/000000000000"
    paths = unpack_paths(batch.keys[0], batch.paths[0], ["cls", "jpg"])
    assert paths == [("cls", row + b".cls", None), ("jpg", row + b"/image/a.JPEG", None)]


COLUMNS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "bytes": ({"x": [picture(1)], "n": [1]}, {"jpg", "n.npy"}),
    "two": ({"left": [picture(2)], "right": [picture(1)]}, {"left.jpg", "right.jpg"}),
    "audio": ({"sound": files({"bytes": WAV}), "text": ["a"]}, {"wav", "txt"}),
    "path": ({"doc": files({"bytes": b"??", "path": "a.TAR"}), "n": [1]}, {"doc.tar", "n.npy"}),
    "lists": (
        {
            "images": pa.array([[{"bytes": picture(1)}, {"bytes": picture(2, kind="PNG")}]]),
            "n": [1],
        },
        {"images.0.jpg", "images.1.png", "n.npy"},
    ),
    "pandas": ({"body": ["a"], "__index_level_0__": ["x"]}, {"txt", "__index_level_0__.txt"}),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_fields_of_a_table(tmp_path: Path, kind: str) -> None:
    columns, fields = COLUMNS[kind]
    source = save_parquet(tmp_path / "in", pa.table(columns))
    assert read_table(source, tmp_path).columns.keys() == fields


BAD: list[tuple[str, pa.Array, dict[str, Any]]] = [
    ("holds no picture: it begins with b'x'", files({"bytes": b"x"}), {"_type": "Image"}),
    ("names 'b.jpg' and holds no bytes of it", files({"path": "b.jpg"}), {"_type": "Image"}),
    ("holds 65 files, and a sample takes at most 64", pa.array([[picture(1)] * 65]), {}),
    ("holds 2, which is none of its classes", pa.array([2]), labels_of("x")),
]


@pytest.mark.parametrize(("why", "held", "feature"), BAD)
def test_a_bad_row_is_named(
    tmp_path: Path, why: str, held: pa.Array, feature: dict[str, Any]
) -> None:
    table = with_features(pa.table({"x": held, "text": ["a"]}), x=feature)
    batch = read_table(save_parquet(tmp_path / "in", table), tmp_path)
    ((where, reason),) = batch.rejects
    assert where == "t.parquet at row 0" and reason.startswith(f"column 'x' {why}")


@given(st.binary(max_size=70), st.none() | st.text(max_size=12))
def test_endings_are_names_of_fields(head: bytes, path: str | None) -> None:
    ending = ending_of(head, path)
    assert ending.isalnum() and ending not in ("npy", "cls", "txt", "json", "tokens")
    kept = kept_name(path)
    assert kept is None or not {"", ".", ".."} & {*kept.split("/")}


# --- the plan -----------------------------------------------------------------------------


def column(name: str, how: str, *names: str) -> TableColumn:
    return TableColumn(name, how, type=how, names=[*names] or None)


@pytest.mark.parametrize(
    ("columns", "label"),
    [
        ([column("label", "integer")], "label"),
        ([column("Labels", "integer")], "Labels"),
        ([column("kind", "integer", "a")], "kind"),
        ([column("fine", "integer", "a"), column("coarse", "integer", "b")], None),
        ([column("a", "integer", "a"), column("label", "integer", "b")], "label"),
        ([column("year", "integer")], None),
    ],
)
def test_which_column_is_the_label(columns: list[TableColumn], label: str | None) -> None:
    plan = make_plan({c.name: c for c in [column("text", "text"), *columns]}, "t")
    assert [c.name for c in plan if c.how in ("label", "index")] == [label] * bool(label)


THERE = {c.name: c for c in (column("a", "text"), column("b", "text"), column("n", "integer"))}
SEEN = "t has columns 'a' (text), 'b' (text), 'n' (integer): "


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"fields": ["x"]}, "there is no column 'x'"),
        ({"text_field": "n"}, "column 'n' holds no strings, or is not there"),
        ({"tokenized": True}, "'a', 'b' hold strings; pass --text-field to say which"),
        ({"fields": []}, "there is nothing to pack in it"),
    ],
)
def test_what_cannot_be_planned(options: dict[str, Any], what: str) -> None:
    with pytest.raises(CorpusError) as caught:
        make_plan(THERE, "t", **options)
    assert str(caught.value) == SEEN + what


def test_columns_of_one_field_are_refused(tmp_path: Path) -> None:
    source = save_parquet(tmp_path / "a", pa.table({"a b": [1], "A_b": [2], "text": ["x"]}))
    with pytest.raises(CorpusError, match="columns 'a b' and 'A_b' would both be field 'A_b'"):
        open_corpus(source)
    assert read_table(source, tmp_path, fields=["a b", "text"]).columns.keys() == {"a_b.npy", "txt"}
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["n", "n"])
    batch = read_table(save_hf(tmp_path / "b", table), tmp_path)
    assert batch.rejects == [("t.arrow", "has two columns 'n'; rename one in the table")]


def test_a_text_that_is_tokenized_is_taken_alone(tmp_path: Path) -> None:
    source = save_parquet(tmp_path / "in", pa.table({"t": ["x", "yy"], "label": [1, 2]}))
    corpus = open_corpus(source, tokenized=True)
    assert corpus.notes == ["only the text is tokenized, not 'label'"]
    assert corpus.spec()["fields"] == ["t"]


# --- several files ------------------------------------------------------------------------


def test_files_whose_columns_do_not_fit_are_rejected(tmp_path: Path) -> None:
    first = with_features(
        pa.table({"text": ["a"], "label": [0], "s": [{"a": 1}]}), label=labels_of("x", "y")
    )
    parts = [
        first,
        first.append_column("more", pa.array(["lost?"])),
        first.drop_columns(["s"]),
        first.set_column(1, "label", pa.array(["x"])),
        with_features(first, label=labels_of("y", "x")),
        first.append_column("none", pa.nulls(1)),
        pa.table({"text": ["z"], "label": pa.array([1], pa.int8()), "s": pa.nulls(1)}),
    ]
    for number, table in enumerate(parts):
        (tmp_path / "in").mkdir(exist_ok=True)
        pq.write_table(table, tmp_path / "in" / f"p{number}.parquet")
    write(tmp_path / "in/q.parquet", b"PAR1")
    batch = read_table(tmp_path / "in", tmp_path)
    reasons = dict(batch.rejects)
    assert [*reasons] == ["p1.parquet", "p2.parquet", "p3.parquet", "p4.parquet", "q.parquet"]
    for number, name in enumerate(("more", "s", "label", "label"), 1):
        what = f"{name!r} is not in all files, or of several types or classes; choose others"
        assert what in reasons[f"p{number}.parquet"]
    assert reasons["q.parquet"].startswith("is damaged: ")
    assert batch.columns["txt"] == [b"a", b"a", b"z"] and batch.columns["cls"] == [b"0", b"0", b"1"]


# --- packed -------------------------------------------------------------------------------


def everything(rows: int) -> pa.Table:
    table = pa.table(
        {
            "image": files(*[{"bytes": picture(i), "path": f"{i}.jpeg"} for i in range(rows)]),
            "label": [i % 3 for i in range(rows)],
            "caption": [f"caption {i}" if i % 4 else None for i in range(rows)],
            "score": pa.array([i / 7 for i in range(rows)], pa.float32()),
            "ragged": pa.array([[*range(i % 5)] for i in range(rows)], pa.list_(pa.int64())),
            "meta": [{"a": i, "b": [str(i)]} for i in range(rows)],
        }
    )
    return with_features(table, image={"_type": "Image"}, label=labels_of("x", "y", "z"))


@given(st.lists(st.binary(max_size=9)), st.integers(1, 9), st.integers(1, 40), st.data())
def test_any_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes],
    group: int,
    batch_bytes: int,
    data: st.DataObject,
) -> None:
    """Whatever is asked for after what, as when a pack is shuffled or resumed."""
    folder = tmp_path_factory.mktemp("any")
    write(folder / "a.parquet", parquet(pa.array(texts, pa.binary()), group=group))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabular, "BATCH_BYTES", batch_bytes)
        runs = list(open_corpus(folder, text_field="text").runs(folder)) if texts else []
        assert sum(map(len, runs)) == len(texts)
        for run in runs:
            corpus = from_spec(folder, open_corpus(folder, text_field="text").spec())
            for start in data.draw(st.lists(st.integers(0, len(run)), max_size=5)):
                part = run.slice(start, data.draw(st.integers(start, len(run))))
                batch = corpus.read(part, folder)
                rows = [int(locator) for locator in part.locators]
                assert batch.columns.get("txt", []) == [texts[row] for row in rows]


# --- what is wrong ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["empty", "cut", "pages", "footer"])
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, how: str) -> None:
    whole = parquet([f"{i} {os.urandom(20).hex()}" for i in range(500)], group=100)
    middle = len(whole) // 3
    damaged = {
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "pages": whole[:4] + b"\xff" * middle + whole[4 + middle :],
        "footer": whole[:-60] + b"\xff" * 40 + whole[-20:],
    }[how]
    write(tmp_path / "in" / "a.parquet", parquet(["good"]))
    write(tmp_path / "in" / "b.parquet", damaged)
    batch = read_table(tmp_path / "in", tmp_path)
    assert batch.columns["txt"][0] == b"good" and batch.rejects
    for name, why in batch.rejects:
        assert name.startswith("b.parquet") and why.startswith("is damaged: ") and "\n" not in why


def test_a_damaged_group_costs_its_rows_only(tmp_path: Path) -> None:
    held = [f"{i:09d}" for i in range(40)]
    path, plain = tmp_path / "a.parquet", {"compression": "NONE", "use_dictionary": False}
    pq.write_table(pa.table({"text": held}), path, row_group_size=10, **plain)
    data = path.read_bytes()
    at = data.index(b"000000012", data.index(b"000000013") - 13) - 4
    write(path, data[:at] + b"\xff\xff\xff\x7f" + data[at + 4 :])  # its length
    (batch,) = read_all(open_corpus(tmp_path), tmp_path / "scratch").values()
    assert batch.columns["txt"] == [text.encode() for text in held[:10] + held[20:]]
    assert [where for where, _ in batch.rejects] == [f"a.parquet at row {r}" for r in range(10, 20)]


@pytest.mark.parametrize(
    "info", ["[]", '{"info": 5}', '{"info": {"features": {"x": {"_type": 7}}}}']
)
def test_odd_features_never_end_in_a_traceback(tmp_path: Path, info: str) -> None:
    table = pa.table({"x": [[1, 2]], "n": [1]}).replace_schema_metadata({"huggingface": info})
    batch = read_table(save_parquet(tmp_path / "in", table), tmp_path)
    assert len(batch) + len(batch.rejects) == 1


# --- saved datasets -----------------------------------------------------------------------


def test_saved_splits_and_their_order(tmp_path: Path) -> None:
    source = save_dict(tmp_path / "in", {"train": [["a", "b"], ["c"]], "test": [["d"]]})
    assert CORPORA["hf"].claim(Look(source)).strength == Strength.MARKED  # type: ignore[union-attr]
    packed = shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    assert (packed.kind, packed.splits) == ("hf", {"train": 3, "test": 1})
    save(tmp_path / "one", [["a"]], _split="validation")
    assert open_corpus(tmp_path / "one").splits() == ["validation"]
    save(tmp_path / "old", [["a"], ["b"], ["c"]])
    packed = shardkit.pack(save(tmp_path / "old", [["d"]]), tmp_path / "o", to="npy", **OPTIONS)
    assert packed.num_samples == 1 and packed.ignored == {".arrow": 3}


@pytest.mark.parametrize(
    ("name", "held", "what"),
    [
        ("state.json", "{", "cannot be read: .*; save the dataset again"),
        ("state.json", "[]", "cannot be read: "),
        ("state.json", state(["../x.arrow"]), "names '../x.arrow', which is not there"),
        ("state.json", state(["a"], _indices_data_files=["i"]), "it is a selection of rows"),
        ("dataset_dict.json", '{"splits": [".."]}', "dataset_dict.json names '..'"),
    ],
)
def test_a_saved_dataset_that_is_wrong(tmp_path: Path, name: str, held: str, what: str) -> None:
    save(tmp_path, [["a"]])
    write(tmp_path / name, held)
    with pytest.raises(shardkit.ShardkitError, match=what):
        [*open_corpus(tmp_path, "hf").runs(tmp_path)]


def test_a_part_that_is_missing(tmp_path: Path) -> None:
    save(tmp_path, [["a"], ["b"], ["c"]])
    (tmp_path / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(FormatError, match=r"names 'data-00001-of-00003.arrow', which is not there"):
        open_corpus(tmp_path)
    write(tmp_path / "state.json", state([]))
    with pytest.raises((CorpusError, FormatError)):
        [*open_corpus(tmp_path, "hf").runs(tmp_path)]
