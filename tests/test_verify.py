"""``verify`` says what is broken, and nothing else; ``--against`` says what differs."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import (
    CONTAINERS,
    flip,
    make_images,
    make_jsonl,
    make_pairs,
    make_texts,
    picture,
    tree,
    write,
)

import shardkit
from shardkit.errors import CorpusError, DatasetMissingError, IndexFileError, UsageError
from shardkit.index.manifest import read_info
from shardkit.operations.file_damage import regions
from shardkit.operations.verify import Problem, VerifyResult
from shardkit.shards.stored import ShardReader
from shardkit.storage.local_files import Folder
from shardkit.system.file_io import BLOCK_BYTES, pread

OPTIONS = {"shard_size": "3kB", "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``{container}``: a small good dataset of each; ``source``: what they were packed from."""
    root = tmp_path_factory.mktemp("originals")
    source = make_pairs(root / "source")
    for container in CONTAINERS:
        shardkit.pack(source, root / container, to=container, **OPTIONS)
    return root


@pytest.fixture
def dataset(originals: Path, tmp_path: Path, container: str) -> Path:
    return shutil.copytree(originals / container, tmp_path / "dataset")


def said(result: VerifyResult) -> list[str]:
    return [str(problem) for problem in result.problems]


def place(folder: Path, row: int, field: str) -> tuple[Path, int, int]:
    """(file, start, size) of a value."""
    info = read_info(folder)
    reader = ShardReader(Folder(folder), info, info.splits["train"])
    batch = reader.gather(np.array([row]))
    (start,), (size,) = reader.places(batch, field)
    return folder / reader.file_of(int(batch.shards[0]), field), int(start), int(size)


# --- one flipped bit ----------------------------------------------------------------------


@pytest.mark.parametrize("field", ["jpg", "cls", "txt", "json", "feat.npy"])
def test_a_flipped_bit_in_a_value_names_its_sample_alone(dataset: Path, field: str) -> None:
    # row: 11 has no json and no array, 0 no text, and the array of 0 is empty.
    row = {"txt": 11, "json": 8, "feat.npy": 5}.get(field, 0)
    path, start, size = place(dataset, row, field)
    flip(path, start + size - 1)
    (problem,) = shardkit.verify(dataset).problems
    key = shardkit.open(dataset).keys([row])[0]
    shard = int(path.name[6:11])
    assert problem == Problem(
        f"sample {key!r} (row {row}, train-{shard:05d})",
        "its bytes differ from those packed",
        "train",
        shard,
        key,
    )


def test_every_byte_of_a_shard_is_watched(dataset: Path) -> None:
    """A bit flipped anywhere is told as one sample or one region, and both are right."""
    info = read_info(dataset)
    reader = ShardReader(Folder(dataset), info, info.splits["train"])
    stop = info.splits["train"].shards[0].num_rows
    names = sorted(info.splits["train"].shards[0].file_bytes)
    for name in names:
        good = (dataset / name).read_bytes()
        owner = np.full(len(good), -1)
        for field in info.fields:
            if reader.file_of(0, field) == name:
                batch = reader.gather(np.arange(stop))
                for row, start, size in zip(range(stop), *reader.places(batch, field), strict=True):
                    owner[start : start + max(size, 0)] = row
        for at in {*range(0, len(good), len(good) // 40 + 1), len(good) - 1}:
            flip(dataset / name, at, 0x10)
            (problem,) = shardkit.verify(dataset).problems
            assert problem.shard == 0
            if owner[at] < 0:
                region = f"damage that changes no sample, in bytes 0 to {len(good) - 1}"
                assert str(problem) == f"{name}: {region}"
            else:
                assert problem.where == reader.where(int(owner[at]))
            (dataset / name).write_bytes(good)
    assert shardkit.verify(dataset).ok


@pytest.mark.parametrize("values", ["zeros", "a ramp", "noise"])
def test_every_bit_of_a_deflated_value_is_reported(values: str, tmp_path: Path) -> None:
    """A bit that changes the value names its sample; any other names the file and the bytes."""
    for i in range(3):
        noise = np.random.default_rng(i).integers(0, 256, 600, np.uint8)
        array = {"zeros": noise * 0, "a ramp": np.arange(600, dtype="<u2"), "noise": noise}[values]
        np.save(write(tmp_path / "in" / f"{i}.npy", b""), array)
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="hdf5", compression=5, workers=0)
    path, start, size = place(tmp_path / "out", 1, "npy")
    region = f"{path.name}: damage that changes no sample, in bytes 0 to {path.stat().st_size - 1}"
    regions = 0
    for at in [*range(6), *range(size // 2, size // 2 + 4), *range(size - 6, size)]:
        for bit in range(8):
            flip(path, start + at, 1 << bit)
            (problem,) = shardkit.verify(tmp_path / "out", progress=False).problems
            assert problem.key == "1" or str(problem) == region, (at, bit, problem)
            regions += not problem.key
            flip(path, start + at, 1 << bit)
    assert regions


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks of 64 bytes, so that small files have many."""
    for module in ("system.file_io", "operations.file_damage", "operations.split_check"):
        monkeypatch.setattr(f"shardkit.{module}.BLOCK_BYTES", 64)
    return 64


def test_regions_are_the_broken_blocks(container: str, tmp_path: Path, small_blocks: int) -> None:
    """Those that a broken sample explains are not told again; neighbours are told as one."""
    source = make_pairs(tmp_path / "in")
    folder = tmp_path / "out"
    shardkit.pack(source, folder, to=container, **OPTIONS)
    info = read_info(folder)
    reader = ShardReader(Folder(folder), info, info.splits["train"])
    path = place(folder, 0, "jpg")[0]
    owners = np.zeros(-(-path.stat().st_size // small_blocks), int)
    for field in reader.fields_in(reader.gather(np.array([0])), path.name):
        for row in range(info.splits["train"].shards[0].num_rows):
            _, start, size = place(folder, row, field)
            if size > 0:
                owners[start // small_blocks : (start + size - 1) // small_blocks + 1] += 1
    free = np.flatnonzero(owners == 0).tolist()
    _, start, size = place(folder, 0, "jpg")
    flip(path, start + size // 2)
    assert [p.key for p in shardkit.verify(folder).problems] == ["0000"]
    assert free, "some block holds no sample's bytes"
    for block in free:
        flip(path, block * small_blocks)
    told = [
        f"{path.name}: damage that changes no sample, in bytes {first} to {last}"
        for first, last in regions(free, path.stat().st_size)
    ]
    assert said(shardkit.verify(folder))[1:] == told


def test_regions_join_neighbours() -> None:
    block = BLOCK_BYTES
    assert list(regions([2], 9 * block)) == [(2 * block, 3 * block - 1)]
    two = [(0, 2 * block - 1), (3 * block, 3 * block + 4)]
    assert list(regions([0, 1, 3], 3 * block + 5)) == two


# --- the index ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "lost"),
    [
        ("rows", "no sample of this split could be checked"),
        ("names", "no sample of this split could be checked"),
        ("find", "samples may not be found by key"),
        ("sums", "only samples could be checked, not what lies around them"),
    ],
)
def test_a_flipped_bit_in_the_index(dataset: Path, kind: str, lost: str) -> None:
    name = f"train.{kind}"
    size = (dataset / name).stat().st_size
    checks_samples = kind in ("find", "sums")
    for at in (0, size // 2, size - 1):
        flip(dataset / name, at)
        result = shardkit.verify(dataset)
        assert said(result) == [f"{name}: its bytes differ from those written; {lost}"]
        assert result.num_samples == (13 if checks_samples else 0)
        flip(dataset / name, at)
    os.truncate(dataset / name, size - 1)
    result = shardkit.verify(dataset)
    assert said(result) == [f"{name}: has {size - 1} bytes, expected {size}; {lost}"]
    (dataset / name).unlink()
    assert said(shardkit.verify(dataset)) == [f"{name}: is missing; {lost}"]


@pytest.mark.parametrize("kind", ["rows", "names", "find", "sums"])
def test_damage_beside_a_damaged_index(dataset: Path, source: Path, kind: str) -> None:
    """Whatever can still be checked is."""
    path, start, _ = place(dataset, 0, "jpg")
    flip(path, start + 20)
    flip(dataset / f"train.{kind}", 3)
    told = said(shardkit.verify(dataset, against=source))
    assert len(told) == 2 and told[0].startswith(f"train.{kind}: its bytes differ")
    if kind in ("rows", "names"):
        assert told[1] == f"{path.name}: damage in bytes 0 to {path.stat().st_size - 1}"
    else:
        assert told[1] == "sample '0000' (row 0, train-00000): its bytes differ from those packed"


def test_every_byte_of_shardkit_json_is_watched(dataset: Path) -> None:
    path = dataset / "shardkit.json"
    good = path.read_bytes()
    outcomes = set()
    for at in range(0, len(good), 7):
        flip(path, at)
        try:
            told = said(shardkit.verify(dataset))
        except IndexFileError:
            outcomes.add("refused")
        else:
            what = "its bytes differ from those written; nothing else can be checked"
            assert told == [f"shardkit.json: {what}"]
            outcomes.add("told")
        path.write_bytes(good)
    assert outcomes == {"refused", "told"}


@pytest.mark.parametrize("lost", [[], ["train.rows"], ["train.find", "train.names", "train.sums"]])
def test_a_lost_shardkit_json(dataset: Path, tmp_path: Path, lost: list[str]) -> None:
    """Tars must not pass for others', which have no checksums: damaged, they would be whole."""
    for name in ["shardkit.json", *lost]:
        (dataset / name).unlink()
    said = r"has lost its shardkit\.json: it holds shards and train\..*; restore that file"
    for use in (
        shardkit.verify,
        shardkit.open,
        shardkit.info,
        lambda path: shardkit.unpack(path, tmp_path / "unpacked"),
        lambda path: shardkit.convert(path, tmp_path / "converted", to="npy"),
        lambda path: shardkit.pack(path, tmp_path / "packed", to="npy"),
        lambda path: shardkit.stage(path, tmp_path / "staged"),
        shardkit.dali.write_index,
    ):
        with pytest.raises(DatasetMissingError, match=said):
            use(dataset)
    for shard in dataset.glob("*.tar"):
        with pytest.raises(DatasetMissingError, match=said):
            shardkit.verify(shard)


def test_one_shard_of_a_dataset(originals: Path, tmp_path: Path) -> None:
    dataset = shutil.copytree(originals / "webdataset", tmp_path / "dataset")
    with pytest.raises(DatasetMissingError, match=rf"is a shard of a dataset.*give .*{dataset}"):
        shardkit.verify(dataset / "train-00000.tar")
    for name in ("shardkit.json", "train.rows", "train.find", "train.sums"):
        (dataset / name).unlink()
    (dataset / "train.names").rename(dataset / "coco.names")  # of another's, as far as one can tell
    assert not shardkit.verify(dataset).has_checksums


# --- whole files --------------------------------------------------------------------------


def shard_file(dataset: Path, number: int) -> Path:
    """The file of a shard that holds its pictures."""
    found = [p for p in dataset.glob(f"train-{number:05d}.*") if ".npy" not in p.name]
    return found[0] if found else dataset / f"train-{number:05d}.jpg.npy"


def test_lost_shards(dataset: Path) -> None:
    rows = [shard.num_rows for shard in read_info(dataset).splits["train"].shards]
    path = shard_file(dataset, 1)
    good = path.read_bytes()
    unchecked = f"; its {rows[1]} samples were not checked"
    for spoil, what in [
        (path.unlink, "is missing"),
        (lambda: path.write_bytes(b""), f"has 0 bytes, expected {len(good)}"),
        (lambda: path.write_bytes(good[:-1]), f"has {len(good) - 1} bytes, expected {len(good)}"),
        (lambda: path.write_bytes(good[:99]), f"has 99 bytes, expected {len(good)}"),
        (lambda: path.write_bytes(good + b"x"), f"has {len(good) + 1} bytes, expected {len(good)}"),
    ]:
        spoil()
        result = shardkit.verify(dataset)
        assert result.problems == [Problem(path.name, what + unchecked, "train", 1)]
        assert result.num_samples == sum(rows) - rows[1]
        path.write_bytes(good)
    path.unlink()
    path.mkdir()
    assert said(shardkit.verify(dataset)) == [f"{path.name}: is no regular file{unchecked}"]


def test_a_disk_that_cannot_read(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shard_file(dataset, 1)

    def failing(fd: int, size: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == path.stat().st_ino:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    monkeypatch.setattr("shardkit.storage.local_files.pread", failing)
    (line,) = said(shardkit.verify(dataset))
    assert line.startswith(f"{path.name}: cannot be read: Input/output error; its ")


def test_swapped_shards(dataset: Path) -> None:
    """Of one size or not, both names are said, and not each sample in them."""
    info = read_info(dataset).splits["train"]
    one, two = shard_file(dataset, 0), shard_file(dataset, 1)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert said(shardkit.verify(dataset)) == [
        f"{a.name}: holds what belongs in {b.name}: swapped, or copied over it;"
        f" its {info.shards[i].num_rows} samples were not checked"
        for i, (a, b) in enumerate([(one, two), (two, one)])
    ]
    two.write_bytes(second)
    (problem,) = shardkit.verify(dataset).problems
    assert problem.where == one.name and two.name in problem.what


def test_swapped_between_splits(tmp_path: Path, container: str) -> None:
    for split in ("train", "val"):
        make_images(tmp_path / "in" / split, per_class=3 if split == "train" else 2)
    shardkit.pack(tmp_path / "in", tmp_path / "out", to=container, workers=0)
    one = shard_file(tmp_path / "out", 0)
    two = one.with_name(one.name.replace("train", "val"))
    shutil.copy(two, one)
    (problem,) = shardkit.verify(tmp_path / "out").problems
    assert problem.where == one.name and f"holds what belongs in {two.name}" in problem.what
    (tmp_path / "out" / "val.sums").unlink()
    lost, *others = shardkit.verify(tmp_path / "out", against=tmp_path / "in").problems
    assert lost.where == "val.sums"
    assert {(problem.split, problem.shard) for problem in others} == {("train", 0)}


def test_other_files_are_nobodys_business(dataset: Path) -> None:
    for name in ("README", "train-00099.txt", "coco.names", "x.tar", "sub/train-00099.tar"):
        write(dataset / name, "mine")
    assert shardkit.verify(dataset).ok


def test_files_that_pass_for_ours(dataset: Path, source: Path) -> None:
    """``train-*.tar`` would read them; all else is checked and compared all the same."""
    names = ["test.rows", "train-00000.png.npy", "train-00099.tar", "val-00000.lmdb"]
    for name in names:
        write(dataset / name, "stray")
    what = "looks like a part of this dataset and is not listed in it; remove or rename it"
    result = shardkit.verify(dataset, against=source)
    assert result.problems == [Problem(name, what) for name in names]
    assert result.num_compared == result.num_samples == 13


# --- tars made by others ------------------------------------------------------------------


def test_tars_of_others_have_no_checksums(originals: Path, tmp_path: Path) -> None:
    for tar in (originals / "webdataset").glob("*.tar"):
        write(tmp_path / "tars" / tar.name, tar.read_bytes())
    result = shardkit.verify(tmp_path / "tars")
    assert result.ok and not result.has_checksums
    with pytest.raises(UsageError, match="carry no checksums"):
        shardkit.open(tmp_path / "tars", verify=True)
    with pytest.raises(CorpusError, match=r"was made of tars, and .*source is none: nothing to"):
        shardkit.verify(tmp_path / "tars", against=originals / "source")
    assert shardkit.verify(tmp_path / "tars", against=tmp_path / "tars").is_compared


# --- against ------------------------------------------------------------------------------


@pytest.fixture
def source(originals: Path, tmp_path: Path) -> Path:
    return shutil.copytree(originals / "source", tmp_path / "source")


def at(folder: Path, row: int) -> str:
    """How a sample is named."""
    shard = place(folder, row, "jpg")[0].name[:11]
    return f"sample {shardkit.open(folder).keys([row])[0]!r} (row {row}, {shard})"


def test_changed_originals(dataset: Path, source: Path) -> None:
    write(source / "0002.txt", "another caption")
    write(source / "0004.cls", b"7\n")
    (source / "0005.feat.npy").unlink()
    write(source / "0006.json", "{}")
    assert said(shardkit.verify(dataset, against=source)) == [
        f"{at(dataset, 2)}: its txt differs from the original",
        f"{at(dataset, 4)}: its cls differs from the original",
        f"{at(dataset, 5)}: its feat.npy has no original",
        f"{at(dataset, 6)}: its json is not in the dataset",
    ]


def test_missing_and_additional_originals(dataset: Path, source: Path) -> None:
    for path in source.glob("0007.*"):
        path.unlink()
    write(source / "sub" / "new.jpg", picture(3))
    (source / "0000.jpg").rename(source / "0000.JPEG")
    assert said(shardkit.verify(dataset, against=source)) == [
        f"{at(dataset, 0)}: its jpg was packed from 0000.jpg, not 0000.JPEG",
        "sample 'sub/new': is not in the dataset",
        f"{at(dataset, 7)}: has no original in {source}",
    ]


def test_against_another_kind_of_input(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="does not exist"):
        shardkit.verify(dataset, against=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"no paired files|nothing to pack"):
        shardkit.verify(dataset, against=tmp_path / "empty")
    shardkit.convert(dataset, tmp_path / "other", to="lmdb", progress=False)
    told = "other is a shardkit dataset: give the files that .* was packed from; two datasets hold"
    with pytest.raises(CorpusError, match=told):
        shardkit.verify(dataset, against=tmp_path / "other")


def test_rejected_inputs_are_no_difference(tmp_path: Path, container: str) -> None:
    source = make_images(tmp_path / "in", per_class=2)
    write(source / "class0" / "bad.jpg", "no picture")
    damaged = picture(9)
    write(source / "class1" / "cut \udcff short.jpg", damaged[: len(damaged) // 2])
    options = {**OPTIONS, "on_error": "skip", "max_rejects": 0.5, "check_images": True}
    packed = shardkit.pack(source, tmp_path / "out", to=container, **options)
    assert packed.num_rejects == 2 and packed.num_samples == 6
    lines = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    listed = [json.loads(line)["path"] for line in lines]
    assert listed == ["class0/bad.jpg", "class1/cut \udcff short.jpg"]
    assert shardkit.verify(tmp_path / "out", against=source).ok
    write(source / "class0" / "worse.jpg", "no picture either")
    (problem,) = shardkit.verify(tmp_path / "out", against=source).problems
    assert problem.where == "class0/worse.jpg" and "not an image" in problem.what
    (source / "class0" / "worse.jpg").unlink()
    (tmp_path / "out" / "rejected.jsonl").write_text("{")
    with pytest.raises(IndexFileError, match=r"rejected\.jsonl is damaged"):
        shardkit.verify(tmp_path / "out", against=source)
    (tmp_path / "out" / "rejected.jsonl").unlink()
    told = said(shardkit.verify(tmp_path / "out", against=source))
    assert [line.partition(": ")[0] for line in told] == [
        "class0/bad.jpg",
        r"sample 'class1/cut \udcff short'",
    ]


@pytest.mark.parametrize("make", [make_jsonl, make_texts], ids=["jsonl", "texts"])
def test_against_splits_that_share_keys(make: object, tmp_path: Path) -> None:
    for split, change in (("train", False), ("val", True)):
        make(tmp_path / "in" / split)  # type: ignore[operator]
        for path in (tmp_path / "in" / split).rglob("*.*") if change else ():
            if path.is_file():
                path.write_bytes(path.read_bytes().replace(b"0", b"1"))
    packed = shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    assert set(packed.splits) == {"train", "val"}
    result = shardkit.verify(tmp_path / "out", against=tmp_path / "in")
    assert result.ok and result.num_compared == packed.num_samples, said(result)


def test_against_splits_of_equal_names(tmp_path: Path) -> None:
    """What was left out of one split is not looked for in another that has that name too."""
    for split, seed in (("train", 0), ("val", 50)):
        for i in range(4):
            write(tmp_path / "in" / split / "k" / f"{i}.jpg", picture(seed + i))
    write(tmp_path / "in" / "train" / "k" / "0.jpg", "no picture")
    options = {**OPTIONS, "on_error": "skip", "max_rejects": 0.5}
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **options)
    shardkit.pack(tmp_path / "in", tmp_path / "two", to="npy", limit=2, **options)
    write(tmp_path / "in" / "train" / "k" / "0.jpg", picture(9))  # mended since
    result = shardkit.verify(tmp_path / "out", against=tmp_path / "in")
    assert result.ok and result.num_compared == 7, said(result)
    (tmp_path / "in" / "val" / "k" / "3.jpg").rename(tmp_path / "in" / "train" / "k" / "7.jpg")
    result = shardkit.verify(tmp_path / "two", against=tmp_path / "in")
    assert result.ok and result.num_compared == 3, said(result)


def test_against_a_changed_line(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", '{"t": "a"}\n{"t": "b"}\n{"t": "c"}\n')
    shardkit.pack(source, tmp_path / "lines", to="npy", **OPTIONS)
    shardkit.pack(source, tmp_path / "texts", to="npy", text_field="t", **OPTIONS)
    source.write_text('{"t": "a"}\n{"t": "x"}\n{"t": "c"}\n')
    for name, field in (("lines", "json"), ("texts", "txt")):
        key = "in.jsonl/000000000011"
        assert said(shardkit.verify(tmp_path / name, against=source)) == [
            f"sample {key!r} (row 1, train-00000): its {field} differs from the original"
        ]


def test_in_small_pieces(
    dataset: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is held in memory at once."""
    flipped, start, _ = place(dataset, 4, "jpg")
    for most in (1, 1000, 5000):
        monkeypatch.setattr("shardkit.shards.stored.BYTES_AT_ONCE", most)
        assert shardkit.verify(dataset, against=source).num_compared == 13
        shardkit.unpack(dataset, tmp_path / f"back{most}")
        assert tree(tmp_path / f"back{most}") == tree(source)
        flip(flipped, start + 9)
        assert [p.key for p in shardkit.verify(dataset).problems] == ["0004"]
        flip(flipped, start + 9)


def test_compressed_rows_count_as_what_they_become(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(7):
        np.save(write(tmp_path / "in" / f"{i}.npy", b""), np.zeros((100, 100), np.int16))
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="hdf5", compression=9, workers=0)
    info = read_info(tmp_path / "out")
    reader = ShardReader(Folder(tmp_path / "out"), info, info.splits["train"])
    assert list(reader.row_ranges(0, 7)) == [(0, 7)]
    monkeypatch.setattr("shardkit.shards.stored.BYTES_AT_ONCE", 50_000)
    assert list(reader.row_ranges(0, 7)) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert list(reader.row_ranges(5, 5)) == []
