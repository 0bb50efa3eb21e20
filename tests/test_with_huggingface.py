"""Datasets of Hugging Face themselves, and the files that they write. Needs that library: run it by
``make test-open``."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONTAINERS, picture, tree, write

datasets = pytest.importorskip("datasets")

from PIL import Image  # noqa: E402
from pyarrow import parquet as pq  # noqa: E402

import shardkit  # noqa: E402
from shardkit.errors import CorpusError, UsageError  # noqa: E402
from shardkit.index.manifest import read_info  # noqa: E402
from shardkit.packing.spool import is_hugging_face  # noqa: E402

OPTIONS: dict[str, Any] = {"to": "webdataset", "workers": 0, "progress": False}

FEATURES = datasets.Features(
    {
        "image": datasets.Image(),
        "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
        "text": datasets.Value("string"),
        "score": datasets.Value("float32"),
        "box": datasets.List(datasets.Value("int16"), length=4),
        "grid": datasets.Array2D((2, 3), "uint8"),
        "meta": {"a": datasets.Value("int64"), "b": datasets.List(datasets.Value("string"))},
    }
)


def rows(count: int = 12) -> dict[str, list[Any]]:
    return {
        "image": [{"bytes": picture(i), "path": f"{i}.jpg"} for i in range(count)],
        "label": [i % 3 for i in range(count)],
        "text": [f"text {i} é" for i in range(count)],
        "score": [i / 3 for i in range(count)],
        "box": [[i, -i, 0, 1] for i in range(count)],
        "grid": [np.full((2, 3), i).tolist() for i in range(count)],
        "meta": [{"a": i, "b": [str(i)] * (i % 3)} for i in range(count)],
    }


@pytest.fixture
def dataset() -> Any:
    return datasets.Dataset.from_dict(rows(), features=FEATURES)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


def check(dest: Path, count: int = 12, order: list[int] | None = None) -> None:
    """Every column of every row is there."""
    order = [*range(count)] if order is None else order
    ds = shardkit.open(dest)
    assert ds.classes == ["cat", "dog", "owl"] and len(ds) == len(order)
    batch = ds.read(range(len(ds)))
    assert [bytes(jpg) for jpg in batch["jpg"]] == [picture(i) for i in order]
    assert batch["cls"].tolist() == [i % 3 for i in order]
    assert batch["txt"] == [f"text {i} é" for i in order]
    assert batch["score.npy"].tobytes() == np.array([i / 3 for i in order], "f4").tobytes()
    assert batch["box.npy"].dtype == np.int16 and batch["box.npy"].shape == (len(order), 4)
    assert batch["grid.npy"].shape == (len(order), 2, 3) and batch["grid.npy"].dtype == np.uint8
    assert batch["meta.json"] == [{"a": i, "b": [str(i)] * (i % 3)} for i in order]


@pytest.mark.parametrize("how", ["parquet", "saved", "dict"])
def test_files_that_datasets_writes(tmp_path: Path, dataset: Any, how: str) -> None:
    source = tmp_path / "in"
    if how == "parquet":
        source.mkdir()
        dataset.to_parquet(source / "train.parquet")
    elif how == "saved":
        dataset.save_to_disk(source, num_shards=2)
    else:
        datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(source)
    shardkit.pack(source, tmp_path / "out", **OPTIONS)
    check(tmp_path / "out")
    verified = shardkit.verify(tmp_path / "out", against=source)
    assert verified.ok and verified.num_compared == (24 if how == "dict" else 12)


def test_an_imagefolder(tmp_path: Path) -> None:
    """Whose rows name files, and hold no bytes."""
    for i in range(6):
        write(tmp_path / "pics" / "xy"[i % 2] / f"{i}.jpg", picture(i))
    found = datasets.load_dataset(
        "imagefolder", data_dir=str(tmp_path / "pics"), cache_dir=str(tmp_path / "cache")
    )
    shardkit.pack(found, tmp_path / "out", **OPTIONS)
    shardkit.pack(tmp_path / "pics", tmp_path / "folder", **OPTIONS)
    made, folder = (shardkit.open(tmp_path / name) for name in ("out", "folder"))
    assert made.classes == folder.classes == ["x", "y"] and made.fields == folder.fields

    def pairs(ds: shardkit.Dataset) -> list[tuple[int, bytes]]:
        return sorted((sample["cls"], bytes(sample["jpg"])) for sample in ds)

    assert pairs(made) == pairs(folder)


# --- from Python --------------------------------------------------------------------------


@pytest.mark.parametrize("to", CONTAINERS)
def test_the_same_as_its_parquet(tmp_path: Path, dataset: Any, to: str) -> None:
    (tmp_path / "in").mkdir()
    dataset.to_parquet(tmp_path / "in" / "train.parquet")
    options = {**OPTIONS, "to": to}
    packed = shardkit.pack(dataset, tmp_path / "out", **options)
    assert packed.kind == "parquet" and packed.num_samples == 12
    shardkit.pack(tmp_path / "in", tmp_path / "other", **options)
    check(tmp_path / "out")
    prints = [read_info(tmp_path / name).splits["train"].fingerprint for name in ("out", "other")]
    assert prints[0] == prints[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "other", "out"]
    assert shardkit.verify(tmp_path / "out", against=tmp_path / "in").ok


def streams(dataset: Any) -> dict[str, Any]:
    def generate() -> Iterator[dict[str, Any]]:
        yield from iter(dataset.cast_column("image", datasets.Image(decode=False)))

    return {
        "rows": dataset.to_iterable_dataset(num_shards=3),
        "generator": datasets.IterableDataset.from_generator(generate, features=FEATURES),
        "mapped": dataset.to_iterable_dataset().map(
            lambda row: {"score": row["score"]}, features=FEATURES
        ),
    }


@pytest.mark.parametrize("how", ["rows", "generator", "mapped"])
def test_streams(tmp_path: Path, dataset: Any, how: str) -> None:
    shardkit.pack(streams(dataset)[how], tmp_path / "out", **OPTIONS)
    if how == "mapped":  # what was decoded for the function is encoded again by datasets
        ds = shardkit.open(tmp_path / "out")
        assert len(ds) == 12 and ds.read([2])["cls"].tolist() == [2]
        return
    check(tmp_path / "out")


def test_selections_and_formats(tmp_path: Path, dataset: Any) -> None:
    chosen = dataset.select([5, 3, 8]).with_format("numpy", columns=["label"])
    shardkit.pack(chosen, tmp_path / "out", **OPTIONS)
    check(tmp_path / "out", order=[5, 3, 8])


def test_splits_of_any_name(tmp_path: Path, dataset: Any) -> None:
    both = datasets.DatasetDict({"train_sft": dataset, "test.gen": dataset.select([1])})
    packed = shardkit.pack(both, tmp_path / "out", **OPTIONS)
    assert packed.splits == {"train_sft": 12, "test.gen": 1}
    stream = datasets.IterableDatasetDict({"validation": dataset.to_iterable_dataset()})
    assert shardkit.pack(stream, tmp_path / "b", limit=5, **OPTIONS).splits == {"validation": 5}


def test_a_stream_that_does_not_say_its_columns(tmp_path: Path) -> None:
    def generate() -> Iterator[dict[str, Any]]:
        for i in range(30):
            yield {"text": f"t{i}", "n": i, **({"late": 1} if i > 20 else {})}

    stream = datasets.IterableDataset.from_generator(generate)
    with pytest.raises(CorpusError, match="give the dataset the features that all its rows have"):
        shardkit.pack(stream, tmp_path / "out", **OPTIONS)
    assert not list(tmp_path.iterdir())
    shardkit.pack(stream.take(15), tmp_path / "out", **OPTIONS)
    assert shardkit.open(tmp_path / "out").read([7])["n.npy"].tolist() == [7]


def test_a_stream_whose_function_is_given_pictures(tmp_path: Path, dataset: Any) -> None:
    stream = dataset.to_iterable_dataset()
    for function in (lambda row: {"n": 1}, lambda row: {"image": row["image"].resize((4, 4))}):
        with pytest.raises(
            CorpusError, match=r"^split 'train' .* decodes its pictures .* write \.decode\(False\)"
        ):
            shardkit.pack(stream.map(function), tmp_path / "out", **OPTIONS)
    stream = stream.decode(False).map(lambda row: {"n": len(row["image"]["bytes"])})
    shardkit.pack(stream, tmp_path / "out", **OPTIONS)
    batch = shardkit.open(tmp_path / "out").read(range(12))
    assert [bytes(jpg) for jpg in batch["jpg"]] == [picture(i) for i in range(12)]
    assert batch["n.npy"].tolist() == [len(picture(i)) for i in range(12)]


def test_a_dataset_without_rows_is_refused_in_its_own_words(tmp_path: Path, dataset: Any) -> None:
    def nothing() -> Iterator[dict[str, Any]]:
        yield from ()

    made = datasets.IterableDataset.from_generator
    for source in (
        made(nothing),
        made(nothing, features=FEATURES),
        dataset.to_iterable_dataset().filter(lambda row: False),
        dataset.select([]),
        datasets.DatasetDict({"train": dataset.select([])}),
    ):
        with pytest.raises(
            CorpusError, match=r"^the dataset has no row in split 'train': there is nothing to"
        ):
            shardkit.pack(source, tmp_path / "out", **OPTIONS)
        assert not list(tmp_path.iterdir())
    both = datasets.DatasetDict({"train": dataset, "test": dataset.select([])})
    packed = shardkit.pack(both, tmp_path / "out", **OPTIONS)
    assert packed.splits == {"train": 12}
    assert "split 'test' has no row, and is left out" in packed.notes


def test_a_transform_is_not_applied_and_that_is_said(tmp_path: Path, dataset: Any) -> None:
    seen = dataset.with_transform(lambda rows: {"n": rows["label"]})
    packed = shardkit.pack(seen, tmp_path / "out", **OPTIONS)
    check(tmp_path / "out")
    assert "split 'train': its transform (with_transform) is not applied" in packed.notes[-1]
    assert not any(
        "transform" in note for note in shardkit.pack(dataset, tmp_path / "b", **OPTIONS).notes
    )


def test_pictures_of_pillow_and_numpy(tmp_path: Path) -> None:
    held = {"image": [Image.open(io.BytesIO(picture(i, kind="PNG"))) for i in range(3)]}
    made = datasets.Dataset.from_dict(held, features=datasets.Features({"image": datasets.Image()}))
    shardkit.pack(made, tmp_path / "out", **OPTIONS)
    ds = shardkit.open(tmp_path / "out", decode="pil")
    assert np.array_equal(np.asarray(ds[1]["png"]), np.asarray(held["image"][1]))


def test_fields_tokens_and_what_does_not_go(tmp_path: Path, dataset: Any) -> None:
    shardkit.pack(dataset, tmp_path / "a", fields=["text", "label"], **OPTIONS)
    assert shardkit.open(tmp_path / "a").fields == ["cls", "txt"]
    shardkit.pack(dataset, tmp_path / "b", train_tokenizer=300, workers=0, progress=False)
    assert shardkit.open(tmp_path / "b").fields == ["tokens"]
    with pytest.raises(CorpusError, match=r"^split 'train' has columns 'image' .* no column 'nix'"):
        shardkit.pack(dataset, tmp_path / "c", fields="nix", **OPTIONS)
    for options, what in (
        ({"dest": None}, "dest is missing"),
        ({"corpus": "parquet"}, "corpus is for files"),
        ({"labels": "l.csv"}, "labels is for files"),
    ):
        with pytest.raises(UsageError, match=what):
            shardkit.pack(dataset, **{"dest": tmp_path / "c", **OPTIONS, **options})


def test_again_it_is_complete_and_other_rows_are_refused(tmp_path: Path, dataset: Any) -> None:
    shardkit.pack(dataset, tmp_path / "out", **OPTIONS)
    before = tree(tmp_path / "out")
    assert shardkit.pack(dataset, tmp_path / "out", **OPTIONS).was_complete
    assert tree(tmp_path / "out") == before
    with pytest.raises(UsageError, match="already holds a dataset"):
        shardkit.pack(dataset.select(range(6)), tmp_path / "out", **OPTIONS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_tables_of_other_libraries(tmp_path: Path, dataset: Any) -> None:
    """Their rows are those of the dataset, but for keys."""
    shardkit.pack(dataset, tmp_path / "out", **OPTIONS)
    expected = [*shardkit.open(tmp_path / "out", decode=False)]
    sources = (dataset.to_pandas(), dataset.data.table, {"train": dataset})
    for number, source in enumerate(sources):
        shardkit.pack(source, tmp_path / f"{number}", **OPTIONS)
        made = [*shardkit.open(tmp_path / f"{number}", decode=False)]
        for rows in (made, expected):
            for row in rows:
                row["__key__"] = ""
        assert made == expected
        assert shardkit.verify(tmp_path / f"{number}", against=source).ok


@pytest.mark.parametrize("how", ["one", "splits", "rows", "generator", "fields", "tokens"])
def test_verify_against_the_dataset(tmp_path: Path, dataset: Any, how: str) -> None:
    other = dataset.map(lambda row, i: {"text": "x"} if i == 7 else {}, with_indices=True)
    options: dict[str, Any] = {**OPTIONS}
    sources = [dataset, other]
    if how == "splits":
        sources = [datasets.DatasetDict({"train": dataset, "test": end}) for end in sources]
    elif how in ("rows", "generator"):
        sources = [streams(end)[how] for end in sources]
    elif how == "fields":
        options["fields"] = "text,label"
    elif how == "tokens":
        options = {"train_tokenizer": 300, "workers": 0, "progress": False}
    shardkit.pack(sources[0], tmp_path / "out", **options)
    found = shardkit.verify(tmp_path / "out", against=sources[0])
    assert found.ok and found.is_compared
    assert found.num_compared == (24 if how == "splits" else 12)
    changed = shardkit.verify(tmp_path / "out", against=sources[1])
    assert len(changed.problems) == 1
    assert changed.problems[0].what == "its txt differs from the original"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_verify_against_another_dataset(tmp_path: Path, dataset: Any) -> None:
    shardkit.pack(dataset, tmp_path / "out", **OPTIONS)
    few = shardkit.verify(tmp_path / "out", against=dataset.select(range(11)))
    assert [p.what for p in few.problems] == ["has no original in the given dataset"]
    none = shardkit.verify(tmp_path / "out", against=datasets.DatasetDict({"dev": dataset}))
    assert none.problems[0].where == "the given dataset"
    assert none.problems[0].what.startswith("has nothing in common with the dataset")
    for i in range(3):
        write(tmp_path / "pics" / "xy"[i % 2] / f"{i}.jpg", picture(i))
    shardkit.pack(tmp_path / "pics", tmp_path / "pictures", **OPTIONS)
    with pytest.raises(CorpusError, match=r"was not packed from rows of a dataset in Python"):
        shardkit.verify(tmp_path / "pictures", against=dataset)


def test_only_datasets_are_taken_for_some() -> None:
    assert not any(map(is_hugging_face, ["x", Path("x"), {}, [], np.zeros(3), object()]))


# --- killed -------------------------------------------------------------------------------

SCRIPT = """
import sys, datasets, shardkit
from shardkit.packing import job
number, kill_at = 0, int(sys.argv[2])
real = job.commit_job
def commit(*args):
    global number
    number += 1
    if number == kill_at:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
from shardkit.packing import local
local.commit_job = commit
def generate():
    for i in range(60):
        yield {"text": f"row {i} " * 30, "n": i + int(sys.argv[3])}
features = datasets.Features({"text": datasets.Value("string"), "n": datasets.Value("int64")})
stream = datasets.IterableDataset.from_generator(generate, features=features)
packed = shardkit.pack(stream, sys.argv[1], to="npy", shard_size="2kB", workers=0, progress=False)
print(packed.resumed_shards)
"""


def test_a_killed_pack_of_a_stream_goes_on(tmp_path: Path) -> None:
    script = write(tmp_path / "script.py", textwrap.dedent(SCRIPT))

    def run(dest: str, kill_at: int, add: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, script, tmp_path / dest, str(kill_at), str(add)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ)

    assert run("whole", -1).returncode == 0
    assert run("out", 4).returncode == -signal.SIGKILL
    assert (tmp_path / "out.spool").is_dir()
    other = run("out", -1, add=1)  # a stream of other rows is not mixed with what is there
    assert other.returncode and "input files changed since this pack was started" in other.stderr
    done = run("out", -1)
    assert done.returncode == 0, done.stderr
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")
    assert not (tmp_path / "out.spool").exists()
    assert run("out2", 4).returncode == -signal.SIGKILL
    again = run("out2", -1)
    assert again.returncode == 0 and int(again.stdout) == 3


def test_what_others_have_there_is_left_alone(tmp_path: Path, dataset: Any) -> None:
    mine = write(tmp_path / "out.spool" / "mine", "x")
    with pytest.raises(UsageError, match=r"out\.spool, where rows are to wait .* is there already"):
        shardkit.pack(dataset, tmp_path / "out", **OPTIONS)
    assert mine.read_text() == "x"


def test_splits_of_a_card_are_those_of_datasets(tmp_path: Path) -> None:
    source, splits = tmp_path / "in", ("train_sft", "train_gen", "extra", "test")
    card = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    for split in splits:
        table = datasets.Dataset.from_dict({"text": [split]})
        table.to_parquet(source / "data" / f"{split}-00000-of-00001.parquet")
        card += f"  - split: {split}\n    path: data/{split}-*\n"
    write(source / "README.md", card + "---\n")
    theirs = datasets.load_dataset(str(source), cache_dir=str(tmp_path / "cache"))
    packed = shardkit.pack(source, tmp_path / "out", **OPTIONS)
    assert packed.splits == {split: len(own) for split, own in theirs.items()}
    for split, own in theirs.items():
        ours = shardkit.open(tmp_path / "out", split=split)
        assert [sample["txt"] for sample in ours] == own["text"]


def test_the_recipe_for_classes_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "kind": [1, 0]})
    (tmp_path / "hub").mkdir()
    pq.write_table(table.data.table.replace_schema_metadata(None), tmp_path / "hub/train.parquet")
    info = "  - {name: text, dtype: string}\n  - name: kind\n    dtype:\n      class_label:\n"
    info += "        names: {'0': neg, '1': pos}\n"
    write(tmp_path / "hub/README.md", f"---\ndataset_info:\n  features:\n{info}---\n")
    page = (Path(__file__).parents[1] / "docs" / "recipes" / "tables.md").read_text("utf-8")
    block = page.partition("that only the card")[2].partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    exec(block, {})
    ds = shardkit.open("hub_lmdb")
    assert ds.classes == ["neg", "pos"] and [sample["cls"] for sample in ds] == [1, 0]


def test_texts_become_classes(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["dog", "cat"]})
    packed = shardkit.pack(dataset, tmp_path / "texts", **OPTIONS)
    assert any(note.startswith("label: not cls, though named as labels") for note in packed.notes)
    shardkit.pack(dataset.class_encode_column("label"), tmp_path / "out", **OPTIONS)
    ds = shardkit.open(tmp_path / "out")
    assert ds.classes == ["cat", "dog"] and [sample["cls"] for sample in ds] == [1, 0]
