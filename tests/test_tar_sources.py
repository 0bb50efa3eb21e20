"""Tars of others by lists and patterns, compressed, and with class folders in them."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import signal
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from conftest import CONTAINERS, Run, make_images, picture, tree, write
from forked_workers import forked_workers, workers_for
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

import shardkit
from shardkit.errors import (
    CorpusError,
    DataError,
    DestinationError,
    FormatError,
    ResumeError,
    UsageError,
)
from shardkit.inputs.containers.tar_classes import classes_of
from shardkit.tars.patterns import expand, in_one_folder, is_pattern

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def tar_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def plain(number: int) -> bytes:
    members = {}
    for i in range(3):
        key = f"{number}{i}"
        members |= {f"{key}.jpg": picture(number * 3 + i), f"{key}.cls": b"%d" % i}
    return tar_of(members)


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    """``a-000000.tar`` to ``a-000003.tar``."""
    for number in range(4):
        write(tmp_path / "tars" / f"a-{number:06d}.tar", plain(number))
    return tmp_path / "tars"


# --- lists and patterns -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "numbers"),
    [
        ("a-{000000..000002}.tar", [0, 1, 2]),
        ("a-{000001,000003}.tar", [1, 3]),
        ("a-*.tar", [0, 1, 2, 3]),
        ("a-00000[12].tar", [1, 2]),
        ("a-00000?.tar", [0, 1, 2, 3]),
        ("{a-000000,a-00000[23]}.tar", [0, 2, 3]),
    ],
)
def test_patterns(tars: Path, pattern: str, numbers: list[int], tmp_path: Path) -> None:
    assert is_pattern(tars / pattern)
    folder, names = expand(tars / pattern)
    assert (folder, names) == (tars, [f"a-{number:06d}.tar" for number in numbers])
    keys = [f"{number}{i}" for number in numbers for i in range(3)]
    assert shardkit.open(tars / pattern).keys() == keys
    with forked_workers():
        shardkit.convert(str(tars / pattern), tmp_path / "out", to="npy", workers=1)
    assert shardkit.open(tmp_path / "out").keys() == keys
    assert shardkit.verify(tmp_path / "out").ok


def test_a_list_is_as_good_as_a_pattern(tars: Path, tmp_path: Path) -> None:
    some = [tars / "a-000002.tar", str(tars / "a-000000.tar")]
    shardkit.convert(some, tmp_path / "one", to="lmdb", workers=2)
    shardkit.convert(tars / "a-{000000,000002}.tar", tmp_path / "two", to="lmdb", **OPTIONS)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert shardkit.convert(some, tmp_path / "one", to="lmdb", **OPTIONS).was_complete
    alone = shardkit.convert([tars / "a-000001.tar"], tmp_path / "three", to="npy", **OPTIONS)
    assert alone.num_samples == 3


def test_the_shell_writes_patterns_out(tars: Path, run: Run) -> None:
    words = [f"tars/a-{number:06d}.tar" for number in range(3)]
    to_npy = ("--to", "npy", "--workers", 0)
    got = run("convert", *words, "out", *to_npy)
    assert got.code == 0 and "converted 9 samples" in got.out and "/out\n" in got.out
    got = run("convert", *words, *to_npy)
    assert got.code == 0 and got.out.splitlines()[0].endswith("/a-npy")
    got = run("convert", "tars/a-{000000..000001}.tar", *to_npy, "--overwrite")
    assert got.code == 0 and got.out.splitlines()[0].endswith("/a-npy")
    code, _, err = run("convert", "pictures", "out", "more", "--to", "npy")
    assert code == 2 and "Got unexpected extra argument" in err
    code, _, err = run("convert", words[0], words[1], "x", "y", "--to", "npy")
    assert code == 2 and "Got unexpected extra argument" in err


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("a-{000002..000005}.tar", r"a-000004\.tar is not there; .*names it"),
        ("b-*.tar", r"b-\*\.tar is not there"),
        ("a-{000000..000002.tar", "its braces do not match|is not there"),
        ("a-{0..99999999}.tar", "stands for over 100,000 names"),
        ("a-{0..99999999..1000}.tar", "is not there"),
        ("a-{0..999}{0..999}.tar", "stands for over 100,000 names"),
        ("a-{000000,000000}.tar", r"names a-000000\.tar twice"),
        ("no/such{1,2}.tar", r"there is no folder .*no; patterns may stand in the names of tars"),
    ],
)
def test_patterns_that_are_refused(tars: Path, pattern: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        shardkit.open(tars / pattern)


def test_lists_that_are_refused(tars: Path, tmp_path: Path) -> None:
    write(tmp_path / "other" / "b.tar", plain(9))
    with pytest.raises(UsageError, match="a list of tars of one folder is expected, got"):
        in_one_folder([tars / "a-000000.tar", tmp_path / "other" / "b.tar"])
    with pytest.raises(UsageError, match=r"b\.tar is no file; a list may hold tars alone"):
        in_one_folder([tars / "b.tar"])
    with pytest.raises(UsageError, match=r"the list names a-000000\.tar twice"):
        in_one_folder([tars / "a-000000.tar", tars / "a-*.tar"])
    with pytest.raises(UsageError, match="got nothing"):
        shardkit.convert([], tmp_path / "out", to="npy")


def test_names_that_only_look_like_patterns(tmp_path: Path) -> None:
    path = write(tmp_path / "x[1]{2}.tar", plain(1))
    assert not is_pattern(path)
    assert len(shardkit.open(path)) == 3


# --- compressed ---------------------------------------------------------------------------


def compress(name: str, data: bytes) -> bytes:
    if name.endswith(("zst", "zstd")):
        return zstandard.ZstdCompressor().compress(data)
    return gzip.compress(data, mtime=0)


NUM_WORKERS = {"lmdb": 0, "hdf5": 1, "webdataset": 0, "npy": 2}
"""How a tar is read does not depend on what is made of it, and processes take time to start."""


@pytest.mark.parametrize("to", CONTAINERS)
@pytest.mark.parametrize("ending", ["tar.gz", "tgz", "tar.zst", "tzst"])
def test_compressed_tars(ending: str, to: str, tars: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    for number in range(4):
        name = f"a-{number:06d}.{ending}" if number else "a-000000.tar"
        data = (tars / f"a-{number:06d}.tar").read_bytes()
        write(packed / name, compress(name, data) if number else data)
    with workers_for(to):
        shardkit.convert(packed, tmp_path / "one", to=to, workers=NUM_WORKERS[to])
    shardkit.convert(tars, tmp_path / "two", to=to, **OPTIONS)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert sorted(path.name for path in packed.iterdir()) == sorted(tree(packed))
    assert shardkit.convert(packed, tmp_path / "one", to=to, **OPTIONS).was_complete
    shardkit.unpack(tmp_path / "one", tmp_path / "back")
    assert len(tree(tmp_path / "back")) == 24


def test_one_compressed_tar_and_a_pattern_of_them(tars: Path, tmp_path: Path) -> None:
    for number in range(3):
        data = (tars / f"a-{number:06d}.tar").read_bytes()
        write(tmp_path / f"p-{number}.tar.gz", gzip.compress(data))
    one = shardkit.convert(tmp_path / "p-1.tar.gz", tmp_path / "one", to="npy", **OPTIONS)
    assert one.num_samples == 3
    some = shardkit.convert(tmp_path / "p-{0..2}.tar.gz", tmp_path / "some", to="npy", **OPTIONS)
    assert some.num_samples == 9


def test_a_started_convert_refuses_other_tars(
    tars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.tar.gz", gzip.compress(plain(0), mtime=0))
    with monkeypatch.context() as patch:
        patch.setattr("shardkit.packing.conclude.assemble", None)
        with pytest.raises(TypeError):
            shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)
    write(path, gzip.compress(plain(1), mtime=0))
    with pytest.raises(ResumeError, match=r"x\.tar\.gz is another file"):
        shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)


def test_damaged_and_odd_compression(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar.gz", gzip.compress(plain(0))[:-20])
    with pytest.raises(FormatError, match=r"x\.tar\.gz is damaged: .*; fetch or compress it"):
        shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)
    path = write(tmp_path / "y.tar.bz2", bz2.compress(plain(0)))
    with pytest.raises(CorpusError, match=r"y\.tar\.bz2: only .tar.gz and .tar.zst are"):
        shardkit.convert(path, tmp_path / "out2", to="npy", **OPTIONS)
    write(tmp_path / "both" / "a.tar", plain(0))
    write(tmp_path / "both" / "a.tar.gz", gzip.compress(plain(0)))
    with pytest.raises(CorpusError, match=r"holds a\.tar twice, compressed and not"):
        shardkit.convert(tmp_path / "both", tmp_path / "out3", to="npy", **OPTIONS)
    with pytest.raises(UsageError, match=r"gunzip.*; `shardkit convert` takes it as it is"):
        shardkit.open(tmp_path / "x.tar.gz")


@pytest.mark.parametrize("ending", ["tar.gz", "tar.zst", "tar"])
@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tzst"])
def test_what_a_tar_is_compressed_by_is_told_by_its_bytes(
    name: str, ending: str, tmp_path: Path
) -> None:
    data = plain(0) if ending == "tar" else compress(f"x.{ending}", plain(0))
    path = write(tmp_path / "in" / name, data)
    for number, source in enumerate((path, path.parent)):
        out = tmp_path / f"out{number}"
        assert shardkit.convert(source, out, to="npy", **OPTIONS).num_samples == 3
        assert shardkit.verify(out, against=source).ok


@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_tars_in_folders_of_splits(ending: str, tmp_path: Path, run: Run) -> None:
    for number, split in enumerate(("train", "val2017")):
        data = plain(number)
        write(
            tmp_path / "in" / split / f"000.{ending}",
            data if ending == "tar" else compress(f"x.{ending}", data),
        )
    write(tmp_path / "in" / "train" / "000_stats.json", "{}")
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2 and err.endswith("in is a folder of tar files; use: shardkit convert\n")
    result = shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert result.splits == {"train": 3, "val": 3} and result.ignored == {".json": 1}
    assert shardkit.open(tmp_path / "out", split="val").keys() == ["10", "11", "12"]
    assert shardkit.verify(tmp_path / "out", against=tmp_path / "in").ok
    assert shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS).was_complete
    if ending == "tar":
        opened = shardkit.open(tmp_path / "in", split="val")
        assert opened.keys() == ["10", "11", "12"]
        write(tmp_path / "in" / "val2017" / "000.tar", plain(2))
        with pytest.raises(DestinationError, match=r"others now: sample .20."):
            shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)


def test_tars_in_folders_that_are_no_splits(tmp_path: Path, run: Run) -> None:
    for name in ("a", "b"):
        write(tmp_path / "in" / name / "000.tar", plain(0))
    code, _, err = run("pack", "in", "out", "--to", "npy")
    assert code == 2 and "in holds tars in a, b: pass each to shardkit convert by itself" in err


def test_keys_that_repeat_in_compressed_tars(tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        write(tmp_path / "in" / name, gzip.compress(plain(0)))
    with pytest.raises(DataError, match="two samples"):
        shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)


def test_a_tar_of_a_list_that_is_not_there(tars: Path, run: Run) -> None:
    code, _, err = run("convert", str(tars / "a-000000.tar"), "gone.tar", "out", "--to", "npy")
    assert code == 2 and "gone.tar is not there" in err


# --- class folders ------------------------------------------------------------------------


@pytest.mark.parametrize("to", CONTAINERS)
@pytest.mark.parametrize("top", ["", "./", "imagenet/train/"])
def test_class_folders_in_tars(top: str, to: str, tmp_path: Path) -> None:
    """As the folder itself is packed."""
    source = make_images(tmp_path / "source", per_class=4)
    files = {name.replace("img.", "img-"): data for name, data in tree(source).items()}
    parts = [dict(part) for part in ([*files.items()][::2], [*files.items()][1::2])]
    for number, part in enumerate(parts):
        members = {f"{top}{name.replace('.jpg', '.JPEG')}": data for name, data in part.items()}
        write(tmp_path / "tars" / f"{number}.tar", tar_of(members))
    options = {"to": to, "workers": NUM_WORKERS[to]}
    with workers_for(to):
        result = shardkit.convert(tmp_path / "tars", tmp_path / "out", **options)
    assert result.notes == ["cls is of 3 classes, the folders in the tars: class0, class1, class2"]
    ds = shardkit.open(tmp_path / "out")
    assert ds.fields == ["cls", "jpg"] and ds.info.classes == ["class0", "class1", "class2"]
    for sample in ds:
        name = sample["__key__"].removeprefix("" if top == "./" else top)
        assert bytes(sample["jpg"]) == files[f"{name}.jpg"]
        assert sample["cls"] == int(name[len("class")])
    assert shardkit.verify(tmp_path / "out").ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    assert len(tree(tmp_path / "back")) == 12
    write(tmp_path / "gz" / "x.tar.gz", gzip.compress((tmp_path / "tars/0.tar").read_bytes()))
    with forked_workers():
        packed = shardkit.convert(tmp_path / "gz", tmp_path / "again", **options)
    assert shardkit.open(tmp_path / "again").info.classes == ds.info.classes
    assert packed.notes == result.notes


def test_a_tar_of_a_folder_has_its_keys(tmp_path: Path) -> None:
    """``tar cf x.tar .`` puts ``./`` before all; where tars are read as they are it stays, since
    WebDataset has it in ``__key__``."""
    source = tmp_path / "source"
    for i in range(4):
        write(source / ["cat", "dog"][i % 2] / f"{i}.jpg", picture(i))
    write(tmp_path / "x.tar", tar_of({f"./{name}": data for name, data in tree(source).items()}))
    shardkit.pack(source, tmp_path / "one", to="npy", **OPTIONS)
    shardkit.convert(tmp_path / "x.tar", tmp_path / "other", to="npy", **OPTIONS)
    one, other = (shardkit.open(tmp_path / name) for name in ("one", "other"))
    assert {*one.keys()} == {*other.keys()} and one.classes == other.classes
    assert shardkit.verify(tmp_path / "other", against=tmp_path / "x.tar").ok
    shardkit.unpack(tmp_path / "other", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    theirs = [base_plus_ext(f"./{name}")[0] for name in sorted(tree(source))]
    assert sorted(shardkit.open(tmp_path / "x.tar").keys()) == theirs


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"a/1.jpg": b"1", "a/1.cls": b"0", "b/2.jpg": b"2", "b/2.cls": b"1"}, ""),
        (
            {"a/1.jpg": b"1", "2.jpg": b"2"},
            "some pictures lie in folders (a), and some beside them",
        ),
        ({"a/1.jpg": b"1", "a/2.jpg": b"2"}, "the tars hold pictures in no class folders"),
        ({"1.jpg": b"1"}, "the tars hold pictures in no class folders"),
        ({"a/1.jpg": b"1", "a/1.txt": b"2"}, ""),
        (
            {"a/1.jpg": b"1", "b/2.txt": b"2"},
            "folders in the tars (a, b) are a part of keys alone, as some samples are no single"
            " picture (txt)",
        ),
        (
            {"train/1.jpg": b"1", "val/2.jpg": b"2"},
            "the folders in the tars are splits (train, val)",
        ),
        (
            {"a/1.jpg": b"1", "a/1.png": b"2", "b/2.jpg": b"3", "c/3.jpg": b"3"},
            "folders in the tars (a, b, c) are a part of keys alone, as some samples are no single"
            " picture (jpg, png)",
        ),
    ],
)
def test_folders_that_tell_no_class(members: dict[str, bytes], said: str, tmp_path: Path) -> None:
    """What one might have expected is said not to be."""
    path = write(tmp_path / "x.tar", tar_of(members))
    result = shardkit.convert(path, tmp_path / "out", to="npy", **OPTIONS)
    assert [note[: 8 + len(said)] for note in result.notes] == [f"no cls: {said}"] * bool(said)
    assert shardkit.open(tmp_path / "out").info.classes is None
    packed = write(tmp_path / "x.tar.gz", gzip.compress(tar_of(members)))
    again = shardkit.convert(packed, tmp_path / "again", to="npy", **OPTIONS)
    assert again.notes == result.notes


@pytest.mark.parametrize("second", ["cls", "txt", "json"])
def test_splits_in_a_tar_are_named_whatever_it_holds(second: str, tmp_path: Path) -> None:
    pairs = {
        f"{s}/{i}.{end}": b"1" for s in ("train", "val") for i in "12" for end in (second, "a")
    }
    result = shardkit.convert(
        write(tmp_path / "x.tar", tar_of(pairs)), tmp_path / "out", to="npy", **OPTIONS
    )
    assert "the folders in the tars are splits (train, val), and a tar is of" in result.notes[0]
    for split in ("train", "val"):
        own = {name: data for name, data in pairs.items() if name.startswith(split)}
        write(tmp_path / "in" / f"{split}.tar", tar_of(own))
    result = shardkit.convert(tmp_path / "in", tmp_path / "two", to="npy", **OPTIONS)
    assert {*result.splits} == {"train", "val"} and not any("splits" in n for n in result.notes)


def test_each_tar_may_be_a_class(tmp_path: Path) -> None:
    """ImageNet's training set, its outer tar unpacked: nothing is guessed, but it is said."""
    for name in ("n01", "n02"):
        write(tmp_path / "in" / f"{name}.tar", tar_of({f"{name}_1.JPEG": picture(1)}))
    result = shardkit.convert(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert "if each tar is a class, unpack each into a folder of its name" in result.notes[0]


@pytest.mark.parametrize("to", ["npy", "parquet"])
def test_a_tar_of_tars_is_refused(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ImageNet's training set as it comes; the commands that are said make the folder of it."""
    inner = {
        f"{n}.tar": tar_of({f"{n}_{i}.JPEG": picture(int(i)) for i in "12"}) for n in ("n01", "n02")
    }
    source = write(tmp_path / "outer.tar", tar_of(inner))
    with pytest.raises(CorpusError, match="holds tars, not samples: unpack it") as caught:
        shardkit.convert(source, tmp_path / "out", to=to, **OPTIONS)
    monkeypatch.chdir(tmp_path)
    commands = str(caught.value).partition("pack the folder: ")[2]
    subprocess.run(["sh", "-e", "-c", commands.replace(str(source), "outer.tar")], check=True)
    packed = shardkit.pack("all", "packed", to="npy", **OPTIONS)
    assert packed.num_samples == 4 and shardkit.open("packed").info.classes == ["n01", "n02"]


def test_a_readme_among_class_folders(tmp_path: Path) -> None:
    """As ``tar cf x.tar folder`` has it; what belongs to no sample is counted."""
    members = {f"top/{name}/{i}.png": picture(i, kind="PNG") for name in "ab" for i in range(3)}
    others = {"top/README.md": b"r", "top/LICENSE": b"l", "top/a/._0.png": b"m", "top/b/0": b"x"}
    for name, data in (("x.tar", tar_of(members | others)), ("y.tar", tar_of(members))):
        write(tmp_path / name, data)
    with forked_workers():
        result = shardkit.convert(tmp_path / "x.tar", tmp_path / "out", to="npy", workers=2)
    assert (result.num_samples, result.ignored) == (6, {".md": 1, "": 2, "hidden": 1})
    shardkit.convert(tmp_path / "y.tar", tmp_path / "same", to="npy", **OPTIONS)
    ds, same = shardkit.open(tmp_path / "out"), shardkit.open(tmp_path / "same")
    assert ds.info.classes == ["a", "b"] and "passed" not in ds.info.provenance.spec
    assert [s["cls"] for s in ds] == [s["cls"] for s in same] == [0, 0, 0, 1, 1, 1]
    packed = write(tmp_path / "x.tar.gz", gzip.compress(tar_of(members | others)))
    again = shardkit.convert(packed, tmp_path / "again", to="npy", **OPTIONS)
    assert again.ignored == result.ignored


@pytest.mark.parametrize("packed", [False, True])
def test_verified_against_the_tars(packed: bool, tmp_path: Path) -> None:
    members = {f"{name}/{i}.jpg": picture(i) for name in "ab" for i in range(3)}
    ending = ".tar.gz" if packed else ".tar"
    pack = gzip.compress if packed else bytes
    write(tmp_path / "in" / f"x{ending}", pack(tar_of(members)))
    shardkit.convert(tmp_path / "in", tmp_path / "out", to="lmdb", **OPTIONS)
    for source in (tmp_path / "in", tmp_path / "in" / f"x{ending}", tmp_path / "in" / "*.tar*"):
        checked = shardkit.verify(tmp_path / "out", against=source)
        assert checked.ok and checked.num_compared == 6
    members["b/2.jpg"] = picture(9)
    write(tmp_path / "in" / f"x{ending}", pack(tar_of(members | {"c/9.jpg": picture(1)})))
    checked = shardkit.verify(tmp_path / "out", against=tmp_path / "in")
    assert len(checked.problems) == 3 and checked.num_compared == 6
    for said in ("differs from the original", "names of classes", "is not in the dataset"):
        assert said in str(checked.problems)


@pytest.mark.parametrize("form", ["classes", "gz", "rows"])
def test_no_export_loses_labels(form: str, tmp_path: Path) -> None:
    """Files of other tools are made of datasets, which tars of class folders are not yet."""
    members = {f"{name}/{i}.jpg": picture(i) for name in "ab" for i in range(3)}
    source = {
        "classes": lambda: write(tmp_path / "x.tar", tar_of(members)),
        "gz": lambda: write(tmp_path / "x.tar.gz", gzip.compress(tar_of(members))),
        "rows": lambda: write(tmp_path / "x.npz", b""),
    }[form]()
    with pytest.raises(UsageError, match="convert it to npy first, and that to parquet"):
        shardkit.convert(source, tmp_path / "out", to="parquet", **OPTIONS)


PARTS = st.lists(st.sampled_from([b"a", b"b", b"train"]), max_size=3).map(tuple)


@given(st.sets(PARTS, max_size=6))
def test_classes_of(folders: set[tuple[bytes, ...]]) -> None:
    found = classes_of(folders)
    if found is None:
        return
    assert len(found.names) > 1 and [*found.names] == sorted(set(found.names))
    for each in folders:
        assert each[: len(found.shared)] == found.shared
        assert each[len(found.shared)] in found.names


@pytest.mark.parametrize("how", ["nothing", "a FIFO", "a device", "a socket"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_tar_that_is_no_file_is_not_passed_over(
    how: str, number: int, tmp_path: Path, run: Run
) -> None:
    """As of a link to what was not fetched: the others alone would be a shorter dataset."""
    source = make_images(tmp_path / "source", per_class=4)
    shardkit.pack(source, tmp_path / "packed", to="webdataset", shard_size="2kB", workers=0)
    tars = sorted((tmp_path / "packed").glob("*.tar"))
    assert len(tars) > 1
    for tar in tars:
        write(tmp_path / "tars" / tar.name, tar.read_bytes())
    path = tmp_path / "tars" / tars[number].name
    path.unlink()
    if how == "a FIFO":
        os.mkfifo(path)
    elif how == "a socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(os.path.relpath(path))
    else:
        path.symlink_to(tmp_path / "gone" if how == "nothing" else "/dev/zero")
    signal.alarm(60)
    for line in (["info"], ["verify"], ["convert", "--to", "npy", "--workers", "0"]):
        out = [tmp_path / "out"] if line[0] == "convert" else []
        ran = run(line[0], tmp_path / "tars", *out, *line[1:])
        assert ran.code in (1, 2) and path.name in ran.err and "Traceback" not in ran.err
        assert ran.err.count("\n") == 1
    signal.alarm(0)
    assert not (tmp_path / "out").exists()
