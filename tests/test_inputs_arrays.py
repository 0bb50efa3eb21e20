"""The kind ``arrays``: folders of .npy files, each a sample."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_inputs_files import read_all, tree

from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import from_spec, open_corpus
from shardkit.inputs.single_files import ArrayCorpus


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def test_npy_files_are_kept_to_the_byte(tmp_path: Path) -> None:
    arrays = [np.asfortranarray(np.ones((2, 3))), np.zeros((0, 4), ">i2"), np.array(5), ["text"]]
    files = {f"{i}.npy": npy(array) for i, array in enumerate(arrays)}
    batch = read_all(ArrayCorpus(tree(tmp_path, files)), tmp_path)["train"]
    assert batch.keys == [b"0", b"1", b"2", b"3"] and batch.paths == [b"+.npy"] * 4
    assert batch.columns == {"npy": [*files.values()]}


@pytest.mark.parametrize(
    ("names", "classes", "note"),
    [
        ("cat/1.npy cat/2.npy dog/1.npy", ["cat", "dog"], "cls is of 2 classes, the folders: cat"),
        ("train/cat/1.npy train/dog/1.npy val/cat/1.npy", ["cat", "dog"], "cls is of 2 classes"),
        ("a/b/1.npy c/2.npy", None, "no cls: folders are a part of keys, since a/b/1.npy lies"),
        ("1.npy a/2.npy b/2.npy", None, "no cls: folders are a part of keys, since 1.npy lies"),
        ("images/1.npy masks/2.npy", None, "images is not named as a class is"),
        ("a.npy b.npy", None, ""),
    ],
)
def test_folders_that_are_classes(
    names: str, classes: list[str] | None, note: str, tmp_path: Path
) -> None:
    source = tree(tmp_path, dict.fromkeys(names.split(), npy(np.arange(3))))
    corpus = ArrayCorpus(source)
    batches = read_all(corpus, tmp_path)
    worker = from_spec(source, corpus.spec())
    for run in corpus.runs(tmp_path):
        assert worker.read(run, tmp_path).columns == corpus.read(run, tmp_path).columns
    assert corpus.classes == classes and note in "".join(corpus.notes)
    assert sorted(batches["train"].columns) == (["npy"] if classes is None else ["cls", "npy"])
    assert sum(map(len, batches.values())) == len(names.split())


BAD = {
    "empty.npy": (b"", "empty file"),
    "object.npy": (npy(np.array([{}], object), allow_pickle=True), "Python objects"),
    "short.npy": (npy(np.arange(9))[:-1], "does not fit"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_rejects(name: str, tmp_path: Path) -> None:
    data, why = BAD[name]
    good = npy(np.arange(2))
    source = tree(tmp_path / "in", {name: data, "good.npy": good})
    batch = read_all(ArrayCorpus(source), tmp_path)["train"]
    assert batch.keys == [b"good"] and batch.columns == {"npy": [good]}
    ((path, reason),) = batch.rejects
    assert path == name and why in reason and "\n" not in reason


# --- detection ----------------------------------------------------------------------------


def test_claim(tmp_path: Path) -> None:
    source = tree(tmp_path / "a", {f"a{i}.npy": npy(np.zeros((9, 4))) for i in range(5)})
    claim = ArrayCorpus.claim(Look(source))
    assert claim is not None
    assert (claim.strength, claim.num_files) == (Strength.FILES, 5)
    assert open_corpus(source).kind == "arrays"
    source = tree(tmp_path / "b", {"images.npy": npy(np.zeros((9, 4)))})
    with pytest.raises(CorpusError, match="--corpus"):
        open_corpus(source)
    assert open_corpus(source, "arrays").kind == "arrays"
