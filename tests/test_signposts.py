"""Files beside the shards that tell other tools what these are: what they say, and that they are
parts of the dataset like any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import lmdb
import pytest
import yaml
from conftest import CONTAINERS, make_arrays, make_images, make_pairs, tree, write

import shardkit
from shardkit.errors import DestinationError
from shardkit.formats import FORMATS
from shardkit.formats.huggingface_card import card_of, quoted
from shardkit.index.manifest import dump_info, parse_info, read_info

OPTIONS = {"workers": 0, "progress": False}
SIGNPOSTS = {"lmdb": ["data.mdb"], "webdataset": [".huggingface.yaml"]}


@pytest.fixture
def packed(tmp_path: Path) -> dict[str, Path]:
    """36 pictures in three classes, in all formats."""
    source = make_images(tmp_path / "source")
    for to in CONTAINERS:
        shardkit.pack(source, tmp_path / to, to=to, shard_size="3kB", **OPTIONS)
    return {to: tmp_path / to for to in CONTAINERS}


# --- lmdb ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"readonly": True}, {"readonly": True, "lock": False}])
def test_lmdb_does_not_open_the_folder(options: dict[str, bool], packed: dict[str, Path]) -> None:
    """As most people write it; it would make an empty database there, and find no sample."""
    before = tree(packed["lmdb"])
    with pytest.raises(lmdb.InvalidError, match="MDB_INVALID"):
        lmdb.open(str(packed["lmdb"]), **options)
    after = tree(packed["lmdb"])
    after.pop("lock.mdb", None)  # which lmdb makes before it looks
    assert after == before
    assert shardkit.verify(packed["lmdb"], progress=False).ok
    assert len(shardkit.open(packed["lmdb"])) == 36
    text = before["data.mdb"].decode()
    assert 'lmdb.open("train-00000.lmdb", subdir=False, readonly=True, lock=False)' in text


def test_a_database_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    """As one that lmdb made within the folder of a dataset of an earlier release."""
    source = make_images(tmp_path / "source")
    shardkit.pack(source, tmp_path / "d", to="npy", **OPTIONS)
    with lmdb.open(str(tmp_path / "d")) as env, env.begin(write=True) as txn:
        txn.put(b"mine", b"1")
    before = tree(tmp_path / "d")
    with pytest.raises(DestinationError, match=r"data\.mdb is no file of the dataset's, and would"):
        shardkit.pack(source, tmp_path / "d", to="lmdb", overwrite=True, **OPTIONS)
    after = tree(tmp_path / "d")
    assert {name: after[name] for name in before} == before
    (tmp_path / "d" / "data.mdb").unlink()
    shardkit.pack(source, tmp_path / "d", to="lmdb", overwrite=True, **OPTIONS)
    assert shardkit.verify(tmp_path / "d", against=source, progress=False).ok


# --- Hugging Face -------------------------------------------------------------------------


def test_the_card_names_classes(packed: dict[str, Path]) -> None:
    card = yaml.safe_load((packed["webdataset"] / ".huggingface.yaml").read_text())
    names = {"0": "class0", "1": "class1", "2": "class2"}
    assert card == {
        "dataset_info": {
            "features": [
                {"name": "cls", "dtype": {"class_label": {"names": names}}},
                {"name": "jpg", "dtype": "image"},
                {"name": "__key__", "dtype": "string"},
                {"name": "__url__", "dtype": "string"},
            ]
        }
    }


@pytest.mark.parametrize(
    ("fields", "classes"),
    [
        (["jpg"], None),  # nothing to say
        (["cls", "jpg"], None),
        (["cls", "jpg"], []),
        (["cls", "jpg", "json"], ["a"]),  # what it holds depends on the values
        (["cls", "jpg", "npy"], ["a"]),
        (["cls", "tokens"], ["a"]),
        (["cls", "jpg"], ["a", "a"]),
        (["cls", "jpg"], ["\udcff"]),
    ],
)
def test_no_card_is_better_than_a_guess(fields: list[str], classes: list[str] | None) -> None:
    assert card_of(fields, classes) is None


def test_any_name_of_a_class_is_read_back() -> None:
    names = [
        "cat",
        "yes",
        "1.0",
        "- a",
        'it\'s "so"',
        "é",
        "日本",
        "😀",
        "a\nb",
        "\x7f\0",
        "",
        "---",
    ]
    card = card_of(["cls", "left.jpg", "caption.txt", "wav", "mp4"], names)
    assert card is not None and card.isascii()
    features = yaml.safe_load(card)["dataset_info"]["features"]
    found = features[0]["dtype"]["class_label"]["names"]
    assert [found[str(i)] for i in range(len(names))] == names
    assert [each["dtype"] for each in features[1:5]] == ["image", "string", "audio", "video"]
    assert [yaml.safe_load(quoted(name)) for name in names] == names


# --- parts of the dataset -----------------------------------------------------------------


def test_they_are_listed(packed: dict[str, Path]) -> None:
    for to, folder in packed.items():
        info = read_info(folder, sealed=True)
        assert sorted(info.signposts) == SIGNPOSTS.get(to, [])
        assert info.signposts.keys() <= FORMATS[to].signpost_names
        sizes = {name: (folder / name).stat().st_size for name in info.signposts}
        assert {name: info.file_bytes[name] for name in info.signposts} == sizes
        data = (folder / "shardkit.json").read_bytes()
        assert dump_info(parse_info(data, "x")) == data
        assert (b'"signposts"' in data) == (to in SIGNPOSTS)


@pytest.mark.parametrize("to", SIGNPOSTS)
def test_damage_is_found(to: str, packed: dict[str, Path], tmp_path: Path) -> None:
    (name,) = SIGNPOSTS[to]
    for number, (change, what) in enumerate(
        {
            lambda path: path.unlink(): "is missing",
            lambda path: path.write_bytes(path.read_bytes()[:-1]): "has ",
            lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]): "its bytes differ",
        }.items()
    ):
        folder = tmp_path / f"damaged{number}"
        shutil.copytree(packed[to], folder)
        change(folder / name)
        (problem,) = shardkit.verify(folder, progress=False).problems
        assert (problem.where, problem.what.startswith(what)) == (name, True)
        assert len(shardkit.open(folder, verify=True)) == 36  # samples are as they were


def test_they_travel(packed: dict[str, Path], tmp_path: Path) -> None:
    for to, folder in packed.items():
        shardkit.stage(folder, tmp_path / "staged" / to, progress=False)
        assert tree(tmp_path / "staged" / to) == tree(folder)
        shardkit.convert(packed["npy"], tmp_path / "converted" / to, to=to, **OPTIONS)
        assert tree(tmp_path / "converted" / to) == tree(folder)


def test_they_go_with_the_dataset(packed: dict[str, Path], tmp_path: Path) -> None:
    source = tmp_path / "source"
    for to, folder in packed.items():
        for other in CONTAINERS:
            shardkit.pack(source, folder, to=other, shard_size="3kB", overwrite=True, **OPTIONS)
            named = {name for names in SIGNPOSTS.values() for name in names}
            assert sorted(named & tree(folder).keys()) == SIGNPOSTS.get(other, []), (to, other)
            assert shardkit.verify(folder, progress=False).ok


def test_a_damaged_dataset_is_replaced_all_the_same(packed: dict[str, Path]) -> None:
    """Nothing says then whose the file is, but that it is the one that would be written."""
    for to in SIGNPOSTS:
        expected = tree(packed[to])
        write(packed[to] / "shardkit.json", "damaged")
        source = packed[to].parent / "source"
        shardkit.pack(source, packed[to], to=to, shard_size="3kB", overwrite=True, **OPTIONS)
        assert tree(packed[to]) == expected


def test_a_later_release_may_have_others(packed: dict[str, Path]) -> None:
    """A reader passes over those that it does not know; no index names a file of its own choice."""
    data = (packed["lmdb"] / "shardkit.json").read_bytes()
    entry = b'"data.mdb": {'
    other = b'"../../x": {"bytes": 1, "xxh3": "00"}, "new.thing": {"bytes": 1, "xxh3": "00"}, '
    assert parse_info(data.replace(entry, other + entry), "x").signposts.keys() == {"data.mdb"}


@pytest.mark.parametrize("make", [make_pairs, make_arrays])
def test_fields_that_are_guessed_have_none(make: object, tmp_path: Path) -> None:
    source = make(tmp_path / "source")  # type: ignore[operator]
    shardkit.pack(source, tmp_path / "d", to="webdataset", **OPTIONS)
    assert not (tmp_path / "d" / ".huggingface.yaml").exists()


def test_a_staged_dataset_of_tokens_has_its_tokenizer(tmp_path: Path) -> None:
    for i in range(6):
        write(tmp_path / "in" / f"{i}.txt", f"document {i} " * 40)
    shardkit.pack(tmp_path / "in", tmp_path / "d", train_tokenizer=300, **OPTIONS)
    shardkit.stage(tmp_path / "d", tmp_path / "copy", progress=False)
    assert tree(tmp_path / "copy") == tree(tmp_path / "d")
    assert shardkit.verify(tmp_path / "copy", against=tmp_path / "in", progress=False).ok
