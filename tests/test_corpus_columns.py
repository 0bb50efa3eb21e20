"""What columns become, decided from facts alone; what files hold, and what Hugging Face says."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import picture, write
from hypothesis import given
from hypothesis import strategies as st

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.index.manifest import is_field_name
from shardkit.inputs.tables.column_plan import make_plan
from shardkit.inputs.tables.columns import Fact, Facts, TablePlan, field_base
from shardkit.inputs.tables.features import card_head, class_names, from_yaml, in_schema, of_hub
from shardkit.inputs.tables.json_fields import KeyFields, members
from shardkit.inputs.tables.json_keys import KeySearch, first_keys, notes_on_keys
from shardkit.inputs.tables.media import ending_of, kept_name, sniff

FACTS: dict[str, Fact] = {
    "text": Fact("string", "text"),
    "picture": Fact("struct<bytes: binary>", "picture"),
    "sound": Fact("struct<bytes: binary>", "sound"),
    "label": Fact("int64", "integer", names=["a", "b"]),
    "integer": Fact("int64", "integer"),
    "number": Fact("double", "number"),
    "json": Fact("struct<>", "json"),
    "null": Fact("null", "nothing"),
    "many": Fact("list<struct<bytes: binary>>", "picture", many=True),
}


def facts(**columns: str) -> Facts:
    return {name: FACTS[kind] for name, kind in columns.items()}


def fields_of(plan: TablePlan) -> dict[str, str]:
    """Column -> the field's name before its ending, and what it is."""
    return {c.name: f"{c.base}:{c.how}" for c in plan.columns}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"a": "text", "text": "text"}, {"a": "a:text", "text": ":text"}),
        ({"a": "text", "n": "number"}, {"a": ":text", "n": "n:number"}),
        ({"a": "text", "b": "text"}, {"a": "a:text", "b": "b:text"}),
        ({"x": "picture"}, {"x": ":picture"}),
        ({"x": "picture", "IMG": "picture"}, {"x": "x:picture", "IMG": ":picture"}),
        ({"x": "picture", "y": "picture"}, {"x": "x:picture", "y": "y:picture"}),
        ({"png": "picture", "image": "picture"}, {"png": "png:picture", "image": ":picture"}),
        ({"x": "many"}, {"x": "x:picture"}),
        ({"x": "many", "y": "picture"}, {"x": "x:picture", "y": ":picture"}),
        ({"s": "sound", "p": "picture"}, {"s": ":sound", "p": ":picture"}),
        ({"y": "label"}, {"y": ":label"}),
        ({"y": "label", "label": "label"}, {"y": "y:number", "label": ":label"}),
        ({"y": "label", "z": "label"}, {"y": "y:number", "z": "z:number"}),
        ({"label": "integer", "y": "label"}, {"label": "label:number", "y": ":label"}),
        ({"label": "integer", "y": "integer"}, {"label": ":index", "y": "y:number"}),
        ({"label": "number"}, {"label": "label:number"}),
        ({"n": "json", "e": "null"}, {"n": "n:json"}),
    ],
)
def test_which_column_is_what(columns: dict[str, str], expected: dict[str, str]) -> None:
    plan = make_plan(facts(**columns), "x")
    assert fields_of(plan) == expected
    again = TablePlan.from_json(plan.text, json.loads(json.dumps(plan.to_json())))
    assert again == plan


def test_what_is_left_out_is_named() -> None:
    plan = make_plan(facts(a="text", b="number", e="null"), "x", ["a", "e"])
    assert plan.left_out == {"b": "not among --fields", "e": "all its values are null"}
    assert plan.notes() == [
        "left out: 'b' (not among --fields)",
        "left out: 'e' (all its values are null)",
    ]
    assert make_plan(facts(a="text"), "x").notes() == []


def test_notes_say_what_names_do_not() -> None:
    plan = make_plan(
        facts(image="picture", label="label", caption="text", n="number", pics="many"), "x"
    )
    assert plan.notes() == [
        "columns: 'image' is field jpg, png ..., 'label' is field cls of 2 classes, 'caption' is"
        " field txt, 'pics' is field pics.0.jpg, png ...; each other column is a field of its own"
        " name"
    ]


def test_notes_say_how_one_of_several_classes_is_chosen() -> None:
    """As of CIFAR-100, which has fine and coarse ones."""
    several = facts(image="picture", fine="label", coarse="label")
    assert make_plan(several, "x").notes()[1:] == [
        "'fine', 'coarse' hold classes; if --fields names but one of them, it is field cls"
    ]
    plan = make_plan(several, "x", ["image", "fine"])
    assert fields_of(plan) == {"image": ":picture", "fine": ":label"}
    assert plan.notes()[1:] == ["left out: 'coarse' (not among --fields)"]


@pytest.mark.parametrize(
    ("columns", "fields", "text_field", "what"),
    [
        ({"a": "text"}, ["b"], None, "x has columns 'a' (string): there is no column 'b'"),
        ({"a": "text"}, [], None, "--fields names no column; x has columns 'a' (string)"),
        ({"e": "null"}, None, None, "x has columns 'e' (null): there is nothing to pack in it"),
        (
            {"a": "text", "b": "text"},
            ["a"],
            "b",
            "x has columns 'a' (string): column 'b' is not there",
        ),
        (
            {"a": "number"},
            None,
            "a",
            "x has columns 'a' (double): column 'a' is double, expected strings",
        ),
    ],
)
def test_no_plan(
    columns: dict[str, str], fields: list[str] | None, text_field: str | None, what: str
) -> None:
    with pytest.raises(CorpusError) as caught:
        make_plan(facts(**columns), "x", fields, text_field)
    assert str(caught.value) == what


@given(st.text())
def test_every_column_makes_a_field(name: str) -> None:
    for ending in ("npy", "json", "63.webp"):
        assert is_field_name(f"{field_base(name)}.{ending}")


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}", fullmatch=True))
def test_good_names_stay(name: str) -> None:
    assert field_base(name) == name


def test_files_of_a_list_are_told_from_columns() -> None:
    with pytest.raises(CorpusError, match=r"columns 'x' and 'x\.0' would both be field"):
        make_plan({"x": FACTS["many"], "x.0": FACTS["picture"], "y": FACTS["picture"]}, "t")


# --- media --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (picture(1)[:64], ("picture", "jpg")),
        (b"RIFF\0\0\0\0WAVE", ("sound", "wav")),
        (b"RIFF\0\0\0\0AVI ", ("film", "avi")),
        (b"RIFF\0\0\0\0WEBP", ("picture", "webp")),
        (b"fLaC", ("sound", "flac")),
        (b"ID3\3", ("sound", "mp3")),
        (b"\xff\xfb\x90\x64", ("sound", "mp3")),
        (b"\xff\xf1\x50\x80", ("sound", "aac")),
        (b"FORM\0\0\0\0AIFF", ("sound", "aiff")),
        (b"\0\0\0\x20ftypM4A ", ("sound", "m4a")),
        (b"\0\0\0\x20ftypisom", ("film", "mp4")),
        (b"\0\0\0\x20ftypavif", ("picture", "avif")),
        (b"\x1a\x45\xdf\xa3....webm", ("film", "webm")),
        (b"\x1a\x45\xdf\xa3....matroska", ("film", "mkv")),
        (b"%PDF-1.4", ("file", "pdf")),
        (b"\xff\xff\xff\xff", None),
        (b"\xff\xfb", None),
        (b"hello", None),
        (b"", None),
    ],
)
def test_what_begins_like_this(head: bytes, expected: tuple[str, str] | None) -> None:
    assert sniff(head) == expected


@pytest.mark.parametrize(
    ("head", "path", "ending"),
    [
        (b"fLaC", "a.wav", "flac"),
        (b"OggS", "a/b.opus", "opus"),
        (b"OggS", "a/b.mp3", "ogg"),
        (b"RIFF\0\0\0\0WAVE", None, "wav"),
        (b"?", "x.MP3", "mp3"),
        (b"?", "x.tar.gz", "gz"),
        (b"?", ".mp3", "bin"),
        (b"?", "x.npy", "bin"),
        (b"?", "x.cls", "bin"),
        (b"?", "x.no ending", "bin"),
        (b"?", None, "bin"),
    ],
)
def test_endings(head: bytes, path: str | None, ending: str) -> None:
    assert ending_of(head, path) == ending


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("a.jpg", "a.jpg"),
        ("train/n01/a.JPEG", "train/n01/a.JPEG"),
        ("/home/me/a.jpg", "a.jpg"),
        ("hf://datasets/x@1/y.jpg", "y.jpg"),
        ("a//b.jpg", "b.jpg"),
        ("../a.jpg", None),
        ("a/..", None),
        ("a/./b", None),
        ("a\0b", None),
        ("", None),
        (None, None),
        ("x" * 201, None),
        ("x" * 100 + "/" + "y" * 100, "x" * 100 + "/" + "y" * 100),
        ("/".join("z" * 100 for _ in range(11)), None),
        ("a/", None),
    ],
)
def test_paths_that_are_kept(path: str | None, kept: str | None) -> None:
    assert kept_name(path) == kept


# --- what Hugging Face says ---------------------------------------------------------------


def test_names_of_classes_wherever_they_are() -> None:
    label = {"names": ["a", "b"], "_type": "ClassLabel"}
    assert class_names(label) == {"": ["a", "b"]}
    assert class_names({"num_classes": 2, "_type": "ClassLabel"}) == {"": ["0", "1"]}
    assert class_names({"feature": label, "_type": "Sequence"}) == {"": ["a", "b"]}
    assert class_names([label]) == {"": ["a", "b"]}
    objects = {"box": {"_type": "Value"}, "inner": {"category": label}}
    assert class_names({"feature": objects, "_type": "List"}) == {"inner.category": ["a", "b"]}
    assert class_names({"_type": "Image"}) == class_names(None) == {}
    for names in ("ab", [1], None):
        with pytest.raises(FormatError, match="the names of its classes are no list of texts"):
            class_names({"names": names, "_type": "ClassLabel"})


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"7", b"[]"])
def test_a_damaged_entry_in_a_schema(raw: bytes) -> None:
    with pytest.raises(FormatError, match="is damaged: its entry 'huggingface' is no JSON"):
        in_schema({b"huggingface": raw})


@pytest.mark.parametrize("raw", [b"{}", b'{"info": null}', b'{"info": {"features": null}}'])
def test_nothing_is_said(raw: bytes) -> None:
    assert in_schema({b"huggingface": raw}) == in_schema(None) == in_schema({}) == {}


def test_the_head_of_a_card() -> None:
    assert card_head("---\na: 1\n---\nb") == "a: 1"
    assert card_head("\ufeff--- \r\na: 1\r\n---\r\n").strip() == "a: 1"
    assert (
        card_head("# no head\n---\na: 1\n---\n") == card_head("---\na: 1\n") == card_head("") == ""
    )


def test_features_of_yaml() -> None:
    label = {"class_label": {"names": {"0": "a", "1": "b"}}}
    found = from_yaml(
        [
            {"name": "image", "dtype": "image"},
            {"name": "audio", "dtype": {"audio": {"sampling_rate": 16000}}},
            {"name": "label", "dtype": label},
            {"name": "tags", "sequence": label},
            {"name": "objects", "list": [{"name": "kind", "dtype": label}]},
            {"name": "ids", "list": "int32"},
            {"name": "point", "struct": [{"name": "x", "dtype": "float32"}]},
        ]
    )
    made = {"_type": "ClassLabel", "names": ["a", "b"]}
    assert found["image"]["_type"] == "Image" and found["audio"]["_type"] == "Audio"
    assert found["label"] == made and found["tags"]["feature"] == made
    assert found["objects"]["feature"] == {"kind": made}
    assert found["ids"]["feature"]["_type"] == "Value" and "x" in found["point"]


def test_configurations_that_disagree_say_nothing(tmp_path: Path) -> None:
    def config(names: list[str]) -> dict[str, Any]:
        return {
            "features": {"label": {"names": names, "_type": "ClassLabel"}, "i": {"_type": "Image"}}
        }

    infos = {"en": config(["a"]), "de": config(["b"])}
    write(tmp_path / "dataset_infos.json", json.dumps(infos))
    assert of_hub(tmp_path) == {"i": {"_type": "Image"}}


@pytest.mark.parametrize(
    "info", ["7", "{features: 3}", "{features: [{dtype: {class_label: {names: 3}}}]}", "[1"]
)
def test_a_damaged_card_is_named(tmp_path: Path, info: str) -> None:
    write(tmp_path / "README.md", f"---\ndataset_info: {info}\n---\n")
    with pytest.raises(FormatError, match=r"README\.md is damaged: its dataset_info"):
        of_hub(tmp_path)


# --- lines of JSON ------------------------------------------------------------------------


def cells(line: bytes, *fields: str, text: str | None = None) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in KeyFields.of(fields, text).cells(line)}


def test_keys_become_fields() -> None:
    line = (
        '{"text": "ä", "label": 3, "id": "x", "n" : 1.10, "o": { "a":[1e400] }, "z": null}'.encode()
    )
    fields = ("text", "label", "id", "n", "o", "z", "gone")
    assert cells(line, *fields) == {
        "txt": "ä".encode(),
        "cls": b"3",
        "id.txt": b"x",
        "n.json": b"1.10",
        "o.json": b'{ "a":[1e400] }',
    }
    assert cells(line, "id", "text", text="id") == {"txt": b"x", "text.txt": "ä".encode()}
    assert cells(b'{"label": "cat"}', "label") == {"label.txt": b"cat"}
    assert cells(b'{"label": true}', "label") == {"label.json": b"true"}
    assert cells(b'\xef\xbb\xbf {"a": 1, "a": 2}\r\n', "a") == {"a.json": b"2"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[1]", "is no JSON object, so it has no field 'text'"),
        (b'{"a": 1}', "has none of 'text', 'n'; it has 'a'"),
        (b'{"text": 1}', "field 'text' is int, expected a string"),
        (b'{"text": "\\ud800"}', "field 'text' holds half a surrogate pair"),
        (b'{"text": ', "is not JSON"),
        (b'{"text": null}', "has none of 'text', 'n'; it has 'text'"),
    ],
)
@pytest.mark.parametrize("huge", [False, True])
def test_lines_that_do_not_fit(tmp_path: Path, line: bytes, why: str, huge: bool) -> None:
    chosen = KeyFields.of(["text", "n"], None)
    with pytest.raises(SampleError) as caught:
        chosen.huge_cells(memoryview(line), tmp_path) if huge else chosen.cells(line)
    assert str(caught.value).startswith(why)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["text", "label", "a", "b c"]), _VALUES), st.booleans())
def test_huge_lines_give_the_same(
    tmp_path_factory: pytest.TempPathFactory, held: dict[str, Any], is_ascii: bool
) -> None:
    line = json.dumps(held, ensure_ascii=is_ascii).encode()
    chosen = KeyFields.of(["text", "label", "a", "b c"], None)
    found: list[Any] = []
    for read in (
        chosen.cells,
        lambda x: chosen.huge_cells(memoryview(x), tmp_path_factory.getbasetemp()),
    ):
        try:
            found.append({name: bytes(value) for name, value in read(line)})
        except SampleError as error:
            found.append(str(error))
    assert found[0] == found[1]


@given(st.dictionaries(st.text(max_size=4), _VALUES), st.sampled_from([None, 0, 1]))
def test_members_are_those_of_json(held: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(held, indent=indent)
    found = list(members(text))
    assert [key for key, _, _ in found] == [*held]
    for (_, value, written), own in zip(found, held.values(), strict=True):
        assert repr(value) == repr(json.loads(written)) == repr(own)


@pytest.mark.parametrize(
    ("fields", "text", "what"),
    [
        ([], None, "--fields names no key"),
        (["a"], "b", "--text-field 'b' is not among --fields a"),
        (["a b", "a_b"], None, "keys 'a b' and 'a_b' would both be field 'a_b'"),
    ],
)
def test_keys_that_cannot_be(fields: list[str], text: str | None, what: str) -> None:
    with pytest.raises(CorpusError, match=what):
        KeyFields.of(fields, text)


def test_keys_that_are_left_out_are_named() -> None:
    head = b'{"a": 1, "text": "x"}\n[1]\nnope\n{"b": 2}\n{"cut'
    seen = first_keys(head, is_whole=False)
    assert [*seen] == ["a", "text", "b"]
    assert notes_on_keys(seen, None, "text") == [
        "left out of each line: 'a', 'b' (--fields text,a,b keeps them beside the text)"
    ]
    assert notes_on_keys(seen, ["text", "c"], "text") == [
        "left out of each line: 'a', 'b' (not among --fields)",
        "the first lines of the first file have no 'c'",
    ]
    assert notes_on_keys({"text": "a"}, None, "text") == notes_on_keys({}, ["a"], None) == []


def test_what_is_called_as_classes_and_is_no_cls_is_named() -> None:
    seen = first_keys(b'{"text": "a", "label": null}\n{"label": "cat", "class": 1}\n', True)
    assert seen == {"text": "a", "label": "cat", "class": 1}
    rest = "not cls, which is a whole number under label, labels, cls"
    assert notes_on_keys(seen, ["text", "label", "class"], "text") == [
        f"key 'label' is field label.txt, {rest}",
        f"key 'class' is field class.json, {rest}",
    ]
    for value in (0.0, True, [1, 0], {"a": 1}):
        said = [f"key 'label' is field label.json, {rest}"]
        assert notes_on_keys({"label": value}, ["label"], None) == said
    assert notes_on_keys({"label": "cat"}, ["label"], "label") == []
    assert notes_on_keys({"label": 1, "class": "cat"}, ["label", "class"], None) == []


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(1, 9))
def test_a_key_is_found_wherever_blocks_are_cut(data: bytes, at: int, size: int) -> None:
    text = data[:at] + json.dumps({"l\u00e4bel": 1}).encode() + data[at:]
    search = KeySearch(["text", "l\u00e4bel", "lable"], ["text"])
    read = search.reader(io.BytesIO(text).read)
    parts = []
    while block := read(size):
        parts.append(block)
    assert b"".join(parts) == text
    if b'"lable"' not in text:
        assert search.missing == ["lable"]
        with pytest.raises(CorpusError, match="no line of here has 'lable', which --fields names"):
            search.refuse("here")
