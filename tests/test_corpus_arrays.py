"""Folders of .npy files and tensors."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED

import numpy as np
import pytest
import torch
from test_corpus_files import read_all, tree

import shardkit
from shardkit.errors import CorpusError
from shardkit.inputs.arrays import ArrayCorpus
from shardkit.inputs.kinds import from_spec
from shardkit.samples.sample import SampleBatch


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
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return out.getvalue()


def read_arrays(source: Path) -> SampleBatch:
    return read_all(ArrayCorpus(source), source)["train"]


def test_npy_files_as_they_are(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "c": np.zeros((0, 4), ">i2"),
        "d": np.array(5),
        "e": np.array(["text"]),
    }
    tree(tmp_path, {f"{name}.npy": npy(array) for name, array in arrays.items()})
    batch = read_arrays(tmp_path)
    assert batch.keys == [b"a", b"b", b"c", b"d", b"e"]
    assert batch.columns == {"npy": [npy(array) for array in arrays.values()]}
    assert batch.paths == [b"+.npy"] * 5


@pytest.mark.parametrize("name", ["{}.npy", "{}.pt"])
@pytest.mark.parametrize("split", ["", "train/"])
def test_folders_of_arrays_are_classes(tmp_path: Path, split: str, name: str) -> None:
    data = npy(np.arange(3)) if name == "{}.npy" else pt(torch.arange(3))
    tree(tmp_path, {f"{split}{c}/{name.format(i)}": data for c in ("dog", "cat") for i in range(3)})
    corpus = ArrayCorpus(tmp_path)
    batch = read_all(corpus, tmp_path)["train"]
    assert corpus.classes == ["cat", "dog"]
    assert batch.columns == {"cls": [b"0"] * 3 + [b"1"] * 3, "npy": [npy(np.arange(3))] * 6}
    assert corpus.notes == ["cls is of 2 classes, the folders: cat, dog"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a/b/1.npy", "c/2.npy"], "a/b/1.npy lies further down"),
        (["1.npy", "a/2.npy", "b/2.npy"], "1.npy lies beside them"),
        (["a/1.npy"], "there is one alone"),
        (["images/1.npy", "masks/2.npy"], "images is not called as a class is"),
    ],
)
def test_folders_of_arrays_that_are_no_classes(tmp_path: Path, names: list[str], why: str) -> None:
    corpus = ArrayCorpus(tree(tmp_path, dict.fromkeys(names, npy(np.arange(3)))))
    assert read_all(corpus, tmp_path)["train"].columns.keys() == {"npy"}
    assert corpus.notes == [f"no cls: folders are a part of keys, since {why}"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.float32).reshape(2, 3),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(2.5, dtype=torch.float64),
        torch.zeros(0, 3, dtype=torch.uint8),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.arange(10)[2:4],
    ],
    ids=lambda t: str(t.dtype) + str(list(t.shape)),
)
def test_a_tensor_becomes_what_numpy_saves(tmp_path: Path, tensor: torch.Tensor) -> None:
    batch = read_arrays(tree(tmp_path, {"k/x.pt": pt(tensor)}))
    expected = tensor.detach().resolve_conj().numpy()
    assert batch.columns == {"npy": [npy(np.ascontiguousarray(expected).reshape(expected.shape))]}
    assert batch.paths == [b"+.npy"]


def test_the_old_file_format_of_tensors(tmp_path: Path) -> None:
    data = pt(torch.arange(3), _use_new_zipfile_serialization=False)
    batch = read_arrays(tree(tmp_path, {"x.pth": data}))
    assert batch.columns == {"npy": [npy(np.arange(3))]}


class Hostile:
    """What ``torch.load`` would run without weights_only."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["SHARDKIT_TEST_TRAP"],)


def test_a_pickle_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDKIT_TEST_TRAP", str(tmp_path / "trap"))
    batch = read_arrays(tree(tmp_path / "src", {"x.pt": pt(Hostile())}))
    assert not batch.keys
    assert batch.rejects[0][1].startswith("torch.load refused it: UnpicklingError")
    assert "\n" not in batch.rejects[0][1]
    assert not (tmp_path / "trap").exists()


HOSTILE_HEADER = b"\x93NUMPY\x01\x00\x76\x00" + b"%-117s\n"
BAD = {
    "empty.npy": (b"", "empty file"),
    "text.npy": (b"hello, this is text", "not a .npy value"),
    "object.npy": (npy(np.array([{}], object), allow_pickle=True), "Python objects"),
    "short.npy": (npy(np.arange(9))[:-1], "does not fit"),
    "long.npy": (npy(np.arange(9)) + b"1", "does not fit"),
    "header.npy": (npy(np.arange(9))[:20], ".npy header of 128 bytes"),
    "code.npy": (HOSTILE_HEADER % b"__import__('os').abort()", "damaged .npy header"),
    "huge.npy": (
        HOSTILE_HEADER
        % b"{'descr': '<i8', 'fortran_order': False, 'shape': (0, 99999999999999999999)}",
        ".npy",
    ),
    "minus.npy": (
        HOSTILE_HEADER % b"{'descr': '<i8', 'fortran_order': False, 'shape': (-1, 0)}",
        ".npy",
    ),
    "empty.pt": (b"", "empty file"),
    "text.pt": (b"hello, this is text", "torch.load refused it"),
    "cut.pt": (pt(torch.arange(9))[:-40], "torch.load refused it"),
    "dict.pt": (pt({"a": torch.ones(1)}), "holds a dict, expected one tensor"),
    "int.pt": (pt(5), "holds an int, expected one tensor"),
    "bf16.pt": (
        pt(torch.ones(2, dtype=torch.bfloat16)),
        "NumPy has no bfloat16; save tensor.float()",
    ),
    "terabytes.pt": (pt(torch.zeros(1).expand(10**12)), "makes 4000000000000 bytes of a file of"),
    "strided.pt": (pt(torch.zeros(9).as_strided((999, 999), (0, 0))), "it is expanded or"),
    "deflated.pt": (deflated(pt(torch.zeros(10**5))), "it is expanded or compressed"),
    "sparse.pt": (pt(torch.eye(3).to_sparse()), "sparse or quantized; save tensor.to_dense()"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore:.*sparse.*:UserWarning")
def test_bad_files_are_rejects(tmp_path: Path, name: str) -> None:
    data, why = BAD[name]
    good = npy(np.arange(2))
    batch = read_arrays(tree(tmp_path, {name: data, "good.npy": good}))
    assert batch.keys == [b"good"]
    assert batch.columns == {"npy": [good]}
    ((path, reason),) = batch.rejects
    assert path == name
    assert why in reason
    assert "\n" not in reason


def test_a_mixed_folder(tmp_path: Path) -> None:
    tree(
        tmp_path, {"a.npy": npy(np.arange(2)), "a.pt": pt(torch.ones(1)), "b.pt": pt(torch.ones(1))}
    )
    batch = read_arrays(tmp_path)
    assert batch.keys == [b"a.npy", b"a.pt", b"b"]
    assert batch.paths == [b"+", b"+.npy", b"+.npy"]


def test_a_tensor_whose_restored_name_is_taken(tmp_path: Path) -> None:
    array = npy(np.arange(2))
    tree(tmp_path, {"k/a.pt": pt(torch.ones(1)), "k/a.npy": array, "k/a.pt.npy": array})
    with pytest.raises(CorpusError, match=r"k/a.pt would be restored as a.pt.npy, which is there"):
        list(ArrayCorpus(tmp_path).runs(tmp_path))


def test_splits_and_workers(tmp_path: Path) -> None:
    tree(tmp_path, {"train/a.npy": npy(np.arange(2)), "test/x/b.pt": pt(torch.ones(1))})
    corpus = ArrayCorpus(tmp_path)
    worker = from_spec(tmp_path, corpus.spec())
    batches = {run.split: worker.read(run, tmp_path) for run in corpus.runs(tmp_path)}
    assert batches["test"].keys == [b"x/b"]
    assert batches["test"].paths == [b"=test/x/b.npy"]
    assert batches["train"].paths == [b"=train/a.npy"]


def test_torch_is_imported_for_tensors_alone(tmp_path: Path) -> None:
    tree(tmp_path, {"a.npy": npy(np.arange(2))})
    code = (
        "import sys; from pathlib import Path; from shardkit.inputs.open import open_corpus;"
        "c = open_corpus(sys.argv[1]); r, = c.runs(Path()); c.read(r, Path());"
        "print(c.kind, sorted({'torch', 'h5py', 'lmdb', 'PIL', 'zstandard'} & {*sys.modules}))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(shardkit.__path__[0]).parent)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "arrays []\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"images.npy": (9, 4, 3)},
            ["1 array of (9, 4, 3) is one sample; --corpus rows makes each"],
        ),
        (
            {"a_1.npy": (9, 4), "a_2.npy": (9, 4)},
            ["each file is a sample, as a_1.npy of (9, 4) is;"],
        ),
        (
            {"train/x.npy": (9, 4), "test/x.npy": (5, 4)},
            ["each file is a sample, as x.npy of ("],
        ),
        ({"x.npy": (9,)}, []),
        ({"x.npy": (1, 9)}, []),
        ({f"{i}.npy": (9, 4) for i in range(5)}, []),
    ],
)
def test_few_arrays_may_be_meant_by_rows(
    files: dict[str, tuple[int, ...]], said: list[str], tmp_path: Path
) -> None:
    """A file of many rows becomes one sample, which is said."""
    tree(tmp_path / "in", {name: npy(np.zeros(shape)) for name, shape in files.items()})
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", workers=0, progress=False)
    assert packed.kind == "arrays" and packed.num_samples == len(files)
    assert [note[: len(own)] for note, own in zip(packed.notes, said, strict=True)] == said
    rows = {"to": "npy", "corpus": "rows", "workers": 0, "progress": False}
    if len(files) == 1 and said:
        assert shardkit.pack(tmp_path / "in", tmp_path / "rows", **rows).num_samples == 9
