"""HDF5 files with a group for each sample, which are no columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from array_files import hdf5
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.containers.hdf5_groups import MANY_GROUPS, find_sample_groups
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}

PICTURE, ROWS, ONE = (8, 6, 3), (20, 8), ()


def shapes_of(groups: list[str], **inner: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {f"{group}/{name}": shape for group in groups for name, shape in inner.items()}


SERIES = ["000", "001", "002"]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (shapes_of(SERIES, image=PICTURE, label=ONE), ("", SERIES, "stack")),
        (shapes_of(["s_2", "s_10"], image=PICTURE), ("", ["s_2", "s_10"], "either")),
        (shapes_of(["data/d0", "data/d1"], a=(9, 2), b=(9,)), ("data", ["d0", "d1"], "either")),
        (
            {"0/x": (9, 2), "0/y": (9,), "1/x": (7, 2), "1/y": (7,)},
            ("", ["0", "1"], "join"),
        ),
        ({"0/x": (9, 2), "0/y": ONE, "1/x": (7, 3), "1/y": ONE}, ("", ["0", "1"], "files")),
        (
            shapes_of([f"train/{i}" for i in range(3)], image=PICTURE, label=ONE),
            ("train", ["0", "1", "2"], "stack"),
        ),
        (
            shapes_of([f"id{chr(97 + i)}" for i in range(MANY_GROUPS)], image=PICTURE, y=ONE),
            ("", [f"id{chr(97 + i)}" for i in range(MANY_GROUPS)], "stack"),
        ),
        (
            shapes_of(["images", "labels"], **{"0": PICTURE, "1": PICTURE}),
            ("", ["0", "1"], "either"),
        ),
        ({"0": PICTURE, "1": PICTURE}, ("", ["0", "1"], "either")),
        ({"0": (9, 6, 3), "1": PICTURE}, ("", ["0", "1"], "files")),
        ({**shapes_of(SERIES, x=PICTURE), "mask/train": (3,)}, ("", SERIES, "either")),
        # columns, as they were
        (shapes_of(["train", "test"], images=ROWS, labels=(20,)), None),
        (shapes_of(["train2014", "train2017"], images=ROWS, labels=(20,)), None),
        (shapes_of(["left", "right"], image=ROWS, depth=ROWS), None),
        ({**shapes_of(["cam0", "cam1"], image=ROWS), "label": (20,)}, None),
        ({"images": ROWS, "labels": (20,)}, None),
        ({"x1": ROWS, "x2": ROWS}, None),
        ({"layer1/kernel": (3, 4), "layer2/bias": (4,)}, None),
        ({"0/images": ROWS}, None),
        ({}, None),
    ],
)
def test_which_groups_are_samples(shapes: dict[str, tuple[int, ...]], expected: Any) -> None:
    found = find_sample_groups(shapes)
    assert (found and (found.base, found.names, found.how)) == expected


@given(st.dictionaries(st.from_regex(r"[a-c0-2](/[a-c0-2]){0,3}", fullmatch=True), st.tuples()))
def test_found_groups_are_there(shapes: dict[str, tuple[int, ...]]) -> None:
    """Whatever the paths: each field of each group is an array of the file."""
    found = find_sample_groups(shapes)
    if found is not None:
        assert len(found.names) > 1 and found.fields + found.others
        assert {found.path(name, field) for name in found.names for field in found.fields} <= {
            *shapes
        }


def run_lines(source: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the lines that refusing ``source`` gives, beside it; what the message says."""
    with pytest.raises(CorpusError) as caught:
        open_corpus(source)
    monkeypatch.chdir(source.parent)
    (lines,) = caught.value.__notes__
    assert "\n" not in str(caught.value) and lines.count("\n") < 22
    exec(lines, {})
    return str(caught.value)


RNG = np.random.default_rng(1)
IMAGES = RNG.integers(0, 255, (12, 8, 6, 3), np.uint8)


def test_a_group_a_sample_is_refused_with_the_lines_that_stack_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: dict[str, Any] = {}
    for i in range(12):
        arrays |= {
            f"s{i}/image": IMAGES[i],
            f"s{i}/label": i % 3,
            f"s{i}/meta/text": f"num\u00e9ro {i}",
        }
    source = hdf5(tmp_path / "x.h5", **arrays)
    said = run_lines(source, monkeypatch)
    assert "12 groups are called in a series or built alike (s0/image, s1/image, " in said
    assert "with the name of the group that each row is of as 'group' (or choose" in said
    shardkit.pack("rows-x.h5", "out", to="npy", **OPTIONS)
    ds = shardkit.open("out")
    batch = ds.read(range(12))
    assert np.array_equal(batch["image.npy"], IMAGES) and batch["cls"].tolist() == [0, 1, 2] * 4
    assert ds[10]["meta.text.txt"] == "num\u00e9ro 10" and ds[10]["group.txt"] == "s10"
    chosen = shardkit.pack("x.h5", "chosen", to="npy", fields=["s3/image"], **OPTIONS)
    assert chosen.num_samples == 8


def test_groups_of_rows_are_refused_with_the_lines_that_join_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: dict[str, Any] = {}
    for i, (start, stop) in enumerate([(0, 5), (5, 12)]):
        arrays |= {f"data/demo_{i}/obs/image": IMAGES[start:stop]}
        arrays |= {f"data/demo_{i}/actions": np.arange(start, stop, dtype=np.float32)}
    said = run_lines(hdf5(tmp_path / "x.hdf5", **arrays), monkeypatch)
    assert "each holds rows" in said and "row is of as 'group'" in said
    shardkit.pack("rows-x.hdf5", "out", to="npy", **OPTIONS)
    batch = shardkit.open("out").read(range(12))
    assert np.array_equal(batch["obs.image.npy"], IMAGES)
    assert batch["actions.npy"].tolist() == [*range(12)]
    assert batch["group.txt"] == ["demo_0"] * 5 + ["demo_1"] * 7


@pytest.mark.parametrize("function", ["stack", "concatenate"])
def test_rows_of_groups_of_one_length_keep_their_group(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether each is a sample or holds rows: the lines do the one, and say how to do the other."""
    parts = {f"demo_{i}/image": IMAGES[4 * i : 4 * i + 4] for i in range(3)}
    groups = {f"demo_{i}/group": np.arange(4) + i for i in range(3)}
    source = hdf5(tmp_path / "x.h5", **parts, **groups)
    with pytest.raises(CorpusError, match="group that each row is of as 'group_name'") as caught:
        open_corpus(source)
    (lines,) = caught.value.__notes__
    assert "np.stack(" in lines and "# np.concatenate if each holds rows" in lines
    monkeypatch.chdir(tmp_path)
    exec(lines.replace("np.stack(", f"np.{function}("), {})
    shardkit.pack("rows-x.h5", "out", to="npy", **OPTIONS)
    ds = shardkit.open("out")
    many = 1 if function == "stack" else 4
    assert [ds[i]["group_name.txt"] for i in range(len(ds))] == [
        f"demo_{i}" for i in range(3) for _ in range(many)
    ]
    assert ds[len(ds) - 1]["group.npy"].reshape(-1)[-1] == 5


def test_groups_of_all_shapes_are_refused_with_the_lines_that_make_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: dict[str, Any] = {}
    for i in range(5):
        arrays |= {f"{i}/image": IMAGES[i, : i + 1], f"{i}/label": i}
    arrays["3/caption"] = "three"
    said = run_lines(hdf5(tmp_path / "x.h5", **arrays), monkeypatch)
    assert "each is a sample, of another shape than others" in said
    packed = shardkit.pack("samples-x", "out", to="npy", corpus="paired", **OPTIONS)
    ds = shardkit.open("out")
    assert packed.num_samples == len(ds) == 5
    assert all(np.array_equal(ds[i]["image.npy"], IMAGES[i, : i + 1]) for i in range(5))
    assert [int(ds[i]["label.npy"]) for i in range(5)] == [*range(5)]


@pytest.mark.parametrize("is_even", [True, False])
def test_splits_that_hold_groups(
    is_even: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``train/000/image`` and ``test/000/image``: the lines lose no split."""
    arrays: dict[str, Any] = {}
    for i in range(12):
        base = f"{'train' if i < 8 else 'test'}/{i:03}"
        arrays |= {f"{base}/image": IMAGES[i, (0 if is_even else i % 2) :], f"{base}/y": i}
    said = run_lines(hdf5(tmp_path / "x.h5", **arrays), monkeypatch)
    assert said.startswith(f"{tmp_path}/x.h5: 12 groups are called in a series")
    made = "rows-x.h5" if is_even else "samples-x"
    corpus = None if is_even else "paired"
    shardkit.pack(made, "out", to="npy", corpus=corpus, **OPTIONS)
    train, test = (shardkit.open("out", split) for split in ("train", "test"))
    assert len(train) == 8 and len(test) == 4
    assert not is_even or test[1]["group.txt"] == "009"
    assert np.array_equal(test[1]["image.npy"], IMAGES[9, (0 if is_even else 1) :])


@pytest.mark.parametrize("base", ["", "data/"])
def test_an_array_a_sample(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``images/0``, ``labels/0``: the groups the other way about."""
    arrays: dict[str, Any] = {}
    for i in range(12):
        arrays |= {f"{base}images/{i}": IMAGES[i], f"{base}labels/{i}": i}
    said = run_lines(hdf5(tmp_path / "x.h5", **arrays), monkeypatch)
    assert f"12 arrays are called in a series or built alike ({base}images/0," in said
    shardkit.pack("rows-x.h5", "out", to="npy", **OPTIONS)
    batch = shardkit.open("out").read(range(12))
    assert np.array_equal(batch["images.npy"], IMAGES) and batch["cls"].tolist() == [*range(12)]


def test_arrays_of_numbers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_lines(hdf5(tmp_path / "x.h5", **{str(i): IMAGES[i] for i in range(12)}), monkeypatch)
    with h5py.File("rows-x.h5") as made:
        assert np.array_equal(made["data"], IMAGES)
    (tmp_path / "x.h5").unlink()
    ragged = {f"images/{i}": IMAGES[i, i % 2 :] for i in range(12)}
    run_lines(hdf5(tmp_path / "x.h5", **ragged), monkeypatch)
    made = {path.name for path in (tmp_path / "samples-x").iterdir()}
    assert made == {f"{i}.images.npy" for i in range(12)}


def test_the_command_line_prints_the_lines_below_the_error(tmp_path: Path, run: Run) -> None:
    hdf5(tmp_path / "x.h5", **{f"{i}/image": IMAGES[i] for i in range(3)})
    code, _, err = run("pack", "x.h5", "out", "--to", "npy")
    assert code == 2 and err.startswith("shardkit: error: x.h5: 3 groups are called")
    assert "\n\nimport h5py, numpy as np, os, re\nwith h5py.File('x.h5') as old, " in err
