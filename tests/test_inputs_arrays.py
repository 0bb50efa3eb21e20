"""The kind ``arrays``: folders of .npy files and tensors, each a sample."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_inputs_files import read_all, tree

from shardkit.errors import CorpusError
from shardkit.inputs.arrays import ArrayCorpus
from shardkit.inputs.look import Look, Strength
from shardkit.inputs.open import from_spec, open_corpus


def npy(array: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def pt(held: object, **options: Any) -> bytes:
    out = io.BytesIO()
    torch.save(held, out, **options)
    return out.getvalue()


def deflated(data: bytes) -> bytes:
    """The same zip, compressed."""
    out = io.BytesIO()
    old = zipfile.ZipFile(io.BytesIO(data))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def test_npy_files_are_kept_to_the_byte(tmp_path: Path) -> None:
    arrays = [np.asfortranarray(np.ones((2, 3))), np.zeros((0, 4), ">i2"), np.array(5), ["text"]]
    files = {f"{i}.npy": npy(array) for i, array in enumerate(arrays)}
    batch = read_all(ArrayCorpus(tree(tmp_path, files)), tmp_path)["train"]
    assert batch.keys == [b"0", b"1", b"2", b"3"] and batch.paths == [b"+.npy"] * 4
    assert batch.columns == {"npy": [*files.values()]}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.zeros(0, 3, dtype=torch.uint8),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([1 + 2j, 3j]).conj(),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_tensor_becomes_what_numpy_saves(
    is_zip: bool, tensor: torch.Tensor, tmp_path: Path
) -> None:
    if not is_zip and isinstance(tensor, torch.nn.Parameter):
        tensor = tensor.detach()
    source = tree(tmp_path, {"k/x.pth": pt(tensor, _use_new_zipfile_serialization=is_zip)})
    batch = read_all(ArrayCorpus(source), tmp_path)["train"]
    expected = tensor.detach().resolve_conj().numpy()
    assert batch.columns == {"npy": [npy(np.ascontiguousarray(expected).reshape(expected.shape))]}
    assert batch.paths == [b"+.npy"]


@pytest.mark.parametrize(
    ("names", "classes", "note"),
    [
        ("cat/1.pt cat/2.npy dog/1.npy", ["cat", "dog"], "cls is of 2 classes, the folders: cat"),
        ("train/cat/1.npy train/dog/1.npy val/cat/1.npy", ["cat", "dog"], "cls is of 2 classes"),
        ("a/b/1.npy c/2.npy", None, "no cls: folders are a part of keys, since a/b/1.npy lies"),
        ("1.npy a/2.npy b/2.npy", None, "no cls: folders are a part of keys, since 1.npy lies"),
        ("images/1.npy masks/2.npy", None, "images is not named as a class is"),
        ("a.npy a.pt", None, ""),
    ],
)
def test_folders_that_are_classes(
    names: str, classes: list[str] | None, note: str, tmp_path: Path
) -> None:
    data = {".npy": npy(np.arange(3)), ".pt": pt(torch.arange(3))}
    source = tree(tmp_path, {name: data[name[name.rfind(".") :]] for name in names.split()})
    corpus = ArrayCorpus(source)
    batches = read_all(corpus, tmp_path)
    worker = from_spec(source, corpus.spec())
    for run in corpus.runs(tmp_path):
        assert worker.read(run, tmp_path).columns == corpus.read(run, tmp_path).columns
    assert corpus.classes == classes and note in "".join(corpus.notes)
    assert sorted(batches["train"].columns) == (["npy"] if classes is None else ["cls", "npy"])
    assert sum(map(len, batches.values())) == len(names.split())


class Hostile:
    """An object that ``torch.load`` would run without weights_only."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("trap",)


BAD = {
    "empty.npy": (b"", "empty file"),
    "object.npy": (npy(np.array([{}], object), allow_pickle=True), "Python objects"),
    "short.npy": (npy(np.arange(9))[:-1], "does not fit"),
    "cut.pt": (pt(torch.arange(9))[:-40], "torch.load refused it"),
    "code.pt": (pt(Hostile()), "torch.load refused it: UnpicklingError"),
    "dict.pt": (pt({"a": torch.ones(1)}), "holds a dict, expected one tensor"),
    "bf16.pt": (
        pt(torch.ones(2, dtype=torch.bfloat16)),
        "no such tensor (strided, bfloat16)",
    ),
    "terabytes.pt": (pt(torch.zeros(1).expand(10**12)), "makes 4000000000000 bytes of a file of"),
    "deflated.pt": (deflated(pt(torch.zeros(10**5))), "it is expanded or compressed"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_rejects(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, why = BAD[name]
    good = npy(np.arange(2))
    source = tree(tmp_path / "in", {name: data, "good.npy": good})
    batch = read_all(ArrayCorpus(source), tmp_path)["train"]
    assert batch.keys == [b"good"] and batch.columns == {"npy": [good]}
    ((path, reason),) = batch.rejects
    assert path == name and why in reason and "\n" not in reason
    assert not (tmp_path / "trap").exists()


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
