"""pack --drop-duplicates is gone: it is refused, and what older releases made with it opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Run, make_images, picture, tree, write

import shardkit
from shardkit.errors import UsageError

SMALL: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False, "shard_size": "4kB"}
SAME = "the same contents as "
LEFT_OUT = {
    "train/class0/same.jpg": "train/class0/img.003.jpg",
    "train/class2/leak.jpg": "val/class1/img.001.jpg",
}


def write_lines(dataset: Path, left_out: dict[str, str]) -> None:
    """Say in ``rejected.jsonl`` what was left out, as older releases did; all else is the same."""
    lines = [json.dumps({"path": path, "reason": SAME + same}) for path, same in left_out.items()]
    (dataset / "rejected.jsonl").write_text("\n".join([*lines, ""]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Pictures in two splits, without copies until :func:`add_copies`."""
    make_images(tmp_path / "source" / "train", per_class=9)
    for i in range(3):
        for number in range(2):
            path = tmp_path / "source" / "val" / f"class{i}" / f"img.{number:03d}.jpg"
            write(path, picture(500 + 10 * i + number))
    return tmp_path / "source"


def add_copies(source: Path) -> None:
    for path, same in LEFT_OUT.items():
        write(source / path, (source / same).read_bytes())


@pytest.fixture
def old(source: Path, tmp_path: Path, container: str) -> Path:
    """A dataset as an older release packed it with the option."""
    shardkit.pack(source, tmp_path / "old", **SMALL | {"to": container})
    write_lines(tmp_path / "old", LEFT_OUT)
    add_copies(source)
    return tmp_path / "old"


# --- the option -----------------------------------------------------------------------------


def test_the_option_is_refused_and_names_what_does_it(
    run: Run, source: Path, tmp_path: Path
) -> None:
    said = (
        "leave --drop-duplicates out, then run `shardkit edit DEST --drop-duplicates`, and"
        " `shardkit convert DEST NEW --to FORMAT` to make it compact"
    )
    words = ["pack", source, tmp_path / "d", "--to", "npy", "--drop-duplicates"]
    for more in ([], ["--estimate"]):
        done = run(*words, *more)
        assert (done.code, done.out) == (2, "")
        assert said in done.err.splitlines()[-1], done.err
    assert "--drop-duplicates" not in run("pack", "--help").out
    with pytest.raises(UsageError, match="shardkit edit DEST --drop-duplicates"):
        shardkit.pack(source, tmp_path / "d", **SMALL, drop_duplicates=True)
    assert not (tmp_path / "d").exists()


def test_what_it_names_does_it(source: Path, tmp_path: Path) -> None:
    add_copies(source)
    shardkit.pack(source, tmp_path / "d", **SMALL)
    assert shardkit.edit(tmp_path / "d", drop_duplicates=True, progress=False).num_removed == 2
    shardkit.convert(tmp_path / "d", tmp_path / "new", to="npy", workers=0, progress=False)
    assert shardkit.info(tmp_path / "new", duplicates=True).duplicates.num_copies == 0
    assert len(shardkit.open(tmp_path / "new")) + len(shardkit.open(tmp_path / "new", "val")) == 33


# --- datasets of older releases -------------------------------------------------------------


def test_an_old_dataset_is_used_as_ever(old: Path, source: Path, tmp_path: Path) -> None:
    found = shardkit.verify(old, against=source)
    assert found.ok, found.problems
    assert len(shardkit.open(old)) == 27
    shardkit.unpack(old, tmp_path / "out", progress=False)
    assert tree(tmp_path / "out") == {n: d for n, d in tree(source).items() if n not in LEFT_OUT}
    shardkit.append(old, make_more(tmp_path / "more"), progress=False, workers=0)
    shardkit.edit(old, drop_keys=["class0/img.000"], progress=False)
    assert shardkit.verify(old).ok
    assert len(shardkit.open(old)) == 27 + 1 - 1


def make_more(root: Path) -> Path:
    write(root / "train" / "class0" / "more.jpg", picture(900))
    return root


def test_what_is_no_copy_is_missing(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "old", **SMALL)
    write_lines(tmp_path / "old", LEFT_OUT)
    add_copies(source)
    write(source / "train" / "class0" / "new.jpg", picture(900))
    found = shardkit.verify(tmp_path / "old", against=source)
    assert [str(p) for p in found.problems] == ["sample 'class0/new': is not in the dataset"]
