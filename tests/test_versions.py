"""Datasets that change: append, edit, prune, merge of datasets, and what readers see meanwhile."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import CONTAINERS, EACH_FORMAT, make_images, picture, write
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import shardkit
from shardkit import Loader
from shardkit.errors import CorpusError, DataError, DestinationError, PartError, UsageError
from shardkit.images import restarts
from shardkit.index.manifest import versions_at
from shardkit.operations.export_table import names_by_field

QUIET: dict[str, Any] = {"workers": 0, "shard_size": 2000, "progress": False}
LARGER = {**QUIET, "shard_size": 6000}


def make_more(root: Path, prefix: str = "new_") -> Path:
    """Of one class more, and with other keys."""
    for c in range(1, 4):
        for i in range(4):
            write(root / f"class{c}" / f"{prefix}{i}.jpg", picture(1000 + 50 * c + i))
    return root


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("inputs")
    return make_images(root / "first", 6, 3), make_more(root / "more")


@pytest.fixture(scope="module")
def packed(inputs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("packed")
    for to in CONTAINERS:
        shardkit.pack(inputs[0], root / to, to=to, **QUIET)
    made = shardkit.pack(inputs[0], root / "npy, larger shards", to="npy", **LARGER)
    assert made.num_shards > 1
    return {path.name: path for path in root.iterdir()}


@pytest.fixture(params=CONTAINERS)
def dataset(request: pytest.FixtureRequest, packed: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(packed[request.param], tmp_path / "dataset")


@pytest.fixture
def plain(packed: dict[str, Path], tmp_path: Path) -> Path:
    """One of a format whose files are few, where that cannot matter."""
    return shutil.copytree(packed["webdataset"], tmp_path / "dataset")


def samples(path: Path, **options: Any) -> list[dict[str, Any]]:
    return list(shardkit.open(path, verify=True, **options))


def is_whole(path: Path, **options: Any) -> bool:
    found = shardkit.verify(path, progress=False, **options)
    assert not found.notes, found.notes
    return found.ok


def named(path: Path) -> dict[str, str]:
    """Key -> name of its class, over all splits."""
    info = shardkit.info(path)
    assert info.classes is not None
    return {
        sample["__key__"]: info.classes[sample["cls"]]
        for split in info.splits
        for sample in samples(path, split=split)
    }


# --- append -------------------------------------------------------------------------------


def test_what_is_appended_follows_and_the_rest_stays(
    dataset: Path, inputs: tuple[Path, Path]
) -> None:
    before = {path.name: path.read_bytes() for path in dataset.iterdir()}
    old = samples(dataset)
    made = shardkit.append(dataset, inputs[1], **QUIET)
    assert (made.version, made.num_added, made.num_samples) == (2, 12, 30)
    new = samples(dataset)
    assert new[: len(old)] == old
    assert shardkit.open(dataset).classes == ["class0", "class1", "class2", "class3"]
    assert all(name == key.split("/")[0] for key, name in named(dataset).items())
    assert is_whole(dataset) and is_whole(dataset, version=1)
    after = {path.name: path.read_bytes() for path in dataset.iterdir()}
    kept = {name for name in before if name not in ("shardkit.json", ".huggingface.yaml")}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert after["shardkit~1.json"] == before["shardkit.json"]
    assert samples(dataset, version=1) == old


def test_appended_again_nothing_is_done(plain: Path, inputs: tuple[Path, Path]) -> None:
    shardkit.append(plain, inputs[1], **QUIET)
    tree = sorted(plain.iterdir())
    again = shardkit.append(plain, inputs[1], **QUIET)
    assert again.was_complete and again.version == 2
    assert sorted(plain.iterdir()) == tree


def test_a_key_that_is_there_is_refused(
    plain: Path, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    write(tmp_path / "again" / "class1" / "img.000.jpg", picture(9999))
    before = {path.name: path.read_bytes() for path in plain.iterdir()}
    with pytest.raises(DataError, match=r"two samples have the key 'class1/img\.000'"):
        shardkit.append(plain, tmp_path / "again", **QUIET)
    assert {p.name: p.read_bytes() for p in plain.iterdir() if p.is_file()} == before
    assert is_whole(plain)
    shardkit.append(plain, inputs[1], **QUIET)
    assert is_whole(plain) and len(samples(plain)) == 30


def test_a_dataset_is_appended_by_links(
    dataset: Path, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its class numbers become others, which only the row index has."""
    to = shardkit.open(dataset).info.container
    shardkit.pack(inputs[1], tmp_path / "apart", to=to, **QUIET)
    made = shardkit.append(dataset, tmp_path / "apart")
    assert any("shardkit convert" in note for note in made.notes)
    assert all(name == key.split("/")[0] for key, name in named(dataset).items())
    assert is_whole(dataset) and is_whole(tmp_path / "apart")
    shards = [p for p in dataset.iterdir() if p.stat().st_nlink > 1]
    assert len(shards) >= len(shardkit.open(tmp_path / "apart").info.splits["train"].shards)


def test_pictures_are_written_as_the_dataset_has_them(tmp_path: Path) -> None:
    make_images(tmp_path / "first", 3, 2)
    make_more(tmp_path / "more")
    both = shutil.copytree(tmp_path / "first", tmp_path / "both")
    shutil.copytree(tmp_path / "more", both, dirs_exist_ok=True)
    how: dict[str, Any] = {"to": "npy", "crop": 16, "image_format": "raw", **QUIET}
    shardkit.pack(tmp_path / "first", tmp_path / "dataset", **how)
    shardkit.pack(both, tmp_path / "whole", **how)
    shardkit.append(tmp_path / "dataset", tmp_path / "more", **QUIET)
    expected = {sample["__key__"]: sample for sample in samples(tmp_path / "whole")}
    for sample in samples(tmp_path / "dataset"):
        assert (sample["image.npy"] == expected[sample["__key__"]]["image.npy"]).all()


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_text_is_tokenized_by_the_datasets_own_tokenizer(to: str, tmp_path: Path) -> None:
    texts = [f"the quick brown fox {i} jumps over dog number {i * i}" for i in range(60)]
    for i, text in enumerate(texts):
        write(tmp_path / ("first" if i < 40 else "more") / f"{i:03d}.txt", text)
    dataset = tmp_path / "dataset"
    shardkit.pack(tmp_path / "first", dataset, to=to, train_tokenizer=300, **QUIET)
    spec = shardkit.open(dataset).info.provenance.tokens
    shardkit.append(dataset, tmp_path / "more", **QUIET)
    assert shardkit.open(dataset).info.provenance.tokens == spec
    shardkit.unpack(dataset, tmp_path / "out", progress=False)
    assert [path.read_text() for path in sorted((tmp_path / "out").rglob("*.txt"))] == texts
    drop = [f"{i:03d}" for i in range(0, 60, 7)]
    shardkit.edit(dataset, drop_keys=drop, progress=False)
    assert is_whole(dataset)
    shardkit.convert(dataset, tmp_path / "compact", to=to, progress=False, workers=0)
    for boundaries in ("ignore", "mask", "fit"):
        options: dict[str, Any] = {"seq_len": 32, "boundaries": boundaries}
        view = shardkit.TokenDataset(dataset, **options)
        compact = shardkit.TokenDataset(tmp_path / "compact", **options)
        assert len(view) == len(compact)
        for row in range(len(view)):
            ours, theirs = view[row], compact[row]
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert len(shardkit.TokenDataset(dataset, seq_len=32, version=1)) > 0


def test_classes_that_are_missing_are_refused(plain: Path, tmp_path: Path) -> None:
    write(tmp_path / "flat" / "a.jpg", picture(1))
    with pytest.raises(UsageError, match=r"the dataset has classes .* and .*flat has none"):
        shardkit.append(plain, tmp_path / "flat", **QUIET)
    assert shardkit.open(plain).version == 1 and is_whole(plain)


def test_a_new_field_leaves_other_splits_whole(tmp_path: Path) -> None:
    """Rows of the index have columns of all fields, in splits that nothing is added to, too."""
    for split in ("train", "test"):
        make_images(tmp_path / "in" / split, 2, 2)
    for name in ("class0/x.txt", "class1/x.txt"):
        write(tmp_path / "more" / name, name)
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **QUIET)
    before = samples(tmp_path / "out", split="test")
    shardkit.append(tmp_path / "out", tmp_path / "more", **QUIET)
    assert shardkit.verify(tmp_path / "out", progress=False).ok
    assert [sample["__key__"] for sample in samples(tmp_path / "out", split="test")] == [
        sample["__key__"] for sample in before
    ]
    assert len(samples(tmp_path / "out", split="test", version=1)) == len(before)


def test_other_fields_are_told(plain: Path, tmp_path: Path) -> None:
    for name in ("class1", "class2"):
        write(tmp_path / "texts" / name / f"{name}.txt", "text")
    made = shardkit.append(plain, tmp_path / "texts", **QUIET)
    assert {"only what is new has txt", "what is new has no jpg"} <= {*made.notes}
    assert is_whole(plain)
    assert samples(plain)[-1] == {"__key__": "class2/class2", "cls": 2, "txt": "text"}


def test_new_splits_and_a_share_for_val(plain: Path, tmp_path: Path) -> None:
    make_images(tmp_path / "more" / "test", 2, 3)
    make_more(tmp_path / "more" / "train")
    shardkit.append(plain, tmp_path / "more", **QUIET, val_fraction=0.25)
    splits = {name: split.num_samples for name, split in shardkit.info(plain).splits.items()}
    assert splits == {"train": 27, "val": 3, "test": 6}
    assert is_whole(plain)


# --- edit ---------------------------------------------------------------------------------


def test_left_out_by_key_class_function_and_copy(dataset: Path, tmp_path: Path) -> None:
    everything = samples(dataset)
    keys = [sample["__key__"] for sample in everything]
    (tmp_path / "keys.txt").write_text("\n".join(keys[2:15:3]) + "\n")
    made = shardkit.edit(dataset, drop_keys=tmp_path / "keys.txt", progress=False)
    assert made.num_removed == 5
    assert samples(dataset) == [s for s in everything if s["__key__"] not in keys[2:15:3]]
    assert is_whole(dataset)
    shardkit.edit(dataset, drop_classes=["class1"], progress=False)
    left = [s for s in everything if s["__key__"] not in keys[2:15:3] and s["cls"] != 1]
    assert samples(dataset) == left
    assert shardkit.open(dataset).classes == ["class0", "class1", "class2"]
    shardkit.edit(dataset, filter=lambda sample: len(sample["jpg"]) % 2 == 0, progress=False)
    assert samples(dataset) == [s for s in left if len(s["jpg"]) % 2 == 0]
    shardkit.edit(dataset, restore=1)
    assert samples(dataset) == everything
    assert is_whole(dataset) and all(is_whole(dataset, version=n) for n in range(1, 6))
    assert shardkit.open(dataset).fingerprint == shardkit.open(dataset, version=1).fingerprint


def test_new_labels(dataset: Path, tmp_path: Path) -> None:
    everything = samples(dataset)
    keys = [sample["__key__"] for sample in everything]
    (tmp_path / "labels.csv").write_text(f"key,class\n{keys[0]},zebra\n{keys[9]},class2\n")
    shardkit.edit(dataset, labels=tmp_path / "labels.csv", progress=False)
    assert shardkit.open(dataset).classes == ["class0", "class1", "class2", "zebra"]
    expected = [{**s, "cls": {0: 3, 9: 2}.get(row, s["cls"])} for row, s in enumerate(everything)]
    assert samples(dataset) == expected
    raw = shardkit.open(dataset, decode=False, verify=True)
    assert [bytes(sample["cls"]) for sample in raw] == [b"%d" % s["cls"] for s in expected]
    assert is_whole(dataset)
    to = raw.info.container
    made = shardkit.convert(dataset, tmp_path / "compact", to=to, progress=False, workers=0)
    assert not any("shardkit stage" in note for note in made.notes)  # that would copy old labels
    assert samples(tmp_path / "compact") == expected
    assert shardkit.diff(dataset, tmp_path / "compact").is_same
    assert shardkit.open(tmp_path / "compact").fingerprint == shardkit.open(dataset).fingerprint
    shardkit.unpack(dataset, tmp_path / "out", progress=False)


def test_labels_for_what_had_none(tmp_path: Path) -> None:
    for i in range(6):
        write(tmp_path / "flat" / f"{i}.jpg", picture(i))
    for to in CONTAINERS:
        dataset = tmp_path / to
        shardkit.pack(tmp_path / "flat", dataset, to=to, **QUIET)
        shardkit.edit(dataset, labels={"0": "cat", "3": "dog"}, progress=False)
        found = shardkit.open(dataset, verify=True)
        assert found.classes == ["cat", "dog"]
        assert [sample.get("cls") for sample in found] == [0, None, None, 1, None, None]
        assert found.column("cls") == [0, None, None, 1, None, None]
        assert is_whole(dataset)


def test_split_anew_as_pack_would_have(
    dataset: Path, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    to = shardkit.open(dataset).info.container
    shardkit.pack(inputs[0], tmp_path / "cut", to=to, val_fraction=0.3, seed=5, **QUIET)
    for _ in range(2):  # the second time from what the first made
        shardkit.edit(dataset, val_fraction=0.3, seed=5, progress=False)
        for split in ("train", "val"):
            ours, theirs = (
                sorted(s["__key__"] for s in samples(path, split=split))
                for path in (dataset, tmp_path / "cut")
            )
            assert ours == theirs
        assert is_whole(dataset)


def test_splits_cut_anew_keep_their_order(tmp_path: Path) -> None:
    """And a key that two of them share may stay in both."""
    with shardkit.Writer(tmp_path / "out", to="npy", workers=0) as writer:
        for split, num in [("train", 1), ("test", 2), ("val", 1)]:
            for i in range(num):
                writer.write({"txt": f"{split} {i}"}, split=split)
    shardkit.edit(tmp_path / "out", val_fraction=0.5, progress=False)
    sizes = [len(shardkit.open(tmp_path / "out", split=name)) for name in ("train", "val")]
    assert sizes == [1, 1]
    shardkit.edit(tmp_path / "out", drop_keys=["000000000001"], progress=False)
    assert [*shardkit.info(tmp_path / "out").splits] == ["train", "test", "val"]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "say what is to change"),
        ({"drop_keys": ["none/such"]}, "1 of 1 keys are of no sample here"),
        ({"drop_classes": ["zebra"]}, "there is no class 'zebra'"),
        ({"keep_keys": []}, "no sample would be left"),
        ({"val_fraction": 1.5}, "val_fraction is a share"),
        ({"restore": 7}, "has no version 7, only 1"),
        ({"restore": 1, "drop_duplicates": True}, "restore goes with nothing else"),
        ({"labels": {"none": "cat"}}, "1 of 1 keys are of no sample here"),
        ({"filter": "no_such_module:name"}, "expected file.py:function"),
        ({"drop_keys": "no-such-file"}, "cannot be read"),
        ({"drop_keys": 5}, "keys are str"),
        ({"keep_classes": 5}, "keep_classes must be a list"),
        ({"val_fraction": "0.1"}, "between 0 and 1, got '0.1'"),
        ({"val_fraction": 0.1, "seed": "a"}, "seed must be a whole number"),
        ({"restore": True}, "restore must be a whole number"),
        ({"filter": 5}, "filter is a function"),
        ({"labels": {"a": None}}, "labels map keys to classes, got 'a': None"),
        ({"labels": {"a": " "}}, "gives 'a' a class without a name"),
        ({"labels": {}}, "holds no labels"),
    ],
)
def test_edits_that_make_no_sense(plain: Path, how: dict[str, Any], message: str) -> None:
    before = sorted(path.name for path in plain.iterdir())
    with pytest.raises(UsageError, match=message):
        shardkit.edit(plain, progress=False, **how)
    assert sorted(path.name for path in plain.iterdir()) == before


def test_a_filter_that_raises_names_the_sample(plain: Path) -> None:
    with pytest.raises(DataError, match=r"class0/img\.000.*filter raised KeyError: 'nothing'"):
        shardkit.edit(plain, filter=lambda sample: sample["nothing"], progress=False)
    with pytest.raises(DataError, match="expected True or False"):
        shardkit.edit(plain, filter=lambda sample: None, progress=False)


# --- versions -----------------------------------------------------------------------------


def test_what_is_open_keeps_its_version(dataset: Path, inputs: tuple[Path, Path]) -> None:
    opened = shardkit.open(dataset)
    loader = Loader(opened, 4, workers=0, seed=1, with_keys=True)
    begun = iter(loader)
    first = next(begun)
    untouched = shardkit.open(dataset)  # opened, and nothing read yet
    shardkit.append(dataset, inputs[1], **QUIET)
    shardkit.edit(dataset, drop_classes=["class0"], progress=False)
    rest = [first, *begun]
    assert sum(len(batch["__key__"]) for batch in rest) == 18 // 4 * 4
    old = shardkit.open(dataset, version=1)
    again = list(Loader(old, 4, workers=0, seed=1, with_keys=True))
    assert [batch["__key__"] for batch in again] == [batch["__key__"] for batch in rest]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(len, (untouched,)) == 18
        assert pool.apply(list, (untouched,)) == list(old)


def test_a_state_of_another_version_is_refused(plain: Path, inputs: tuple[Path, Path]) -> None:
    loader = Loader(shardkit.open(plain), 4, workers=0, with_keys=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = [batch["__key__"] for batch in batches]
    shardkit.append(plain, inputs[1], **QUIET)
    with pytest.raises(
        UsageError, match=r"of version 1 of this dataset.*open\(\.\.\., version=1\)"
    ):
        Loader(shardkit.open(plain), 4, workers=0, with_keys=True).load_state_dict(state)
    resumed = Loader(shardkit.open(plain, version=1), 4, workers=0, with_keys=True)
    resumed.load_state_dict(state)
    assert [batch["__key__"] for batch in resumed] == rest


def test_the_history_says_what_was_done(plain: Path, inputs: tuple[Path, Path]) -> None:
    shardkit.append(plain, inputs[1], **QUIET)
    shardkit.edit(plain, drop_classes=["class1"], progress=False)
    history = shardkit.info(plain).history
    assert [line.number for line in history] == [1, 2, 3]
    assert [line.what for line in history] == ["packed", "append more", "edit: drop class class1"]
    assert [line.num_rows["train"] for line in history] == [18, 30, 20]
    for line in history:
        fingerprint = shardkit.open(plain, version=line.number).fingerprint
        assert line.fingerprints["train"] == fingerprint
    found = shardkit.diff(plain, from_version=1, to_version=3)
    assert (found.splits["train"].num_added, found.splits["train"].num_removed) == (8, 6)


def test_only_what_no_kept_version_needs_is_pruned(
    dataset: Path, inputs: tuple[Path, Path]
) -> None:
    shardkit.append(dataset, inputs[1], **QUIET)
    shardkit.edit(dataset, drop_classes=["class0"], progress=False)
    last = samples(dataset)
    made = shardkit.prune(dataset, keep=2)
    assert made.num_bytes > 0
    assert is_whole(dataset) and is_whole(dataset, version=2)
    with pytest.raises(UsageError, match="has no version 1, only 2, 3"):
        shardkit.open(dataset, version=1)
    before = len(list(dataset.iterdir()))
    shardkit.prune(dataset)
    assert len(list(dataset.iterdir())) < before
    assert samples(dataset) == last and is_whole(dataset)
    listed = set(shardkit.open(dataset).info.file_bytes) | {"shardkit.json"}
    assert {path.name for path in dataset.iterdir()} == listed  # no shard of class0 alone is left
    assert shardkit.prune(dataset).was_complete


def test_two_changes_at_once_are_refused(plain: Path, inputs: tuple[Path, Path]) -> None:
    context = multiprocessing.get_context("fork")
    holds, may_end = context.Event(), context.Event()

    def hold(sample: dict[str, Any]) -> bool:
        holds.set()
        may_end.wait(60)
        return sample["cls"] != 0

    other = context.Process(
        target=shardkit.edit, args=(plain,), kwargs={"filter": hold, "progress": False}
    )
    other.start()
    assert holds.wait(60)
    with pytest.raises(DestinationError, match="is being written by another process"):
        shardkit.append(plain, inputs[1], **QUIET)
    assert len(samples(plain)) == 18
    may_end.set()
    other.join()
    assert len(samples(plain)) == 12
    assert shardkit.append(plain, inputs[1], **QUIET).version == 3


def test_behind_a_url_splits_share_no_shards(plain: Path) -> None:
    pytest.importorskip("obstore")
    shardkit.edit(plain, val_fraction=0.3, progress=False)
    with pytest.raises(UsageError, match=r"has splits that share shards, as train-.*\.tar"):
        shardkit.open(plain.as_uri(), "train", cache_dir=plain.parent / "cache")


def test_dali_reads_tars_and_they_hold_more(plain: Path) -> None:
    shardkit.edit(plain, drop_keys=["class1/img.001"], progress=False)
    with pytest.raises(UsageError, match=r"hold samples or labels that this version has not"):
        shardkit.dali.write_index(plain)


def test_other_tools_are_not_sent_to_what_is_left_out(plain: Path) -> None:
    tools = shardkit.info(plain).recipes
    assert {"webdataset", "DALI"} <= tools.keys()
    for edit in ({"drop_keys": ["class1/img.001"]}, {"drop_classes": ["class2"]}):
        shardkit.edit(plain, **edit, progress=False)
        found = shardkit.info(plain).recipes
        assert list(found) == ["shardkit", "other tools"]
        assert "shardkit convert" in found["other tools"]
    shardkit.edit(plain, restore=1)
    assert shardkit.info(plain).recipes == tools


def test_copied_it_is_the_version_that_was_copied(
    dataset: Path, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    shardkit.append(dataset, inputs[1], **QUIET)
    shardkit.edit(dataset, drop_classes=["class1"], progress=False)
    shardkit.stage(dataset, tmp_path / "copy", progress=False)
    assert samples(tmp_path / "copy") == samples(dataset)
    assert is_whole(tmp_path / "copy")
    assert shardkit.info(tmp_path / "copy").versions == [3]
    with pytest.raises(UsageError, match="has no version 2, only 3"):
        shardkit.open(tmp_path / "copy", version=2)


def test_pack_refuses_it_and_overwrite_replaces_all_versions(
    plain: Path, inputs: tuple[Path, Path]
) -> None:
    shardkit.append(plain, inputs[1], **QUIET)
    shardkit.edit(plain, val_fraction=0.3, progress=False)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.pack(inputs[0], plain, to="webdataset", **QUIET)
    shardkit.pack(inputs[0], plain, to="webdataset", overwrite=True, **QUIET)
    assert not [path.name for path in plain.iterdir() if "~" in path.name]
    assert is_whole(plain, against=inputs[0])


def test_another_release_is_told_to_upgrade(plain: Path, inputs: tuple[Path, Path]) -> None:
    """It would not know what to make of it."""
    shardkit.append(plain, inputs[1], **QUIET)
    assert json.loads((plain / "shardkit.json").read_text())["version"] == 3
    assert json.loads((plain / "shardkit~1.json").read_text())["version"] == 2


# --- merge --------------------------------------------------------------------------------


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_datasets_become_one(to: str, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    make_more(tmp_path / "last", "last_")
    shutil.rmtree(tmp_path / "last" / "class1")
    for name, source in (("a", inputs[1]), ("b", inputs[0]), ("c", tmp_path / "last")):
        shardkit.pack(source, tmp_path / name, to=to, **QUIET)
    shardkit.edit(tmp_path / "b", drop_classes=["class1"], progress=False)
    parts = [tmp_path / name for name in "abc"]
    trees = [{p.name: p.read_bytes() for p in part.iterdir()} for part in parts]
    made = shardkit.merge(parts, tmp_path / "all")
    assert made.num_samples == 12 + 12 + 8
    found = shardkit.open(tmp_path / "all", verify=True)
    assert found.classes == ["class1", "class2", "class3", "class0"]
    together = shardkit.concat([shardkit.open(part) for part in parts])
    assert list(found) == [together[row] for row in range(len(together))]
    assert is_whole(tmp_path / "all")
    assert [{p.name: p.read_bytes() for p in part.iterdir()} for part in parts] == trees
    for part in parts:
        shutil.rmtree(part)
    assert is_whole(tmp_path / "all")


def test_what_was_merged_is_compared_part_by_part(
    packed: dict[str, Path], inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    shardkit.pack(inputs[1], tmp_path / "more", to="npy", **QUIET)
    shardkit.merge([packed["npy"], tmp_path / "more"], tmp_path / "all")
    with pytest.raises(CorpusError, match="was merged of datasets that were packed by themselves"):
        shardkit.verify(tmp_path / "all", against=inputs[0], progress=False)


def test_lines_are_appended_as_they_were_packed(tmp_path: Path) -> None:
    for name, first in (("first", 0), ("more", 5)):
        lines = (json.dumps({"id": i, "text": f"text {i}"}) for i in range(first, first + 5))
        write(tmp_path / f"{name}.jsonl", "".join(f"{line}\n" for line in lines))
    options: dict[str, Any] = {"to": "npy", "text_field": "text", **QUIET}
    shardkit.pack(tmp_path / "first.jsonl", tmp_path / "ds", **options)
    made = shardkit.append(tmp_path / "ds", tmp_path / "more.jsonl", **QUIET)
    assert not any("only what is new" in note for note in made.notes)
    assert [sample["txt"] for sample in samples(tmp_path / "ds")] == [
        f"text {i}" for i in range(10)
    ]


def test_what_cannot_be_merged(packed: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shardkit convert --to webdataset"):
        shardkit.merge([packed["webdataset"], packed["npy"]], tmp_path / "all")
    with pytest.raises(DataError, match="two samples have the key"):
        shardkit.merge([packed["npy"], packed["npy"]], tmp_path / "all")
    (tmp_path / "none").mkdir()
    with pytest.raises(PartError, match=r"is a dataset, and .* is none"):
        shardkit.merge([packed["npy"], tmp_path / "none"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


# --- any sequence -------------------------------------------------------------------------


@pytest.mark.thorough
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_any_sequence_of_changes_is_what_a_list_says(
    packed: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[int],
    chance: random.Random,
) -> None:
    """A model: a list of (key, class) for each version."""
    root = tmp_path_factory.mktemp("any")
    dataset = shutil.copytree(packed["npy, larger shards"], root / "dataset")
    model = [(sample["__key__"], f"class{sample['cls']}") for sample in samples(dataset)]
    versions = {1: list(model)}
    for number, step in enumerate(steps):
        keys = [key for key, _ in model]
        chosen = chance.sample(keys, min(len(keys) - 1, 4))
        if step == 0 and chosen:
            shardkit.edit(dataset, drop_keys=chosen, progress=False)
            model = [pair for pair in model if pair[0] not in chosen]
        elif step == 1 and chosen:
            shardkit.edit(dataset, keep_keys=chosen, progress=False)
            model = [pair for pair in model if pair[0] in chosen]
        elif step == 2 and chosen:
            shardkit.edit(dataset, labels=dict.fromkeys(chosen, f"new{number}"), progress=False)
            model = [(key, f"new{number}" if key in chosen else name) for key, name in model]
        elif step == 3:
            make_more(root / f"more{number}", f"{number}_")
            made = shardkit.append(dataset, root / f"more{number}", **LARGER)
            model += [
                (f"class{c}/{number}_{i}", f"class{c}") for c in range(1, 4) for i in range(4)
            ]
            assert made.num_added == 12
        elif step == 4:
            back = chance.choice(sorted(versions))
            shardkit.edit(dataset, restore=back, progress=False)
            model = list(versions[back])
        elif step == 5:
            shardkit.prune(dataset, keep=2)
            versions = dict(sorted(versions.items())[-2:])
        versions[shardkit.open(dataset).version] = list(model)
        assert [*named(dataset).items()] == model
    for version, expected in versions.items():
        opened = shardkit.open(dataset, version=version)
        assert opened.keys() == [key for key, _ in expected]
        assert shardkit.verify(dataset, version=version, progress=False).ok
    shutil.rmtree(root)


# --- what an edit is given ----------------------------------------------------------------


def test_keys_and_labels_that_can_be_read_once_only(plain: Path, tmp_path: Path) -> None:
    """As of a generator, or of ``<(grep ...)`` in a shell."""
    keys = shardkit.open(plain).keys()
    made = shardkit.edit(plain, drop_keys=(key for key in keys[:2]), progress=False)
    assert (made.num_removed, made.what) == (2, "edit: drop 2 keys")
    assert shardkit.edit(plain, drop_keys=np.array(keys[2:4]), progress=False).num_removed == 2
    for option, text in {"drop_keys": keys[4], "labels": f"{keys[5]},class2"}.items():
        pipe = tmp_path / option
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
        writer.start()
        shardkit.edit(plain, **{option: pipe}, progress=False)
        writer.join()
    assert shardkit.open(plain).keys() == keys[5:]
    assert named(plain)[keys[5]] == "class2"


def test_tables_that_were_made_on_windows(plain: Path, tmp_path: Path) -> None:
    keys = shardkit.open(plain).keys()
    (tmp_path / "keys.txt").write_bytes(f"\ufeff{keys[0]}\r\n{keys[1]}\r\n".encode())
    (tmp_path / "labels.csv").write_bytes(f"\ufeffkey,class\r\n{keys[2]},class2\r\n".encode())
    shardkit.edit(plain, drop_keys=tmp_path / "keys.txt", progress=False)
    shardkit.edit(plain, labels=tmp_path / "labels.csv", progress=False)
    assert shardkit.open(plain).keys() == keys[2:]
    assert named(plain)[keys[2]] == "class2"


def test_a_name_of_any_length_leaves_the_dataset_readable(plain: Path) -> None:
    """The history has it, and refuses what is too long when it is read."""
    key = shardkit.open(plain).keys()[0]
    shardkit.edit(plain, labels={key: "x" * 20_000}, progress=False)
    shardkit.edit(plain, drop_classes=["x" * 20_000], progress=False)
    assert is_whole(plain)
    assert len(shardkit.info(plain).history[-1].what) == 1000


def test_labels_that_are_no_numbers_are_not_lost(tmp_path: Path) -> None:
    """Tars of others may have any bytes there; the row index has a number, or none."""
    (tmp_path / "tars").mkdir()
    with tarfile.open(tmp_path / "tars" / "train-00000.tar", "w") as tar:
        for name, data in {"a.cls": b"1", "b.cls": b"007", "c.cls": b"cat"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    shardkit.convert(tmp_path / "tars", tmp_path / "dataset", to="webdataset", workers=0)
    before = samples(tmp_path / "dataset", decode=False)
    with pytest.raises(UsageError, match="2 samples of train have labels that are no plain"):
        shardkit.edit(tmp_path / "dataset", labels={"a": 2}, progress=False)
    assert samples(tmp_path / "dataset", decode=False) == before
    shardkit.edit(tmp_path / "dataset", labels={"b": 2, "c": 3}, progress=False)
    assert [sample["cls"] for sample in samples(tmp_path / "dataset")] == [1, 2, 3]


def test_info_sends_nobody_to_the_shards_of_an_edited_split(plain: Path) -> None:
    """They hold what is in ``val`` now, too."""
    shardkit.edit(plain, val_fraction=0.3, progress=False)
    own, other = shardkit.info(plain, version=1).open_with
    assert own == f"shardkit.open({str(plain)!r}, split='train', version=1)"
    assert other.startswith("webdataset.WebDataset(")
    own, other = shardkit.info(plain).open_with
    assert own == f"shardkit.open({str(plain)!r}, split='train')"
    assert other.startswith(f"shardkit.convert({str(plain)!r}, to='webdataset')  # ")


def noted_and_marked(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Folders of originals, packed as ``plain`` and as ``marked``, which has ``restarts``. Those of
    ``plain`` are files as such a dataset stores them: a note of ours stands in each already."""
    monkeypatch.setattr(restarts, "LEAST_BYTES", 0)
    monkeypatch.setattr(restarts, "LEAST_BYTES_BETWEEN", 0)
    for name, first in (("noted", 0), ("marked", 10)):
        for split in ("train", "val") if name == "noted" else ("train",):
            for i in range(3):
                data = bytes(picture(first + i + 100 * (split == "val"), 64))
                if name == "noted":
                    data, outcome = restarts.add_restarts(data)
                    assert outcome is restarts.Outcome.ADDED
                write(root / "in" / name / split / "k" / f"{name}-{split}{i}.jpg", bytes(data))
    shardkit.pack(root / "in" / "noted", root / "plain", to="webdataset", **QUIET)
    options = {**QUIET, "restarts": True}
    shardkit.pack(root / "in" / "marked", root / "marked", to="webdataset", **options)
    assert restarts.has_restarts(bytes(shardkit.open(root / "marked", decode=False)[0]["jpg"]))
    return root / "in" / "noted", root / "in" / "marked"


def unpacks_to(dataset: Path, *folders: Path) -> bool:
    back = dataset.with_name(f"{dataset.name} unpacked")
    shardkit.unpack(dataset, back, progress=False)
    wanted = {
        str(file.relative_to(folder)): file.read_bytes()
        for folder in folders
        for file in folder.rglob("*.jpg")
    }
    return {str(f.relative_to(back)): f.read_bytes() for f in back.rglob("*.jpg")} == wanted


@pytest.mark.parametrize("order", [("plain", "marked"), ("marked", "plain")])
@pytest.mark.parametrize("way", ["merge", "append"])
def test_notes_that_are_the_inputs_own_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str], way: str
) -> None:
    """Whatever is joined, in whatever order, and made of that then."""
    both = noted_and_marked(tmp_path, monkeypatch)
    first, second = (tmp_path / name for name in order)
    made = tmp_path / "made"
    if way == "merge":
        notes = shardkit.merge([first, second], made, progress=False).notes
    else:
        shutil.copytree(first, made)
        notes = shardkit.append(made, second, progress=False).notes
    is_told = any("were packed with --restarts, others: keep" in note for note in notes)
    assert is_told or order[0] == "marked"
    flags = [
        shard.has_restarts for s in shardkit.open(made).info.splits.values() for shard in s.shards
    ]
    assert {*flags} == {True, False}
    assert unpacks_to(made, *both)
    shardkit.convert(made, tmp_path / "converted", to="npy", workers=0, progress=False)
    assert unpacks_to(tmp_path / "converted", *both)
    shardkit.stage(made, tmp_path / "staged", progress=False)
    assert unpacks_to(tmp_path / "staged", *both)
    shardkit.merge([made], tmp_path / "merged again", progress=False)
    assert unpacks_to(tmp_path / "merged again", *both)
    shardkit.edit(made, drop_keys=[shardkit.open(made, split="val").keys()[0]], progress=False)
    (both[0] / "val" / "k" / "noted-val0.jpg").unlink()
    assert unpacks_to(made.rename(tmp_path / "edited"), *both)


def yolo(root: Path, names: str) -> Path:
    """A dataset of three pictures, whose class numbers stand in its files, and ``data.yaml``."""
    for i in range(3):
        write(root / "in" / "images" / f"{root.name}{i}.jpg", picture(i))
        write(root / "in" / "labels" / f"{root.name}{i}.txt", "1 0.5 0.5 0.2 0.2\n")
    write(root / "in" / "data.yaml", f"names: [{names}]\n")
    shardkit.pack(root / "in", root / "packed", to="npy", **QUIET)
    return root / "packed"


def test_class_numbers_that_stand_in_files_stay_right(tmp_path: Path) -> None:
    one, other = yolo(tmp_path / "one", "cat, dog"), yolo(tmp_path / "other", "dog, cat")
    more = yolo(tmp_path / "more", "cat, dog, cow")
    with pytest.raises(UsageError, match=r"numbers in files of labels of .* have other names"):
        shardkit.merge([one, other], tmp_path / "all", progress=False)
    with pytest.raises(UsageError, match=r"numbers in files of labels of .* have"):
        shardkit.append(one, other, progress=False)
    third = yolo(tmp_path / "third", "cat, dog, pig")
    with pytest.raises(UsageError, match="numbers in files of labels"):
        shardkit.merge([one, more, third], tmp_path / "all", progress=False)
    made = shardkit.merge([one, more], tmp_path / "all", progress=False)
    assert shardkit.open(tmp_path / "all").classes == ["cat", "dog", "cow"]
    assert f"only the dataset's own is kept, not {more}'s: data.yaml" in made.notes


def test_files_that_only_the_second_has_come_back(tmp_path: Path) -> None:
    one, other = yolo(tmp_path / "one", "cat, dog"), yolo(tmp_path / "other", "cat, dog")
    pictures = make_images(tmp_path / "pictures", 3, 2)
    for name in ("class0", "class1"):
        (pictures / name).rename(pictures / {"class0": "cat", "class1": "dog"}[name])
    shardkit.pack(pictures, tmp_path / "plain", to="npy", **QUIET)
    for datasets in ([one, other], [tmp_path / "plain", other]):
        made = tmp_path / f"all {datasets[0].name}"
        assert not [n for n in shardkit.merge(datasets, made).notes if "data.yaml" in n]
        shardkit.unpack(made, tmp_path / f"un{made.name}", progress=False)
        assert (tmp_path / f"un{made.name}" / "data.yaml").read_text() == "names: [cat, dog]\n"


def test_names_of_further_numbers_stay_right(tmp_path: Path) -> None:
    def table(name: str, fine: list[str] | None, column: str = "fine") -> Path:
        rows = pa.table({column: [0, 1, 0], "id": [f"{name}{i}" for i in range(3)]})
        features = {column: {"names": fine, "_type": "ClassLabel"}} if fine else {}
        features |= {"id": {"dtype": "string", "_type": "Value"}}
        rows = rows.add_column(2, "label", pa.array([0, 1, 1]))
        features["label"] = {"names": ["x", "y"], "_type": "ClassLabel"}
        told = json.dumps({"info": {"features": features}})
        (tmp_path / name).mkdir()
        rows = rows.replace_schema_metadata({b"huggingface": told.encode()})
        parquet.write_table(rows, tmp_path / name / f"{name}.parquet")
        shardkit.pack(tmp_path / name, tmp_path / f"{name} packed", to="npy", **QUIET)
        return tmp_path / f"{name} packed"

    first, same, turned = table("a", ["p", "q"]), table("b", ["p", "q"]), table("c", ["q", "p"])
    other, unnamed = table("d", ["r", "s"], "coarse"), table("e", None)
    for dataset in (turned, unnamed):
        with pytest.raises(UsageError, match=r"numbers in fine\.npy of .* have other names"):
            shardkit.merge([first, dataset], tmp_path / "all", progress=False)
    shardkit.merge([first, same, other], tmp_path / "all", progress=False)
    spec = shardkit.open(tmp_path / "all").info.provenance.spec
    assert names_by_field(spec) == {"fine.npy": ["p", "q"], "coarse.npy": ["r", "s"]}


def test_a_dataset_of_other_class_numbers_is_appended_once(plain: Path, tmp_path: Path) -> None:
    """Its checksums are others here, with its labels."""
    write(tmp_path / "more" / "another" / "a.jpg", picture(1))
    write(tmp_path / "more" / "class2" / "b.jpg", picture(2))
    shardkit.pack(tmp_path / "more", tmp_path / "source", to="webdataset", **QUIET)
    assert shardkit.append(plain, tmp_path / "source", progress=False).version == 2
    again = shardkit.append(plain, tmp_path / "source", progress=False)
    assert (again.version, again.was_complete) == (2, True)


def test_split_anew_as_it_is_makes_no_version(plain: Path) -> None:
    shardkit.edit(plain, val_fraction=0.3, progress=False)
    key = shardkit.open(plain).keys()[0]
    shardkit.edit(plain, labels={key: "class2"}, progress=False)
    again = shardkit.edit(plain, labels={key: "class2"}, val_fraction=0.3, progress=False)
    assert (again.version, again.was_complete) == (3, True)


def test_a_damaged_old_version_can_be_pruned(plain: Path) -> None:
    shardkit.edit(plain, drop_classes=["class1"], progress=False)
    shardkit.edit(plain, val_fraction=0.3, progress=False)
    old = plain / "shardkit~1.json"
    old.write_bytes(old.read_bytes()[:-40])
    found = shardkit.verify(plain, progress=False)
    assert [problem.where for problem in found.problems] == ["shardkit~1.json"]
    made = shardkit.prune(plain)
    assert any("version 1 had cannot be read" in note for note in made.notes)
    stray = {problem.where for problem in shardkit.verify(plain, progress=False).problems}
    assert {f"train.{kind}" for kind in ("rows", "names", "find", "sums")} <= stray
    for name in stray:
        (plain / name).unlink()
    assert is_whole(plain)


def test_merged_again_nothing_is_done(plain: Path, tmp_path: Path) -> None:
    write(tmp_path / "more" / "another" / "a.jpg", picture(1))
    shardkit.pack(tmp_path / "more", tmp_path / "second", to="webdataset", **QUIET)
    both = [plain, tmp_path / "second"]
    first = shardkit.merge(both, tmp_path / "merged", progress=False)
    again = shardkit.merge(both, tmp_path / "merged", progress=False)
    assert (again.was_complete, again.splits) == (True, first.splits)
    shardkit.edit(plain, drop_classes=["class1"], progress=False)
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.merge(both, tmp_path / "merged", progress=False)


def test_a_file_that_raises_gives_no_filter(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(UsageError, match=r"broken\.py.*ZeroDivisionError"):
        shardkit.edit(plain, filter=f"{tmp_path}/broken.py:keep", progress=False)


def test_verified_while_old_versions_are_pruned(
    plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that they are there, and then they are not."""
    shardkit.edit(plain, drop_classes=["class1"], progress=False)
    shardkit.edit(plain, drop_classes=["class2"], progress=False)
    there = versions_at(plain, shardkit.open(plain).info)
    shardkit.prune(plain)
    monkeypatch.setattr("shardkit.operations.verify.versions_at", lambda *_: there)
    assert is_whole(plain)


def test_what_an_append_skips_is_told(plain: Path, tmp_path: Path) -> None:
    write(tmp_path / "more" / "class1" / "good.jpg", picture(1))
    write(tmp_path / "more" / "class1" / "bad.jpg", b"no picture")
    write(tmp_path / "more" / "class1" / "notes.xyz", b"no sample")
    skipping: dict[str, Any] = {"check_images": True, "on_error": "skip", "max_rejects": 1}
    made = shardkit.append(plain, tmp_path / "more", **skipping, **QUIET)
    assert made.num_added == 1
    assert "files passed over: 1 .xyz" in made.notes
    assert "inputs rejected, see rejected.jsonl: 1" in made.notes


def test_a_class_that_was_not_there_is_told(plain: Path) -> None:
    """It may be a slip of the pen."""
    keys = shardkit.open(plain).keys()
    known = shardkit.edit(plain, labels={keys[0]: "class1"}, progress=False)
    assert not any("new classes" in note for note in known.notes)
    made = shardkit.edit(plain, labels={keys[0]: "clas2"}, progress=False)
    assert "new classes: clas2" in made.notes
