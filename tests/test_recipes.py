"""What ``info --open`` prints runs as it stands, and gives the dataset's own values."""

from __future__ import annotations

import gc
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONTAINERS, Run, make_arrays, make_images, make_pairs, thorough, write
from token_data import documents, pack_tokens

import shardkit
from shardkit.formats.webdataset import urls_of

OPTIONS = {"workers": 0, "progress": False}
LIBRARIES = {"lmdb": "lmdb", "hdf5": "h5py", "webdataset": "webdataset", "npy": "numpy"}


def ran(code: str) -> dict[str, Any]:
    """The names that some lines leave behind."""
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its tars open
        exec(compile(code, "info --open", "exec"), scope)
        scope.pop("dataset", None)
        gc.collect()
    return scope


@pytest.mark.parametrize("make", [make_pairs, *thorough(make_images, make_arrays)])
@pytest.mark.parametrize("name", [*thorough("d"), "it's {so} $5"])
def test_each_library(name: str, make: Any, container: str, tmp_path: Path) -> None:
    source = make(tmp_path / "source")
    shardkit.pack(source, tmp_path / name, to=container, shard_size="3kB", **OPTIONS)
    found = shardkit.info(tmp_path / name).recipes
    assert list(found)[:3] == ["shardkit", LIBRARIES[container], "Hugging Face datasets"]
    first = shardkit.open(tmp_path / name)[0]
    assert str(ran(found["shardkit"])["sample"]) == str(first)
    scope = ran(found[LIBRARIES[container]])
    assert "shardkit" not in found[LIBRARIES[container]]
    raw = shardkit.open(tmp_path / name, decode=False)
    if container == "webdataset":
        fields = {key: v for key, v in scope["sample"].items() if not key.startswith("__")}
        keys = [{k: bytes(v) for k, v in s.items() if k != "__key__"} for s in raw]
        assert fields in keys  # shards are shuffled
        return
    field = next(name for name in raw[0] if name not in ("__key__", "cls"))
    value, expected = scope["value"], raw[0][field]
    if isinstance(value, np.ndarray):
        assert np.array_equal(value, first[field])
    else:
        assert bytes(value) == bytes(expected)


def test_a_shard_without_rows_is_passed_over(container: str, tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    for i in range(6):
        write(source / "aclass" / f"{i}.jpg", b"x" * 2000)
    options = {**OPTIONS, "on_error": "skip", "max_rejects": 0.5, "shard_size": "3kB"}
    shardkit.pack(source, tmp_path / "d", to=container, **options)
    assert shardkit.open(tmp_path / "d").info.splits["train"].shards[0].num_rows == 0
    scope = ran(shardkit.info(tmp_path / "d").recipes[LIBRARIES[container]])
    assert "value" in scope or "jpg" in scope["sample"]


def test_urls() -> None:
    assert urls_of("x", ["train-00000", "train-00001"]) == "'x/train-{00000..00001}.tar'"
    assert urls_of("x", ["train-00000"]) == "['x/train-00000.tar']"
    assert urls_of("{x}", ["a-00000", "a-00001"]) == "['{x}/a-00000.tar', '{x}/a-00001.tar']"


def test_one_shard_is_no_several(tmp_path: Path) -> None:
    shards = {}
    for size in ("1MB", "5kB"):
        dest = tmp_path / size
        shardkit.pack(make_images(tmp_path / "in"), dest, to="wds", shard_size=size, **OPTIONS)
        said = shardkit.info(dest).recipes["webdataset"]
        shards[size] = re.search(r"^# (\d+ shards?), dealt", said, re.MULTILINE)[1]
    assert shards["1MB"] == "1 shard" and re.fullmatch(r"[2-9]\d* shards", shards["5kB"])


# --- tokens -------------------------------------------------------------------------------


def test_the_offset_of_ids(tmp_path: Path) -> None:
    """``numpy.memmap`` of a .npy file would take its header for tokens."""
    docs = documents([3, 0, 40, 7])
    dataset = pack_tokens(tmp_path, docs)
    summary = shardkit.info(dataset)
    line = summary.open_with[-1]
    assert re.fullmatch(
        r"numpy\.memmap\('.*/train-00000\.tokens\.npy', dtype='<u2', mode='r', .*\)", line
    )
    scope = ran(f"import numpy\ndata = {line}")
    assert scope["data"].tolist() == np.concatenate(docs).tolist()
    assert ran(summary.recipes["nanoGPT"])["data"].tolist() == scope["data"].tolist()
    plain = np.memmap(dataset / "train-00000.tokens.npy", dtype="<u2", mode="r")
    assert len(plain) - len(scope["data"]) == int(line.rpartition("=")[2][:-1]) // 2


def test_ids_that_lie_elsewhere_are_converted(tmp_path: Path) -> None:
    for to in CONTAINERS:
        dataset = pack_tokens(tmp_path / to, documents([400] * 9), to=to, shard_size="2kB")
        found = shardkit.info(dataset).recipes
        assert found["nanoGPT"] == (
            f"# after `shardkit convert '{dataset}' --to bin`: {to}-bin/train.bin"
        ).replace("'", "" if re.fullmatch(r"[\w/.@%+=:,-]+", str(dataset)) else "'")
        assert found["Megatron"].endswith(f": --data-path {to}-megatron/train")
        assert ran(found["nanoGPT"]).keys() == ran(found["Megatron"]).keys() == {"__builtins__"}


# --- Hugging Face -------------------------------------------------------------------------


def test_only_tars_are_loaded_as_they_are(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source" / "val")
    for to in CONTAINERS:
        shardkit.pack(source.parent, tmp_path / to, to=to, **OPTIONS)
    found = {to: shardkit.info(tmp_path / to).recipes["Hugging Face datasets"] for to in CONTAINERS}
    assert found.pop("webdataset") == (
        "import datasets\n"
        f"dataset = datasets.load_dataset('{tmp_path}/webdataset', split='validation')"
    )
    for to, said in found.items():
        assert said.startswith("# after `shardkit convert ")
        assert said.endswith(f" --to parquet`: datasets.load_dataset('{to}-parquet')")


def test_class_names_where_there_is_no_card(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=3)
    for i in range(9):
        write(source / f"class{i // 3}" / f"img.{i % 3:03d}.json", "{}")
    shardkit.pack(source, tmp_path / "d", to="webdataset", corpus="paired", **OPTIONS)
    lines = shardkit.info(tmp_path / "d").recipes["Hugging Face datasets"].splitlines()
    assert shardkit.open(tmp_path / "d").classes is None and len(lines) == 2


# --- the command line ---------------------------------------------------------------------


def test_all_of_it_is_one_program(run: Run, tmp_path: Path) -> None:
    assert run("pack", "pictures", "--to", "npy").code == 0
    got = run("info", "pictures-npy", "--open")
    assert got.code == 0 and got.err == ""
    parts = [part for part in got.out.split("\n\n") if "nvidia" not in part]
    assert [part.splitlines()[0] for part in parts if part] == [
        "# shardkit",
        "# numpy",
        "# Hugging Face datasets",
    ]
    scope = ran("\n".join(parts))
    assert scope["value"] == (tmp_path / "pictures" / "class0" / "img.000.jpg").read_bytes()
    said = run("info", "pictures-npy").out.splitlines()[-1]
    assert said == "  with other tools: shardkit info pictures-npy --open"
    found = json.loads(run("info", "pictures-npy", "--open", "--json").out)["recipes"]
    assert list(found) == ["shardkit", "numpy", "Hugging Face datasets", "DALI"]
    compile(found["DALI"], "DALI", "exec")


def test_tars_made_by_others(run: Run, tmp_path: Path) -> None:
    run("pack", "pictures", "wds", "--to", "wds")
    write(tmp_path / "theirs" / "x-7.tar", (tmp_path / "wds" / "train-00000.tar").read_bytes())
    assert list(shardkit.info(tmp_path / "theirs").recipes) == ["shardkit"]
