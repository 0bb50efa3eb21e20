"""What one sample of Python's becomes: by the name and the type of each value alone."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import picture, write
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shardkit.errors import SampleError, UsageError
from shardkit.inputs.corpus import Run
from shardkit.inputs.objects.numbered_rows import NumberedRows, RowsCorpus
from shardkit.inputs.objects.sample_forms import BatchBuilder, SampleForm
from shardkit.samples.encoding import parse_npy

FORM = SampleForm()
PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def fields(sample: Any, form: SampleForm = FORM) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in form.fields_of(sample)[1].items()}


def refusal(sample: Any, form: SampleForm = FORM) -> str:
    with pytest.raises(SampleError) as error:
        form.fields_of(sample)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "field", "stored"),
    [
        ("mask.png", bytearray(b"too"), "mask.png", b"too"),
        ("image", picture(1), "jpg", picture(1)),
        ("text", "hello", "txt", b"hello"),
        ("note.txt", "as named", "note.txt", b"as named"),
        ("json", '{"a": 1}', "json", b'{"a": 1}'),
        ("label", 7, "cls", b"7"),
        ("cls", np.int64(3), "cls", b"3"),
        ("labels", torch.tensor(5), "cls", b"5"),
        ("boxes", [[1, 2], [3, 4]], "boxes.json", b"[[1, 2], [3, 4]]"),
        ("meta.json", {"n": np.float64(0.5)}, "meta.json", b'{"n": 0.5}'),
        ("first name", "x", "first_name.txt", b"x"),
    ],
)
def test_a_value(name: str, value: Any, field: str, stored: bytes) -> None:
    assert fields({name: value}) == {field: stored}


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("npy", PIXELS, "npy"),
        ("age", 31, "age.npy"),
        ("score", 0.25, "score.npy"),
        ("label", 0.5, "label.npy"),
        ("big", np.arange(3, dtype=">i4"), "big.npy"),
        ("t", torch.arange(6).reshape(2, 3), "t.npy"),
        ("g", torch.ones(2, requires_grad=True), "g.npy"),
        ("f", np.asfortranarray(PIXELS), "f.npy"),
    ],
)
def test_numbers_are_arrays(name: str, value: Any, field: str) -> None:
    made = fields({name: value})
    assert list(made) == [field]
    expected = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    read = parse_npy(made[field])
    assert read.dtype.kind == expected.dtype.kind and read.shape == expected.shape
    np.testing.assert_array_equal(read, expected)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_images_lose_nothing(mode: str) -> None:
    noise = np.random.default_rng(1).integers(0, 255, (9, 7, 3), np.uint8)
    image = Image.fromarray(noise).convert("L" if mode == "I;16" else "RGB")
    image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
    read = Image.open(io.BytesIO(fields({"image": image})["png"]))
    assert read.mode.partition(";")[0] == mode.partition(";")[0]
    assert np.array_equal(np.asarray(read), np.asarray(image))
    assert list(fields({"mask": image})) == ["mask.png"]


def test_files_are_their_own_bytes(tmp_path: Path) -> None:
    """The ending is what the file holds, whatever its name says."""
    jpeg = write(tmp_path / "a.png", picture(1))
    assert fields({"image": jpeg}) == {"jpg": picture(1)}
    assert fields({"mask": jpeg}) == {"mask.jpg": picture(1)}
    assert fields((jpeg, 3)) == {"jpg": picture(1), "cls": b"3"}
    assert "is no file" in refusal({"image": tmp_path / "none.jpg"})
    assert "is no file" in refusal({"image": tmp_path})


def test_tuples() -> None:
    image = Image.fromarray(PIXELS)
    assert list(fields((image, 3))) == ["png", "cls"]
    assert list(fields((PIXELS, np.int32(3)))) == ["npy", "cls"]
    assert fields(("a text", 1)) == {"txt": b"a text", "cls": b"1"}
    named = SampleForm(names=("jpg", "caption", "cls"))
    assert fields((b"j", "c", 2), named) == {"jpg": b"j", "caption.txt": b"c", "cls": b"2"}
    assert refusal((b"j", "c"), named) == "has 2 values, and names has 3"
    assert 'names=("jpg", "cls")' in refusal((1, 2, 3))
    assert fields("alone", SampleForm(names=("text",))) == {"txt": b"alone"}


class Point(NamedTuple):
    x: int
    text: str


def test_named_tuples() -> None:
    assert [*fields(Point(3, "a"))] == ["x.npy", "txt"]
    assert [*fields(Point(3, "a"), SampleForm(names=("a", "b")))] == ["a.npy", "b.txt"]


def test_what_is_absent_and_what_is_chosen() -> None:
    assert fields({"jpg": b"x", "caption": None}) == {"jpg": b"x"}
    form = SampleForm(fields=("jpg",))
    assert fields({"jpg": b"x", "other": object()}, form) == {"jpg": b"x"}
    key, made = FORM.fields_of({"__key__": "a/b", "jpg": b"x"})
    assert (key, made) == (b"a/b", {"jpg": b"x"})


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({"x": object()}, "field 'x' is a builtins.object; store bytes, a text"),
        ({"x": np.array(["a"])}, "field 'x' is an array of <U1, which only pickle could store"),
        ({"x": {"a": object()}}, "field 'x' holds what JSON cannot"),
        ({"x": "\ud800"}, "field 'x' is a text that is not valid Unicode"),
        ({"json": "{"}, "field 'json' is not JSON"),
        ({"label": "cat"}, "labels are whole numbers; number the classes"),
        ({"x": torch.ones(2, dtype=torch.bfloat16)}, "is a tensor that numpy cannot hold"),
        ({"x": Image.new("CMYK", (2, 2))}, "of mode CMYK, which PNG cannot hold"),
        ({3: b"x"}, "field 3 has a name that is no text"),
        ("alone", "is a str; say what it is"),
        ({"a b": b"x"}, "field 'a b' cannot be stored under 'a b'"),
        ({"label": 1, "cls": 2}, "two values are field 'cls'; rename 'cls'"),
        ({"text": "a", "txt": "b"}, "two values are field 'txt'"),
        ({}, "has no value that could be stored"),
        ({"__key__": "", "a": b""}, "field '__key__' must be a text, and no absolute path"),
        ({"__key__": "a/../../b", "a": b""}, "must be a text, and no absolute path or one with"),
        ({"a": np.ma.masked_array([1, 2], [0, 1])}, "field 'a' is a masked array; store value.fi"),
        ({"__key__": "\ud800", "a": b""}, "field '__key__' is not valid Unicode"),
        ((1, 2), "is a tuple of int, int; say what they are"),
        ([{"txt": "a"}], "is a list of dict; say what they are"),
        ({"cls": 10**18}, "field 'cls' is class 1000000000000000000, and a class has at most 18"),
        ({"cls": b"cat"}, "field 'cls' is b'cat', which is no whole number"),
        ({"image": Image.new("RGB", (0, 2))}, "is an image that cannot be read or encoded"),
    ],
)
def test_refusals(sample: Any, said: str) -> None:
    assert said in refusal(sample)


def test_labels_in_range() -> None:
    form = SampleForm(num_classes=3)
    assert fields({"cls": 2}, form) == {"cls": b"2"}
    assert refusal({"cls": 3}, form) == "field 'cls' is class 3, and there are 3"
    assert refusal({"cls": -1}, form) == "field 'cls' is class -1, and there are 3"
    assert fields({"cls": b"2\n"}, form) == {"cls": b"2\n"}
    assert refusal({"cls": b"3"}, form) == "field 'cls' is class 3, and there are 3"


def test_names() -> None:
    with pytest.raises(UsageError, match="names must differ, got a, a"):
        SampleForm(names=("a", "a"))


VALUES = st.one_of(
    st.binary(max_size=3), st.text("ab", max_size=3), st.integers(-5, 5), st.booleans(), st.none()
)
SAMPLES = st.lists(
    st.dictionaries(st.sampled_from(["bin", "cls", "text", "n"]), VALUES), max_size=9
)


@given(SAMPLES)
def test_samples_put_together_quickly_are_what_each_is(samples: list[dict[str, Any]]) -> None:
    """Samples with the names and types of an earlier one are converted without a look at each."""
    builder, good = BatchBuilder(FORM), list[dict[str, bytes]]()
    for number, sample in enumerate(samples):
        try:
            own = fields(sample)
        except SampleError as error:
            with pytest.raises(SampleError, match=re.escape(str(error))):
                builder.add(b"%d" % number, sample)
            continue
        key, size = builder.add(b"%d" % number, sample)
        assert (key, size) == (b"%d" % number, sum(map(len, own.values())))
        good.append(own)
    assert [builder.batch.fields(row) for row in range(len(builder.batch))] == good


@given(SAMPLES)
def test_rows_read_column_by_column_are_what_each_is(samples: list[dict[str, Any]]) -> None:
    numbers = range(len(samples))
    run = Run("train", "train", None, [b"%d" % i for i in numbers], [b"%d" % i for i in numbers])
    corpus = RowsCorpus({"train": NumberedRows(samples)}, FORM)
    quick = corpus.read(run, Path())
    corpus._read_plain = lambda *_: None  # type: ignore[method-assign]
    slow = corpus.read(run, Path())
    assert (quick.keys, quick.rejects, quick.paths) == (slow.keys, slow.rejects, slow.paths)
    assert [quick.fields(i) for i in range(len(quick))] == [
        slow.fields(i) for i in range(len(slow))
    ]
