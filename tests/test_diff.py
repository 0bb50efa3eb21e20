"""What two datasets have in common, and what one has twice, by their indexes alone."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EACH_FORMAT, Run, picture, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardkit
from shardkit.errors import IndexFileError, UsageError
from shardkit.operations import diff as diffing
from shardkit.operations.diff import SplitDiff
from shardkit.operations.duplicates import Copy

SMALL: dict[str, Any] = {"shard_size": "4kB", "workers": 0, "progress": False}


def pack(files: dict[str, bytes], where: Path, to: str = "webdataset", **options: Any) -> Path:
    """A dataset of pictures, by path."""
    for name, data in files.items():
        write(where / "source" / name, data)
    shardkit.pack(where / "source", where / to, to=to, **{**SMALL, **options})
    return where / to


def pictures(*numbers: int, folder: str = "a") -> dict[str, bytes]:
    return {f"{folder}/{number:03d}.jpg": picture(number) for number in numbers}


# --- diff -----------------------------------------------------------------------------------


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_all_kinds_of_differences(to: str, tmp_path: Path) -> None:
    before = pictures(*range(12)) | pictures(50, 51, folder="b")
    after = {**before, **pictures(90), "a/003.jpg": picture(99)}
    del after["a/007.jpg"], after["b/051.jpg"]
    one = pack(before, tmp_path / "one")
    found = shardkit.diff(one, pack(after, tmp_path / "other", to))
    assert found.splits == {
        "train": SplitDiff(
            num_added=1,
            num_removed=2,
            num_changed=1,
            num_same=11,
            added=["a/090"],
            removed=found.splits["train"].removed,
            changed=["a/003"],
        )
    }
    assert sorted(found.splits["train"].removed) == ["a/007", "b/051"]
    assert not found.is_same
    assert (found.classes_added, found.classes_removed) == ([], [])


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_the_same_in_any_format(to: str, tmp_path: Path) -> None:
    one = pack(pictures(*range(9)), tmp_path / "one")
    shardkit.convert(one, tmp_path / "converted", to=to, workers=0)
    found = shardkit.diff(one, tmp_path / "converted")
    assert found.is_same
    assert found.splits["train"] == SplitDiff(num_same=9, is_same_order=True)


def test_another_order(tmp_path: Path, run: Run) -> None:
    one = pack(pictures(*range(20)), tmp_path / "one")
    other = pack(pictures(*range(20)), tmp_path / "other", shuffle=True)
    found = shardkit.diff(one, other)
    assert found.splits["train"] == SplitDiff(num_same=20)
    assert not found.is_same
    assert run("diff", one, other).out == "  train: 20 the same, in another order\n"


def test_splits_and_classes(tmp_path: Path, run: Run) -> None:
    one = pack(pictures(*range(4)) | pictures(5, 6, folder="b"), tmp_path / "one")
    files = pictures(*range(4), folder="train/a") | pictures(5, 6, folder="train/c")
    other = pack(files | pictures(8, 9, 10, folder="val/a"), tmp_path / "other")
    found = shardkit.diff(one, other)
    assert (found.classes_added, found.classes_removed) == (["c"], ["b"])
    assert found.splits["val"].num_added == 3
    with pytest.raises(UsageError, match="limit must be"):
        shardkit.diff(one, other, limit="x")  # type: ignore[arg-type]
    lines = run("diff", one, other, "--limit", 2).out.splitlines()
    assert "  val: 3 added, 0 the same" in lines
    assert "    + and 1 more" in lines
    assert "  1 class added: c" in lines and "  1 class removed: b" in lines
    assert json.loads(run("diff", one, other, "--json").out)["splits"]["val"]["num_added"] == 3


def test_classes_of_other_numbers(tmp_path: Path, run: Run) -> None:
    """A new first class moves all others, and so changes their samples."""
    files = pictures(*range(4), folder="b")
    one = pack(files | pictures(9, folder="c"), tmp_path / "one")
    other = pack(files | pictures(9, folder="c") | pictures(7, folder="a"), tmp_path / "other")
    found = shardkit.diff(one, other)
    assert found.are_classes_moved
    assert (found.splits["train"].num_changed, found.splits["train"].num_added) == (5, 1)
    assert "  classes that both have, have other numbers\n" in run("diff", one, other).out


KEYS = st.sampled_from([f"{number:02d}" for number in range(24)])
SAMPLES = st.dictionaries(KEYS, st.integers(0, 3), min_size=1, max_size=24)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(one=SAMPLES, other=SAMPLES, rows=st.sampled_from([1, 4, 1 << 20]))
def test_counts_are_those_of_sets(
    one: dict[str, int], other: dict[str, int], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffing, "ROWS", rows)
    with tempfile.TemporaryDirectory() as name:
        folders = []
        for number, samples in enumerate((one, other)):
            files = {f"a/{key}.jpg": picture(value) for key, value in samples.items()}
            folders.append(pack(files, Path(name, str(number)), "npy"))
        found = shardkit.diff(*folders, limit=100).splits["train"]
    common = one.keys() & other.keys()
    assert {*found.added} == {f"a/{key}" for key in other.keys() - one.keys()}
    assert {*found.removed} == {f"a/{key}" for key in one.keys() - other.keys()}
    assert {*found.changed} == {f"a/{key}" for key in common if one[key] != other[key]}
    assert found.num_same == sum(one[key] == other[key] for key in common)
    assert found.num_added == len(found.added)
    assert found.num_changed == len(found.changed)
    assert found.is_same_order == (one == other)


class _Named:
    """Of an index, the names."""

    def __init__(self, names: list[bytes]) -> None:
        self._names = names

    def name(self, row: int) -> tuple[bytes, bytes]:
        return self._names[row], b""


def _rows(names: list[bytes], keys: list[int], sums: list[int]) -> Any:
    arrays = np.array(keys, np.uint64), np.array(sums, np.uint64)
    return diffing._Rows(_Named(names), np.arange(len(names)), *arrays)  # type: ignore[arg-type]


def test_keys_of_one_hash() -> None:
    """Names decide."""
    ours = _rows([b"a", b"b", b"c", b"e"], [5, 5, 7, 9], [1, 2, 3, 4])
    theirs = _rows([b"b", b"a", b"d", b"e"], [5, 5, 7, 9], [2, 8, 3, 6])
    found = SplitDiff()
    diffing._compare_piece(found, ours, theirs, 9)
    assert (found.changed, found.num_changed) == (["a", "e"], 2)
    # c and d have one hash and one checksum: 128 bits say that they are one sample.
    assert (found.num_same, found.added, found.removed) == (2, [], [])


def test_what_has_no_checksums_is_refused(tmp_path: Path) -> None:
    one = pack(pictures(*range(3)), tmp_path / "one")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with tarfile.open(theirs / "a.tar", "w") as tar:
        tar.add(tmp_path / "one" / "source" / "a" / "000.jpg", "000.jpg")
    for args in ((one, theirs), (theirs, one)):
        with pytest.raises(UsageError, match="convert` makes a dataset that has"):
            shardkit.diff(*args)
    with pytest.raises(UsageError, match="convert` makes a dataset that has"):
        shardkit.info(theirs, duplicates=True)
    with pytest.raises(UsageError, match="limit must be at least 0"):
        shardkit.diff(one, one, limit=-1)


@pytest.mark.parametrize(("row", "value"), [(3, 99), (3, -1), (3, 2)])
def test_a_damaged_index_is_an_error(row: int, value: int, tmp_path: Path) -> None:
    """Of .find: a row that is not there, or one that hides another."""
    one = pack(pictures(*range(9)), tmp_path / "one")
    other = pack(pictures(*range(8)), tmp_path / "other")
    path = one / "train.find"
    order = np.fromfile(path, "<i8")
    order[row] = order[value] if value == 2 else value
    order.tofile(path)
    for args in ((one, other), (other, one)):
        with pytest.raises(IndexFileError, match=r"train\.find"):
            shardkit.diff(*args)


def test_a_damaged_row_is_an_error(tmp_path: Path) -> None:
    one = pack(pictures(*range(9)), tmp_path / "one")
    other = pack(pictures(*range(8)), tmp_path / "other")
    data = bytearray((one / "train.rows").read_bytes())
    data[-40] ^= 1
    (one / "train.rows").write_bytes(data)
    with pytest.raises(IndexFileError, match="differ from those written"):
        shardkit.diff(one, other)
    with pytest.raises(IndexFileError, match="differ from those written"):
        shardkit.info(one, duplicates=True)


def test_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("SHARDKIT_CACHE_DIR", str(tmp_path / "cache"))
    one = pack(pictures(*range(5)), tmp_path / "one")
    there = tmp_path / "there"
    shutil.copytree(one, there)
    other = pack(pictures(*range(3)), tmp_path / "other")
    assert shardkit.diff(one, there.as_uri()).is_same
    assert shardkit.diff(there.as_uri(), other).splits["train"].num_removed == 2


# --- duplicates -----------------------------------------------------------------------------


@pytest.mark.parametrize("to", EACH_FORMAT)
def test_duplicates(to: str, tmp_path: Path, run: Run) -> None:
    train = pictures(*range(8), folder="train/a") | pictures(20, 21, folder="train/b")
    train["train/a/again.jpg"] = picture(2)  # in its own class
    train["train/a/third.jpg"] = picture(2)
    train["train/b/other.jpg"] = picture(5)  # in another
    val = pictures(30, 31, folder="val/a") | {"val/b/seen.jpg": picture(20)}
    found = shardkit.info(pack(train | val, tmp_path, to), duplicates=True).duplicates
    assert found is not None
    assert (found.num_samples, found.num_copies, found.num_groups) == (16, 4, 3)
    assert (found.num_contradictions, found.num_across) == (1, {"train, val": 1})
    assert found.examples[0] == [Copy("train", "a/005", 0), Copy("train", "b/other", 1)]
    assert [Copy("train", "b/020", 1), Copy("val", "b/seen", 1)] in found.examples
    said = run("info", tmp_path / to, "--duplicates").out
    assert "  duplicates: 4 samples of 16 could be left out, copies of 3\n" in said
    assert "    in several splits (train, val): 1\n" in said
    assert "    with different class numbers: 1\n" in said
    assert "    train a/005 (class 0), train b/other (class 1)\n" in said


def test_no_duplicates(tmp_path: Path, run: Run) -> None:
    dataset = pack(pictures(*range(6)), tmp_path)
    assert shardkit.info(dataset).duplicates is None
    assert "duplicates: none" in run("info", dataset, "--duplicates").out
    assert "duplicates: " not in run("info", dataset).out


def test_duplicates_without_labels(tmp_path: Path) -> None:
    for number, text in enumerate(["one", "two", "one", "", "three", "", ""]):
        write(tmp_path / "source" / f"{number}.txt", text)
    shardkit.pack(tmp_path / "source", tmp_path / "out", to="lmdb", **SMALL)
    found = shardkit.info(tmp_path / "out", duplicates=True).duplicates
    assert found is not None
    assert (found.num_copies, found.num_groups, found.num_contradictions) == (3, 2, 0)
    assert Counter(len(group) for group in found.examples) == {2: 1, 3: 1}
    assert all(copy.label is None for group in found.examples for copy in group)


def test_labels_that_are_no_plain_digits_are_not_mixed_up(tmp_path: Path, run: Run) -> None:
    """They count as content, which is said."""
    for key, label in (("a", "7\n"), ("b", "8\n"), ("c", "7\n"), ("d", "word")):
        write(tmp_path / "source" / f"{key}.jpg", picture(3))
        write(tmp_path / "source" / f"{key}.cls", label)
    shardkit.pack(tmp_path / "source", tmp_path / "out", to="webdataset", **SMALL)
    found = shardkit.info(tmp_path / "out", duplicates=True).duplicates
    assert found is not None
    assert (found.num_copies, found.num_contradictions, found.num_unplain) == (1, 0, 4)
    assert [copy.key for copy in found.examples[0]] == ["a", "c"]
    said = run("info", tmp_path / "out", "--duplicates").out
    assert "4 class numbers not stored as plain digits count as content" in said
    for option in ("--open", "--system"):
        dataset = [tmp_path / "out"] if option == "--open" else []
        assert run("info", *dataset, option, "--duplicates").code == 2
