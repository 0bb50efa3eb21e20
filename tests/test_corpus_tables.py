"""Tables: every column becomes a field, by its type and by what Hugging Face says of it."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import CONTAINERS, Run, make_images, nothing_left_open, picture, tree, write
from forked_workers import workers_for
from pyarrow import parquet as pq
from tables import arrow_stream, state
from test_corpus_files import read_all

import shardkit
from shardkit.errors import CorpusError, SampleError
from shardkit.images.sniff import image_field
from shardkit.index.manifest import read_info
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.open import open_corpus
from shardkit.samples.sample import SampleBatch, unpack_paths

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}
TO_NPY = ("--to", "npy", "--workers", 0)
FILE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(30)
FLAC = b"fLaC\0\0\0\x22" + bytes(40)


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


SAVERS = {"parquet": save_parquet, "hf": save_hf}


@pytest.fixture(params=SAVERS)
def save(request: pytest.FixtureRequest) -> Any:
    return SAVERS[request.param]


def read_table(source: Path, scratch: Path, **options: Any) -> SampleBatch:
    with nothing_left_open():
        (batch,) = read_all(open_corpus(source, **options), scratch).values()
    return batch


def array_of(value: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.load(io.BytesIO(bytes(value)))
    return found


def jsons(values: Any) -> list[Any]:
    return [None if value is None else json.loads(value) for value in values]


# --- numbers ------------------------------------------------------------------------------

NUMBERS = {
    "int8": pa.array([1, None, -128], pa.int8()),
    "uint8": pa.array([1, None, 255], pa.uint8()),
    "int16": pa.array([1, None, -32768], pa.int16()),
    "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "float32": pa.array([-0.0, None, float("nan")], pa.float32()),
    "float64": pa.array([1e-310, None, float("-inf")], pa.float64()),
    "float16": pa.array(np.array([1.5, 0, 65504], np.float16), mask=np.array([0, 1, 0], bool)),
    "bool": pa.array([True, None, False]),
    "dictionary": pa.array([7, None, -9], pa.int32()).dictionary_encode(),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_keep_their_type_and_bits(tmp_path: Path, save: Any, kind: str) -> None:
    column = NUMBERS[kind]
    source = save(tmp_path / "in", pa.table({"n": column, "text": ["a", "b", "c"]}))
    batch = read_table(source, tmp_path)
    first, none, last = batch.columns["n.npy"]
    assert none is None
    plain = column.dictionary_decode() if kind == "dictionary" else column
    wanted = plain.type.to_pandas_dtype()
    for value, i in ((first, 0), (last, 2)):
        array = array_of(value)
        assert array.shape == () and array.dtype == np.dtype(wanted)
        assert array.tobytes() == np.array(plain[i].as_py(), wanted).tobytes()
    assert batch.columns["txt"] == [b"a", b"b", b"c"]


ARRAYS = {
    "list": (pa.list_(pa.float32()), [[1.5, -2.0], [], None, [3.0]]),
    "large_list": (pa.large_list(pa.int16()), [[1, -2], [], None, [3]]),
    "fixed": (pa.list_(pa.uint8(), 2), [[1, 2], [3, 4], None, [5, 6]]),
    "fixed in list": (
        pa.list_(pa.list_(pa.float64(), 2)),
        [[[1.0, 2.0]], [], None, [[3.0, 4.0]] * 3],
    ),
    "fixed in fixed": (
        pa.list_(pa.list_(pa.int8(), 2), 2),
        [[[1, 2], [3, 4]]] * 2 + [None] + [[[5, 6]] * 2],
    ),
    "bools": (pa.list_(pa.bool_()), [[True, False], [], None, [False]]),
    "list_view": (pa.list_view(pa.int32()), [[1, 2], [], None, [3]]),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_lists_of_numbers_are_arrays(tmp_path: Path, kind: str) -> None:
    held, values = ARRAYS[kind]
    column = pa.array(values, held)
    batch = read_table(
        save_hf(tmp_path / "in", pa.table({"x": column, "n": [0, 1, 2, 3]})), tmp_path
    )
    for value, expected in zip(batch.columns["x.npy"], values, strict=True):
        if expected is None:
            assert value is None
            continue
        array = array_of(value)
        assert array.tolist() == expected
        leaf = held
        while hasattr(leaf, "value_type"):
            leaf = leaf.value_type
        assert array.dtype == np.dtype(leaf.to_pandas_dtype())
    shapes = [array_of(v).shape for v in batch.columns["x.npy"] if v is not None]
    if kind == "fixed in list":
        assert shapes == [(1, 2), (0, 2), (3, 2)]


def test_lists_in_lists_are_json_whatever_their_lengths(tmp_path: Path, save: Any) -> None:
    values = [[[1, 2], [3]], [[1, 2]], [], None]
    source = save(tmp_path / "in", pa.table({"x": pa.array(values), "n": [0, 1, 2, 3]}))
    batch = read_table(source, tmp_path)
    assert jsons(batch.columns["x.json"]) == values


def test_a_null_in_an_array_is_json_for_that_row_alone(tmp_path: Path, save: Any) -> None:
    column = pa.array([[1, 2], [1, None, 3], None, [4]], pa.list_(pa.int32()))
    batch = read_table(save(tmp_path / "in", pa.table({"x": column, "n": [0, 1, 2, 3]})), tmp_path)
    found = [None if v is None else array_of(v).tolist() for v in batch.columns["x.npy"]]
    assert found == [[1, 2], None, None, [4]]
    assert jsons(batch.columns["x.json"]) == [None, [1, None, 3], None, None]


@pytest.mark.parametrize("shape", [[2, 3], [None, 3]])
def test_arrays_of_datasets_have_their_shape(tmp_path: Path, save: Any, shape: list[Any]) -> None:
    values = [[[1, 2, 3], [4, 5, 6]], None, [[7, 8, 9], [1, 2, 3]]]
    table = pa.table({"x": pa.array(values, pa.list_(pa.list_(pa.int16()))), "n": [1, 2, 3]})
    table = with_features(table, x={"shape": shape, "dtype": "int16", "_type": "Array2D"})
    batch = read_table(save(tmp_path / "in", table), tmp_path)
    first, none, last = batch.columns["x.npy"]
    assert none is None and array_of(last).dtype == np.int16
    assert [array_of(v).tolist() for v in (first, last)] == [values[0], values[2]]


def test_an_array_of_another_shape_than_said_is_json(tmp_path: Path) -> None:
    values = [[[1, 2, 3]], [[1], [2]]]
    table = pa.table({"x": pa.array(values, pa.list_(pa.list_(pa.int16()))), "n": [1, 2]})
    table = with_features(table, x={"shape": [1, 3], "dtype": "int16", "_type": "Array2D"})
    batch = read_table(save_parquet(tmp_path / "in", table), tmp_path)
    assert jsons(batch.columns["x.json"]) == [None, values[1]]
    assert array_of(batch.columns["x.npy"][0]).shape == (1, 3)


def test_tensors_of_arrow(tmp_path: Path) -> None:
    held = pa.fixed_shape_tensor(pa.float32(), [2, 2])
    storage = pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], held.storage_type)
    column = pa.ExtensionArray.from_storage(held, storage)
    batch = read_table(save_hf(tmp_path / "in", pa.table({"x": column, "n": [1, 2, 3]})), tmp_path)
    assert array_of(batch.columns["x.npy"][0]).tolist() == [[1, 2], [3, 4]]
    assert batch.columns["x.npy"][1] is None


# --- json ---------------------------------------------------------------------------------

JSON = {
    "strings": (pa.list_(pa.string()), ["a", "é\n"], ["a", "é\n"]),
    "struct": (
        pa.struct({"a": pa.int8(), "b": pa.list_(pa.string())}),
        {"a": 1, "b": ["x"]},
        {"a": 1, "b": ["x"]},
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [("k", 1), ("k", 2)], [["k", 1], ["k", 2]]),
    "date32": (pa.date32(), -719162, "0001-01-01"),
    "date64": (pa.date64(), 86_400_000, "1970-01-02"),
    "timestamp ns": (pa.timestamp("ns"), 1, "1970-01-01T00:00:00.000000001"),
    "timestamp us, zone": (
        pa.timestamp("us", "Europe/Berlin"),
        1_000_001,
        "1970-01-01T00:00:01.000001Z",
    ),
    "timestamp of far away": (pa.timestamp("s"), 10**12, "33658-09-27T01:46:40"),
    "time": (pa.time64("us"), 86_399_999_999, "23:59:59.999999"),
    "duration": (pa.duration("ms"), -1500, "-PT1.500S"),
    "decimal": (pa.decimal128(10, 2), Decimal("-12.30"), "-12.30"),
    "bytes in a struct": (pa.struct({"b": pa.binary()}), {"b": b"\0\xff"}, {"b": "AP8="}),
    "dates in a list": (
        pa.list_(pa.timestamp("ns")),
        [1, None],
        ["1970-01-01T00:00:00.000000001", None],
    ),
    "half precision in a struct": (
        pa.struct({"h": pa.float16()}),
        {"h": np.float16(0.5)},
        {"h": 0.5},
    ),
    "interval": (pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3]), [1, 2, 3]),
    "empty struct": (pa.struct([]), {}, {}),
    "bytes in a list": (pa.list_(pa.binary()), [b"\0\xff", b""], ["AP8=", ""]),
}


@pytest.mark.parametrize("kind", JSON)
def test_what_becomes_json(tmp_path: Path, kind: str) -> None:
    held, value, expected = JSON[kind]
    column = pa.array([value, None, value], held)
    source = save_hf(tmp_path / "in", pa.table({"x": column, "n": [1, 2, 3]}))
    batch = read_table(source, tmp_path)
    assert jsons(batch.columns["x.json"]) == [expected, None, expected]


def test_floats_that_are_no_numbers(tmp_path: Path) -> None:
    values = [{"f": float("nan")}, {"f": float("-inf")}]
    source = save_parquet(tmp_path / "in", pa.table({"x": pa.array(values), "n": [1, 2]}))
    batch = read_table(source, tmp_path)
    assert batch.columns["x.json"] == [b'{"f": NaN}', b'{"f": -Infinity}']


def test_json_of_arrow_stays_as_it_is_written(tmp_path: Path) -> None:
    texts = ['{"b" : 1,\n "a": [1.0]}', None, "7"]
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))
    source = save_hf(tmp_path / "in", pa.table({"x": column, "n": [1, 2, 3]}))
    batch = read_table(source, tmp_path)
    assert batch.columns["x.json"] == [text and text.encode() for text in texts]
    column = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{", "1"]))
    source = save_hf(tmp_path / "bad", pa.table({"x": column, "n": [1, 2]}))
    ((_, why),) = read_table(source, tmp_path).rejects
    assert why.startswith("column 'x' is not JSON: ")


# --- texts --------------------------------------------------------------------------------

TEXTS = {
    "string": pa.array(["ä", "", None]),
    "large_string": pa.array(["ä", "", None], pa.large_string()),
    "string_view": pa.array(["ä", "", None], pa.string_view()),
    "dictionary": pa.array(["ä", "", None]).dictionary_encode(),
    "run_end_encoded": pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array(["ä", "", None])),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_every_type_of_text(tmp_path: Path, kind: str) -> None:
    table = pa.table({"caption": TEXTS[kind], "text": ["1", "2", "3"]})
    batch = read_table(save_hf(tmp_path / "in", table), tmp_path)
    assert batch.columns == {
        "caption.txt": ["ä".encode(), b"", None],
        "txt": [b"1", b"2", b"3"],
    }


BYTES = {
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "fixed_size_binary": pa.binary(3),
}


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_of_which_nothing_is_known(tmp_path: Path, kind: str) -> None:
    """Though one of them, far behind, begins as a picture does."""
    values = [b"\0\1\2", None, *[b"abc"] * 20, b"P5\n"]
    table = pa.table({"b": pa.array(values, BYTES[kind]), "n": [*range(len(values))]})
    batch = read_table(save_hf(tmp_path / "in", table), tmp_path)
    assert batch.columns["b.bin"] == values
    assert batch.columns.keys() == {"b.bin", "n.npy"}


def test_a_text_column_alone_is_packed_as_ever(tmp_path: Path, save: Any) -> None:
    source = save(tmp_path / "in", pa.table({"body": ["x", "yy"]}))
    corpus = open_corpus(source)
    assert corpus.spec() == {"kind": corpus.kind, "text_field": "body"}
    assert corpus.notes == [] and corpus.has_text and not corpus.has_pictures
    assert read_table(source, tmp_path).columns == {"txt": [b"x", b"yy"]}


# --- files --------------------------------------------------------------------------------


def test_pictures_are_named_by_what_they_hold(tmp_path: Path, save: Any) -> None:
    jpg, png = picture(1), picture(2, kind="PNG")
    table = pa.table(
        {
            "image": files({"bytes": jpg, "path": "n01/a.JPEG"}, {"bytes": png}, None, {}),
            "label": pa.array([2, 0, 1, 1]),
        }
    )
    table = with_features(table, image={"_type": "Image"}, label=labels_of("a", "b", "c"))
    source = save(tmp_path / "in", table)
    corpus = open_corpus(source)
    assert corpus.classes == ["a", "b", "c"] and corpus.has_pictures and not corpus.has_text
    batch = read_table(source, tmp_path)
    assert batch.columns == {
        "jpg": [jpg, None, None, None],
        "png": [None, png, None, None],
        "cls": [b"2", b"0", b"1", b"1"],
    }
    name = batch.keys[0].partition(b"/")[0]
    paths = unpack_paths(batch.keys[0], batch.paths[0], ["cls", "jpg"])
    row = name + b"/000000000000"
    assert paths == [("cls", row + b".cls", None), ("jpg", row + b"/image/n01/a.JPEG", None)]


@pytest.mark.parametrize("held", [pa.binary(), pa.large_binary(), FILE])
def test_bytes_that_are_pictures_though_nobody_says_so(tmp_path: Path, held: pa.DataType) -> None:
    jpg = picture(1)
    values = [None, jpg, picture(2)]
    column = (
        files(*[v and {"bytes": v} for v in values]) if held == FILE else pa.array(values, held)
    )
    batch = read_table(
        save_parquet(tmp_path / "in", pa.table({"x": column, "n": [1, 2, 3]})), tmp_path
    )
    assert batch.columns["jpg"] == values


def test_several_columns_of_pictures(tmp_path: Path) -> None:
    table = pa.table(
        {"mask": files({"bytes": picture(2, kind="PNG")}), "image": files({"bytes": picture(1)})}
    )
    batch = read_table(save_parquet(tmp_path / "a", table), tmp_path)
    assert batch.columns.keys() == {"jpg", "mask.png"}
    table = pa.table({"left": files({"bytes": picture(2)}), "right": files({"bytes": picture(1)})})
    source = save_parquet(tmp_path / "b", table)
    assert read_table(source, tmp_path).columns.keys() == {"left.jpg", "right.jpg"}
    assert not open_corpus(source).has_pictures
    assert read_table(source, tmp_path, fields=["left"]).columns.keys() == {"jpg"}


def test_sounds_films_and_others(tmp_path: Path, save: Any) -> None:
    table = pa.table(
        {
            "audio": files(
                {"bytes": WAV, "path": "a.mp3"}, {"bytes": FLAC}, {"bytes": b"??", "path": "c.OPUS"}
            ),
            "second": files({"bytes": FLAC}, None, {"bytes": b"OggS", "path": "x.opus"}),
            "film": files(*[{"bytes": b"\0\0\0\x18ftypmp42"}] * 3),
            "paper": files(
                {"bytes": b"%PDF-1.5"},
                {"bytes": b"?", "path": "b.npy"},
                {"bytes": b"", "path": "c"},
            ),
        }
    )
    audio = {"sampling_rate": 16000, "_type": "Audio"}
    table = with_features(
        table, audio=audio, second=audio, film={"_type": "Video"}, paper={"_type": "Pdf"}
    )
    batch = read_table(save(tmp_path / "in", table), tmp_path)
    assert batch.columns == {
        "wav": [WAV, None, None],
        "flac": [None, FLAC, None],
        "opus": [None, None, b"??"],
        "second.flac": [FLAC, None, None],
        "second.opus": [None, None, b"OggS"],
        "mp4": [b"\0\0\0\x18ftypmp42"] * 3,
        "paper.pdf": [b"%PDF-1.5", None, None],
        "paper.bin": [None, b"?", b""],
    }


def test_lists_of_pictures(tmp_path: Path, save: Any) -> None:
    a, b = picture(1), picture(2, kind="PNG")
    values = [
        [{"bytes": a, "path": "x.jpg"}, {"bytes": b, "path": "x.jpg"}],
        [],
        None,
        [{"bytes": a, "path": None}],
    ]
    table = pa.table({"images": pa.array(values, pa.list_(FILE)), "n": [1, 2, 3, 4]})
    source = save(tmp_path / "in", table)
    batch = read_table(source, tmp_path)
    assert batch.columns["images.0.jpg"] == [a, None, None, a]
    assert batch.columns["images.1.png"] == [b, None, None, None]
    shardkit.pack(source, tmp_path / "out", to="webdataset", **OPTIONS)
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    names = [name for name in tree(tmp_path / "back") if "/images/" in name]
    assert [name.partition("/")[2] for name in names] == [
        "000000000000/images/0/x.jpg",
        "000000000000/images/1/x.jpg",
    ]


def test_too_many_pictures_in_a_list(tmp_path: Path) -> None:
    values = [[{"bytes": picture(1), "path": None}] * 65]
    table = pa.table({"images": pa.array(values, pa.list_(FILE)), "n": [1]})
    ((_, why),) = read_table(save_parquet(tmp_path / "in", table), tmp_path).rejects
    assert why.startswith("column 'images' holds 65 files, and a sample takes at most 64 of one")


def test_what_should_be_a_picture_and_is_none(tmp_path: Path) -> None:
    table = pa.table({"image": files({"bytes": b"<html>"}, {"bytes": b""}, {"bytes": picture(1)})})
    table = with_features(table, image={"_type": "Image"})
    batch = read_table(save_parquet(tmp_path / "in", table), tmp_path)
    assert [why for _, why in batch.rejects] == [
        "column 'image' holds no picture: it begins with b'<html>'",
        "column 'image' holds no picture: it is empty",
    ]
    assert len(batch) == 1


def test_files_beside_the_table(tmp_path: Path, save: Any) -> None:
    jpg = picture(1)
    table = pa.table(
        {
            "image": files({"path": "pics/a.jpg"}, {"path": "b.jpg"}, {"path": "../out.jpg"}),
            "n": [1, 2, 3],
        }
    )
    table = with_features(table, image={"_type": "Image"})
    source = save(tmp_path / "in", table)
    write(source / "pics" / "a.jpg", jpg)
    write(tmp_path / "out.jpg", jpg)
    corpus = open_corpus(source, "parquet" if (source / "t.parquet").exists() else "hf")
    (run,) = corpus.runs(tmp_path)
    assert run.sizes[0] >= len(jpg) > run.sizes[1] and len(set(run.stamps)) == 2
    batch = from_spec(source, corpus.spec()).read(run, tmp_path)
    assert batch.columns["jpg"] == [jpg]
    assert [why for _, why in batch.rejects] == [
        f"column 'image' names the file {name} and holds no bytes of it, and in {source} there is"
        " no such file; put it there, or write the table with its files inside, as save_to_disk and"
        " push_to_hub of datasets do"
        for name in ("b.jpg", "../out.jpg")
    ]
    backwards = run.slice(0, 1)
    assert corpus.read(backwards, tmp_path).columns["jpg"] == [jpg]


def test_files_that_rows_name_are_not_passed_over(tmp_path: Path) -> None:
    rows = files({"path": "pics/a.jpg"}, {"path": "pics/a.jpg"}, {"path": "./b.jpg"})
    table = with_features(pa.table({"image": rows}), image={"_type": "Image"})
    source = save_parquet(tmp_path / "in", table)
    for name in ("pics/a.jpg", "b.jpg", "pics/c.jpg", "pics/d.txt"):
        write(source / name, picture(1))
    packed = shardkit.pack(
        source, tmp_path / "out", to="npy", corpus="parquet", workers=0, progress=False
    )
    assert packed.num_samples == 3 and packed.ignored == {".jpg": 1, ".txt": 1}
    (source / "pics/c.jpg").unlink()
    corpus = open_corpus(source, "parquet")
    for _ in range(2):
        assert len([*corpus.runs(tmp_path)]) == 1 and corpus.ignored == {".txt": 1}


def test_a_file_beside_that_changes_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "in"
    save_parquet(
        source,
        with_features(pa.table({"image": files({"path": "a.jpg"})}), image={"_type": "Image"}),
    )
    write(source / "a.jpg", picture(1))
    pack = {"to": "npy", "corpus": "parquet", **OPTIONS}
    shardkit.pack(source, tmp_path / "out", **pack)
    assert shardkit.pack(source, tmp_path / "out", **pack).was_complete
    other = picture(3)
    write(source / "a.jpg", other)
    with pytest.raises(shardkit.ShardkitError, match="already holds a dataset"):
        shardkit.pack(source, tmp_path / "out", **pack)
    shardkit.pack(source, tmp_path / "out", overwrite=True, **pack)
    assert bytes(shardkit.open(tmp_path / "out")[0]["jpg"]) == other


# --- labels -------------------------------------------------------------------------------


def test_a_label_of_minus_one_is_none(tmp_path: Path) -> None:
    table = pa.table({"label": pa.array([-1, 0, None, 1, 2]), "text": [*"abcde"]})
    table = with_features(table, label=labels_of("x", "y"))
    source = save_parquet(tmp_path / "in", table)
    batch = read_table(source, tmp_path)
    assert batch.columns["cls"] == [None, b"0", None, b"1"]
    assert batch.rejects == [("t.parquet at row 4", "column 'label' has class 2, and there are 2")]
    one = with_features(pa.table({"label": [1], "text": ["a"]}), label=labels_of("a"))
    batch = read_table(save_parquet(tmp_path / "one", one), tmp_path)
    assert batch.rejects == [("t.parquet at row 0", "column 'label' has class 1, and there is 1")]


def test_further_labels_keep_their_names(tmp_path: Path) -> None:
    table = pa.table({"fine": [0, 1], "coarse": [1, 0], "tags": [[0], [1, 0]], "label": [1, 0]})
    table = with_features(
        table,
        fine=labels_of("a", "b"),
        coarse=labels_of("x", "y"),
        label=labels_of("p", "q"),
        tags={"feature": labels_of("O", "B"), "_type": "List"},
    )
    source = save_parquet(tmp_path / "in", table)
    shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    info = read_info(tmp_path / "out")
    assert info.classes == ["p", "q"]
    names = {"fine": ["a", "b"], "coarse": ["x", "y"], "tags": ["O", "B"]}
    assert info.provenance.spec["names"] == names
    assert shardkit.open(tmp_path / "out").read([0, 1])["fine.npy"].tolist() == [0, 1]
    assert open_corpus(source, fields=["fine"]).classes == ["a", "b"]
    assert open_corpus(source, fields=["fine", "coarse"]).classes is None


@pytest.mark.parametrize(("num", "is_said"), [(784, True), (99, False)])
def test_a_table_of_pixels_is_said_to_be_one(tmp_path: Path, num: int, is_said: bool) -> None:
    table = pa.table({"label": [0, 1]} | {f"pixel{i}": [i, 0] for i in range(num)})
    source = save_parquet(tmp_path / "in", table)
    result = shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    said = [note for note in result.notes if "hold a number each" in note]
    assert len(said) == is_said
    if is_said:
        assert said[0].startswith(
            "785 columns hold a number each ('label', 'pixel0' ...), and are as many fields; if"
            " they are pixels, or one vector, numpy.savez("
        )


@pytest.mark.parametrize("name", ["label", "Labels", "cls"])
def test_whole_numbers_that_are_called_labels(tmp_path: Path, name: str) -> None:
    source = save_parquet(tmp_path / "in", pa.table({name: [-1, 7], "text": ["a", "b"]}))
    assert read_table(source, tmp_path).columns["cls"] == [b"-1", b"7"]
    assert open_corpus(source).classes is None


@pytest.mark.parametrize(
    ("name", "values", "others", "field"),
    [
        ("label", ["cat", "dog"], {"text": ["a", "b"]}, "label.txt"),
        ("label", [0.0, 1.0], {"text": ["a", "b"]}, "label.npy"),
        ("labels", [True, False], {}, "labels.npy"),
        ("label", [[0, 1], [1, 0]], {}, "label.npy"),
        ("class", [0, 1], {}, "class.npy"),
        ("Category", ["cat", "dog"], {"n": [1, 2]}, "txt"),
        ("class", ["cat", "dog"], {"text": ["a", "b"], "label": [0, 1]}, ""),
        ("tag", ["cat", "dog"], {"text": ["a", "b"]}, ""),
        ("label", [picture(1, kind="PNG")] * 2, {"image": [picture(2)] * 2}, ""),
    ],
)
def test_what_is_called_as_classes_and_is_no_cls_is_named(
    tmp_path: Path, name: str, values: list[Any], others: dict[str, Any], field: str
) -> None:
    source = save_parquet(tmp_path / "in", pa.table({name: values, **others}))
    said = [note for note in open_corpus(source).notes if "not cls" in note]
    if not field:
        assert said == []
        return
    (note,) = said
    assert note.startswith(f"column '{name}' is field {field}, not cls, which holds whole numbers")
    assert f"dataset.class_encode_column('{name}') of datasets makes one" in note


def test_names_of_classes_from_the_card_of_the_hub(tmp_path: Path) -> None:
    card = """---
license: mit
dataset_info:
  features:
  - name: image
    dtype: image
  - name: label
    dtype:
      class_label:
        names:
          '0': cat
          '1': dog
  - name: tags
    sequence:
      class_label:
        names:
          '0': O
---
# A dataset
"""
    table = pa.table({"image": files({"bytes": picture(1)}), "label": [1], "tags": [[0]]})
    save_parquet(tmp_path / "hub" / "data", table)
    write(tmp_path / "hub" / "README.md", card)
    for source in (tmp_path / "hub", tmp_path / "hub" / "data", tmp_path / "hub/data/t.parquet"):
        corpus = open_corpus(source)
        assert corpus.classes == ["cat", "dog"]
        assert corpus.spec()["names"] == {"tags": ["O"]}


def test_names_of_classes_beside_a_saved_dataset(tmp_path: Path) -> None:
    source = save_hf(tmp_path / "in", pa.table({"label": [1], "text": ["a"]}))
    write(source / "dataset_info.json", json.dumps({"features": {"label": labels_of("u", "v")}}))
    assert open_corpus(source).classes == ["u", "v"]


def test_a_damaged_entry_of_datasets_is_named(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"]}).replace_schema_metadata({"huggingface": "{"})
    ((where, why),) = read_table(save_parquet(tmp_path / "in", table), tmp_path).rejects
    assert where == "t.parquet" and why.startswith("is damaged: its entry 'huggingface' is no JSON")


# --- which columns ------------------------------------------------------------------------


def test_fields_are_chosen_and_the_others_named(tmp_path: Path, run: Run) -> None:
    table = pa.table({"id": ["x", "y"], "n": [1, 2], "text": ["a", "b"], "e": pa.nulls(2)})
    save_parquet(tmp_path / "in", table)
    code, out, _ = run("pack", "in", "out", *TO_NPY, "--fields", "n, text")
    assert code == 0
    assert "\n  left out: 'id', 'e' (not among --fields)\n" in out
    assert shardkit.open(tmp_path / "out").fields == ["n.npy", "txt"]
    spec = read_info(tmp_path / "out").provenance.spec
    assert spec["fields"] == ["n", "text"] and [*spec["left_out"]] == ["id", "e"]
    assert shardkit.verify(tmp_path / "out", against=tmp_path / "in").ok
    code, out, _ = run("pack", "in", "all", *TO_NPY)
    assert "left out: 'e' (all its values are null)" in out
    code, _, err = run("pack", "in", "other", *TO_NPY, "--fields", "n,nope")
    assert code == 2 and "there is no column 'nope'" in err


def test_with_a_tokenizer_the_text_alone_is_packed(tmp_path: Path, run: Run) -> None:
    table = pa.table({"n": [1, 2], "text": ["a b", "b a"], "label": [0, 1]})
    save_parquet(tmp_path / "in", table)
    code, out, _ = run("pack", "in", "out", "--train-tokenizer", "300", "--workers", 0)
    assert code == 0
    assert "left out: 'n', 'label' (text is tokenized; --fields keeps others beside it)" in out
    assert shardkit.open(tmp_path / "out").fields == ["tokens"]
    assert shardkit.verify(tmp_path / "out", against=tmp_path / "in").ok
    fields = ["--fields", "text,label"]
    code, out, _ = run("pack", "in", "b", "--train-tokenizer", "300", "--workers", 0, *fields)
    assert code == 0 and shardkit.open(tmp_path / "b").fields == ["cls", "tokens"]
    assert shardkit.verify(tmp_path / "b", against=tmp_path / "in").ok


def test_names_that_no_field_can_have(tmp_path: Path) -> None:
    table = pa.table({"my col": [1], ".a/b": [2], "": [3], "x" * 90: [4], "A": ["t"], "B": ["u"]})
    source = save_parquet(tmp_path / "in", table)
    long = f"{'x' * 50}.npy"
    assert read_table(source, tmp_path).columns.keys() == {
        *("my_col.npy", "_a_b.npy", "_.npy", long, "A.txt", "B.txt")
    }
    assert "'my col' is field my_col.npy" in open_corpus(source).notes[0]
    for to in CONTAINERS:
        shardkit.pack(source, tmp_path / to, to=to, **OPTIONS)
        assert shardkit.verify(tmp_path / to, against=source).ok


@pytest.mark.parametrize("names", [("a b", "a_b"), ("Url", "URL")])
def test_two_columns_that_would_be_one_field(tmp_path: Path, names: tuple[str, str]) -> None:
    source = save_parquet(tmp_path / "in", pa.table({names[0]: [1], names[1]: [2], "c": ["x"]}))
    with pytest.raises(CorpusError, match="would both be field") as caught:
        open_corpus(source)
    assert "leave one out with --fields" in str(caught.value)
    assert open_corpus(source, fields=[names[1], "c"]).has_text


UNSTORABLE = {
    "union": (
        pa.UnionArray.from_dense(
            pa.array([0, 1], pa.int8()),
            pa.array([0, 0], pa.int32()),
            [pa.array([1]), pa.array(["a"])],
        ),
        "holds a union, of which JSON would not say which member it is",
    ),
    "members": (
        pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], ["a", "a"]),
        "holds a struct that has two members of one name",
    ),
}


@pytest.mark.parametrize("kind", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    column, why = UNSTORABLE[kind]
    source = save_hf(tmp_path / "in", pa.table({"x": column, "n": [1, 2], "text": ["a", "b"]}))
    with pytest.raises(CorpusError) as caught:
        open_corpus(source)
    assert f"{why}, so that it cannot be stored; leave it out: --fields n,text" in str(caught.value)
    assert read_table(source, tmp_path, fields=["n", "text"]).columns["txt"] == [b"a", b"b"]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays(
        [pa.array([1]), pa.array([2]), pa.array(["a"])], ["n", "n", "text"]
    )
    source = save_hf(tmp_path / "in", table)
    with pytest.raises(
        CorpusError, match=r"column 'n' .* is there twice, so that it cannot be stored"
    ):
        open_corpus(source)
    assert read_table(source, tmp_path, fields=["text"]).columns == {"txt": [b"a"]}


def test_a_row_of_nulls_alone_is_a_reject(tmp_path: Path) -> None:
    table = pa.table({"n": pa.array([1, None]), "text": ["a", None]})
    batch = read_table(save_parquet(tmp_path / "in", table), tmp_path)
    assert batch.rejects == [("t.parquet at row 1", "has a null in every column that is packed")]


# --- several files ------------------------------------------------------------------------


def write_parts(folder: Path, *tables: pa.Table) -> Path:
    for number, table in enumerate(tables):
        folder.mkdir(exist_ok=True)
        pq.write_table(table, folder / f"p{number}.parquet")
    return folder


def test_files_whose_columns_do_not_fit_are_rejected(tmp_path: Path) -> None:
    names = labels_of("x", "y")
    first = with_features(pa.table({"text": ["a"], "label": [0], "s": [{"a": 1}]}), label=names)
    source = write_parts(
        tmp_path / "in",
        first,
        first.append_column("more", pa.array(["lost?"])),
        first.drop_columns(["s"]),
        first.set_column(1, "label", pa.array(["x"])),
        with_features(first, label=labels_of("y", "x")),
        first.append_column("none", pa.nulls(1)),
        pa.table({"text": ["z"], "label": pa.array([1], pa.int8()), "s": pa.nulls(1)}),
    )
    batch = read_table(source, tmp_path)
    reasons = dict(batch.rejects)
    assert [*reasons] == ["p1.parquet", "p2.parquet", "p3.parquet", "p4.parquet"]
    assert "has a column 'more' (string) with values" in reasons["p1.parquet"]
    assert "column 's' is not there" in reasons["p2.parquet"]
    assert "has a column 'label' that is string" in reasons["p3.parquet"]
    assert "has other names of classes in column 'label'" in reasons["p4.parquet"]
    assert batch.columns["txt"] == [b"a", b"a", b"z"]
    assert batch.columns["cls"] == [b"0", b"0", b"1"]


def test_nulls_of_the_first_file_are_what_a_later_one_has(tmp_path: Path) -> None:
    source = write_parts(
        tmp_path / "in",
        pa.table({"text": ["a"], "x": pa.nulls(1)}),
        pa.table({"text": ["b"], "x": [1.5]}),
    )
    batch = read_table(source, tmp_path)
    assert batch.rejects == [] and batch.columns["x.npy"][0] is None
    assert array_of(batch.columns["x.npy"][1]).item() == 1.5


# --- packed -------------------------------------------------------------------------------


def everything(rows: int) -> pa.Table:
    table = pa.table(
        {
            "image": files(*[{"bytes": picture(i), "path": f"{i}.jpeg"} for i in range(rows)]),
            "label": [i % 3 for i in range(rows)],
            "caption": [f"caption {i}" if i % 4 else None for i in range(rows)],
            "score": pa.array([i / 7 for i in range(rows)], pa.float32()),
            "vector": pa.array([[i, i + 1] for i in range(rows)], pa.list_(pa.int16(), 2)),
            "ragged": pa.array([[*range(i % 5)] for i in range(rows)], pa.list_(pa.int64())),
            "meta": [{"a": i, "b": [str(i)]} for i in range(rows)],
        }
    )
    return with_features(table, image={"_type": "Image"}, label=labels_of("x", "y", "z"))


@pytest.mark.parametrize("to", CONTAINERS)
def test_packed_verified_unpacked_and_converted(tmp_path: Path, save: Any, to: str) -> None:
    source = save(tmp_path / "in", everything(20))
    trees = []
    for workers in (0, 2):
        dest = tmp_path / f"out{workers}"
        with workers_for(to):
            shardkit.pack(source, dest, to=to, shard_size="8kB", workers=workers, progress=False)
        trees.append(tree(dest))
        checked = shardkit.verify(dest, against=source)
        assert checked.ok, checked.problems
        assert checked.num_compared == 20
    assert trees[0] == trees[1]
    ds = shardkit.open(tmp_path / "out0")
    assert ds.fields == [
        *("cls", "jpg", "meta.json", "ragged.npy", "score.npy", "txt", "vector.npy")
    ]
    batch = ds.read(range(20))
    assert batch["cls"].tolist() == [i % 3 for i in range(20)]
    assert batch["score.npy"].dtype == np.float32 and batch["vector.npy"].shape == (20, 2)
    assert [a.tolist() for a in batch["ragged.npy"]] == [[*range(i % 5)] for i in range(20)]
    assert batch["meta.json"][3] == {"a": 3, "b": ["3"]}
    assert batch["txt"][1] == "caption 1" and batch["txt"][0] is None
    other = "npy" if to != "npy" else "lmdb"
    shardkit.convert(tmp_path / "out0", tmp_path / "there", to=other, workers=0)
    shardkit.convert(tmp_path / "there", tmp_path / "back", to=to, workers=0)
    assert tree(tmp_path / "back") == trees[0]
    shardkit.unpack(tmp_path / "out0", tmp_path / "files")
    back = tree(tmp_path / "files")
    name = next(iter(back)).partition("/")[0]
    assert back[f"{name}/000000000003/image/3.jpeg"] == picture(3)
    assert back[f"{name}/000000000003.cls"] == b"0"
    assert json.loads(back[f"{name}/000000000003.meta.json"]) == {"a": 3, "b": ["3"]}


def test_the_same_pictures_and_labels_as_of_a_folder(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "folder", per_class=4)
    paths = sorted(folder.rglob("*.jpg"), key=lambda path: path.name)
    names = sorted(path.name for path in folder.iterdir())
    table = pa.table(
        {
            "image": files(*[{"bytes": p.read_bytes(), "path": p.name} for p in paths]),
            "label": [names.index(p.parent.name) for p in paths],
        }
    )
    table = with_features(table, image={"_type": "Image"}, label=labels_of(*names))
    source = save_parquet(tmp_path / "in", table)
    shardkit.pack(folder, tmp_path / "a", to="lmdb", **OPTIONS)
    shardkit.pack(source, tmp_path / "b", to="lmdb", **OPTIONS)
    a, b = (shardkit.open(tmp_path / name, decode=False) for name in "ab")
    assert a.fields == b.fields == ["cls", "jpg"] and a.classes == b.classes == names

    def pairs(ds: shardkit.Dataset) -> list[tuple[bytes, bytes]]:
        held = ds.read(range(len(ds)))
        return sorted(zip(map(bytes, held["jpg"]), map(bytes, held["cls"]), strict=True))

    assert pairs(a) == pairs(b)


def test_pictures_of_tables_can_be_made_smaller(tmp_path: Path) -> None:
    source = save_parquet(tmp_path / "in", everything(6))
    shardkit.pack(source, tmp_path / "out", to="npy", resize=8, image_format="png", **OPTIONS)
    ds = shardkit.open(tmp_path / "out", decode="pil")
    assert ds[2]["png"].size == (8, 8) and ds[2]["cls"] == 2
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "files")
    assert image_field(tree(tmp_path / "files")["t.parquet/000000000002/image/2.png"][:32]) == "png"
    with pytest.raises(shardkit.ShardkitError, match="has no pictures: leave out --resize 8"):
        shardkit.pack(source, tmp_path / "c", to="npy", resize=8, fields="label", **OPTIONS)
    assert shardkit.estimate(source, to="npy", resize=8, fields="image,label").num_measured == 6


def test_against_finds_other_values_and_other_names(tmp_path: Path) -> None:
    table = everything(9)
    source = save_parquet(tmp_path / "in", table)
    shardkit.pack(source, tmp_path / "out", to="hdf5", **OPTIONS)
    labels = [0, 1, 0, *table["label"].to_pylist()[3:]]
    save_parquet(source, table.set_column(1, "label", pa.array(labels)))
    problems = shardkit.verify(tmp_path / "out", against=source).problems
    assert [str(problem.what) for problem in problems] == ["its cls differs from the original"]
    save_parquet(
        source, with_features(table, image={"_type": "Image"}, label=labels_of("z", "y", "x"))
    )
    problems = shardkit.verify(tmp_path / "out", against=source).problems
    assert [str(problem.what) for problem in problems] == [
        "its names of classes are not the original's"
    ]


def test_many_small_numbers_do_not_make_one_shard(tmp_path: Path) -> None:
    table = pa.table({f"c{i}": [7] * 2000 for i in range(5)})
    runs = open_corpus(save_parquet(tmp_path / "in", table)).runs(tmp_path)
    assert min(min(run.sizes) for run in runs) >= 5 * 128


def test_huge_values_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardkit.inputs.tables.cells.HUGE_BYTES", 10)
    table = pa.table({"image": files({"bytes": picture(1)}), "text": ["long enough to be huge"]})
    batch = read_table(save_parquet(tmp_path / "in", table), tmp_path)
    assert [type(batch.columns[name][0]) for name in ("jpg", "txt")] == [memoryview, memoryview]
    assert bytes(batch.columns["jpg"][0]) == picture(1)  # type: ignore[arg-type]


def test_a_batch_is_read_once_for_all_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_parquet(tmp_path / "in", everything(9))
    corpus = open_corpus(source)
    asked: list[list[str]] = []
    real = pq.ParquetFile.iter_batches

    def counted(self: Any, **options: Any) -> Any:
        asked.append(options["columns"])
        return real(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    runs = list(corpus.runs(tmp_path))
    assert asked == []
    assert [len(corpus.read(run, tmp_path)) for run in runs] == [3, 3, 3]
    assert asked == [everything(1).column_names] * 3  # a row group has three rows


def test_a_bad_row_stops_the_pack_and_is_named(tmp_path: Path) -> None:
    table = pa.table({"image": files({"bytes": picture(1)}, {"bytes": b"x"}), "n": [1, 2]})
    source = save_parquet(tmp_path / "in", with_features(table, image={"_type": "Image"}))
    with pytest.raises(SampleError, match=r"^t\.parquet at row 1: column 'image' holds no picture"):
        shardkit.pack(source, tmp_path / "out", to="npy", **OPTIONS)
    skip = {"on_error": "skip", "max_rejects": 0.5}
    assert shardkit.pack(source, tmp_path / "out", to="npy", **skip, **OPTIONS).num_rejects == 1


# --- splits of other columns --------------------------------------------------------------


def test_a_split_may_lack_a_column(tmp_path: Path, save: Any) -> None:
    """As the tables of a contest do, of which the test split has no labels."""
    source = tmp_path / "in"
    train = with_features(
        pa.table({"text": ["a", "b"], "label": [1, 0]}), label=labels_of("x", "y")
    )
    save(source / "train", train)
    save(source / "test", pa.table({"text": ["c"], "id": [7]}))
    write(source / "dataset_dict.json", json.dumps({"splits": ["test", "train"]}))
    if save is save_parquet:
        (source / "dataset_dict.json").unlink()
    for num_workers in (0, 2):
        dest = tmp_path / f"out{num_workers}"
        packed = shardkit.pack(source, dest, to="lmdb", workers=num_workers, progress=False)
        assert packed.splits == {"train": 2, "test": 1} and packed.num_rejects == 0
        assert packed.notes[1:] == [
            "split 'test' has no column 'label'",
            "split 'train' has no column 'id'",
        ]
        train_ds, test_ds = (shardkit.open(dest, split=name) for name in ("train", "test"))
        assert [(row["txt"], row["cls"]) for row in train_ds] == [("a", 1), ("b", 0)]
        assert train_ds.classes == ["x", "y"]
        assert (test_ds[0]["txt"], test_ds[0]["id.npy"]) == ("c", 7)
        assert {"cls", "id.npy"} - test_ds[0].keys() == {"cls"}
        assert shardkit.verify(dest, against=source).ok
    one, other = (
        {p.name: p.read_bytes() for p in (tmp_path / name).iterdir() if p.suffix == ".lmdb"}
        for name in ("out0", "out2")
    )
    assert one == other and len(one) == 2


def test_names_of_classes_that_only_another_split_has(tmp_path: Path, save: Any) -> None:
    source = tmp_path / "in"
    save(source / "test", pa.table({"text": ["c"], "label": [-1]}))
    save(
        source / "train",
        with_features(pa.table({"text": ["a"], "label": [1]}), label=labels_of("x", "y")),
    )
    if save is save_hf:
        write(source / "dataset_dict.json", json.dumps({"splits": ["test", "train"]}))
    corpus = open_corpus(source)
    found = read_all(corpus, tmp_path / "scratch")
    assert corpus.classes == ["x", "y"]
    assert found["train"].columns["cls"] == [b"1"]
    assert found["test"].columns.get("cls", [None]) == [None]


def test_names_of_classes_that_only_a_later_file_of_a_split_has(tmp_path: Path) -> None:
    save_parquet(tmp_path / "in/a", pa.table({"text": ["c"], "label": [1]}))
    table = with_features(pa.table({"text": ["a"], "label": [1]}), label=labels_of("x", "y"))
    save_parquet(tmp_path / "in/b", table)
    batch = read_table(tmp_path / "in", tmp_path / "scratch")
    ((path, why),) = batch.rejects
    assert path == "b/t.parquet" and "other names of classes in column 'label'" in why


def test_a_column_that_a_tool_adds_is_not_the_text(tmp_path: Path, save: Any) -> None:
    table = pa.table({"body": ["a"], "__index_level_0__": ["x"], "n": [1]})
    batch = read_table(save(tmp_path / "a", table), tmp_path / "scratch")
    assert sorted(batch.columns) == ["__index_level_0__.txt", "n.npy", "txt"]
    batch = read_table(save(tmp_path / "b", table.drop(["body"])), tmp_path / "scratch")
    assert sorted(batch.columns) == ["__index_level_0__.txt", "n.npy"]
    batch = read_table(tmp_path / "b", tmp_path / "scratch", text_field="__index_level_0__")
    assert sorted(batch.columns) == ["n.npy", "txt"]


def test_check_images_looks_at_each_picture_of_a_sample(tmp_path: Path) -> None:
    cut = picture(1)[:-20]
    table = pa.table({"before": [picture(0), picture(1)], "after": [picture(2), cut]})
    save_parquet(tmp_path / "in", table)
    options = {**OPTIONS, "on_error": "skip", "max_rejects": 1}
    packed = shardkit.pack(tmp_path / "in", tmp_path / "a", to="npy", **options)
    assert packed.num_samples == 2
    packed = shardkit.pack(tmp_path / "in", tmp_path / "b", to="npy", check_images=True, **options)
    assert (packed.num_samples, packed.num_rejects) == (1, 1)
    assert "after" in (tmp_path / "b/rejected.jsonl").read_text()
    assert shardkit.verify(tmp_path / "b", against=tmp_path / "in").ok
