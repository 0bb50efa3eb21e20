"""DALI's own index beside the tars: right to the byte, and as safe as the tars themselves."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import make_images, make_pairs, tree, write

import shardkit
from shardkit.errors import ResumeError, UsageError
from shardkit.formats import Extents
from shardkit.formats.dali_index import dali_index
from shardkit.samples.encoding import BYTES

OPTIONS = {"to": "webdataset", "shard_size": "2kB", "workers": 0, "progress": False}


def extents(*places: tuple[int, int]) -> Extents:
    starts, sizes = np.array(places, np.int64).reshape(-1, 2).T
    return Extents(starts, sizes, BYTES)


def by_tarfile(tar: Path) -> str:
    """What DALI's ``wds2idx`` writes, found by the standard library's reader of tars.

    Its ``split_name`` cuts at the first dot of the file name; names here have no spaces.
    """
    samples: dict[str, list[str]] = {}
    with tarfile.open(tar) as opened:
        for member in opened:
            folder, slash, file = member.name.rpartition("/")
            stem, _, field = file.partition(".")
            place = f"{field} {member.offset_data} {member.size} {member.name.replace(' ', '%20')}"
            samples.setdefault(folder + slash + stem, []).append(place)
    return "".join(
        f"{line}\n" for line in [f"v1.2 {len(samples)}", *map(" ".join, samples.values())]
    )


# --- the file -----------------------------------------------------------------------------


def test_white_space_would_part_a_name() -> None:
    assert dali_index([b"a b\tc\x0bd\x85"], {"txt": extents((512, 1))}) == (
        b"v1.2 1\ntxt 512 1 a%20b%09c%0Bd\x85.txt\n"
    )


def test_a_sample_without_members_is_none() -> None:
    assert dali_index([b"a", b"b"], {"x": extents((0, -1), (512, 3))}) == b"v1.2 1\nx 512 3 b.x\n"
    assert dali_index([], {}) == b"v1.2 0\n"


def test_it_says_what_lies_in_the_tars(corpus: Path, tmp_path: Path) -> None:
    if corpus.joinpath("0000.jpg").exists():  # pairs
        write(corpus / ("long" * 40 + ".txt"), "a name that needs a pax header")
        write(corpus / "IMG 7 .txt", "")
    shardkit.pack(corpus, tmp_path / "out", dali_index=True, **OPTIONS)
    tars = sorted((tmp_path / "out").glob("*.tar"))
    assert tars
    for tar in tars:
        assert tar.with_suffix(".idx").read_text(encoding="utf-8") == by_tarfile(tar)


# --- part of the dataset ------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    source = make_pairs(tmp_path / "source")
    shardkit.pack(source, tmp_path / "packed", dali_index=True, **OPTIONS)
    return tmp_path / "packed"


def test_nothing_else_changes(packed: Path, tmp_path: Path) -> None:
    shardkit.pack(tmp_path / "source", tmp_path / "plain", **OPTIONS)
    plain, files = tree(tmp_path / "plain"), tree(packed)
    assert {n for n in files if n not in plain} == {
        n.replace(".tar", ".idx") for n in plain if n.endswith(".tar")
    }
    listed = {"shardkit.json", "train.sums"}
    assert {n for n in plain if plain[n] != files[n]} == listed
    assert shardkit.verify(packed).ok
    shardkit.unpack(packed, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(tmp_path / "source")


def test_convert_makes_it_too(packed: Path, tmp_path: Path) -> None:
    shardkit.convert(packed, tmp_path / "npy", to="npy", workers=0)
    assert not list((tmp_path / "npy").glob("*.idx"))
    shardkit.convert(tmp_path / "npy", tmp_path / "back", to="tar", workers=0, dali_index=True)
    assert tree(tmp_path / "back") == tree(packed)


@pytest.mark.parametrize("container", ["npy", "hdf5", "lmdb"])
def test_other_formats_have_none(container: str, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"dali_index is of the tars.*{container} has none"):
        shardkit.pack(tmp_path / "source", tmp_path / "x", to=container, dali_index=True)
    with pytest.raises(UsageError, match=f"dali_index is of the tars.*{container} has none"):
        shardkit.convert(packed, tmp_path / "x", to=container, dali_index=True)
    assert not (tmp_path / "x").exists()


def test_a_started_pack_keeps_to_it(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    bad = write(source / "class2" / "z.jpg", b"no picture")
    for wanted in (True, False):
        with pytest.raises(shardkit.errors.DataError if wanted else ResumeError) as caught:
            shardkit.pack(source, tmp_path / "x", dali_index=wanted, check_images=True, **OPTIONS)
    assert "dali_index was True, now False" in str(caught.value)
    options = {**OPTIONS, "on_error": "skip", "max_rejects": 1, "check_images": True}
    resumed = shardkit.pack(source, tmp_path / "x", dali_index=True, **options)
    assert resumed.resumed_shards and resumed.num_rejects == 1
    shardkit.pack(source, tmp_path / "again", dali_index=True, **options)
    assert tree(tmp_path / "x") == tree(tmp_path / "again")
    assert bad.exists()


def test_verify_names_what_is_lost_or_damaged(packed: Path) -> None:
    whole = shardkit.verify(packed)
    (packed / "train-00000.idx").unlink()
    index = packed / "train-00001.idx"
    index.write_bytes(index.read_bytes().replace(b"jpg", b"png", 1))
    with (packed / "train-00002.idx").open("ab") as out:
        out.write(b"\n")
    found = shardkit.verify(packed)
    assert found.num_samples == whole.num_samples  # samples do not need it
    names = [
        (problem.where, problem.shard, problem.what.partition(";")[0]) for problem in found.problems
    ]
    assert names == [
        ("train-00000.idx", 0, "is missing"),
        ("train-00001.idx", 1, "its bytes differ from those written"),
        ("train-00002.idx", 2, names[2][2]),
    ]
    assert names[2][2].startswith("has ")


def test_an_index_of_somebody_else_is_left_alone(packed: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    shardkit.pack(tmp_path / "source", plain, **OPTIONS)
    theirs = write(plain / "train-00000.idx", b"v1.2 1\njpg 512 3 a.jpg\n")
    assert shardkit.verify(plain).ok
    # But not beside another tar of that name: DALI would read rubbish by it.
    kept = write(plain / "other-00000.idx", b"")
    shardkit.pack(tmp_path / "source", plain, overwrite=True, **OPTIONS)
    assert kept.exists() and not theirs.exists()


def test_info_says_how_dali_opens_it(packed: Path) -> None:
    line = shardkit.info(packed).open_with[-1]
    assert line == (
        f"nvidia.dali.fn.readers.webdataset(paths='{packed}/train-00000.tar',"
        f" index_paths='{packed}/train-00000.idx', ext={shardkit.open(packed).fields})"
    )
