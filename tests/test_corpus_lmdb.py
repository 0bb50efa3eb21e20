"""LMDB files that others made, written by the library itself."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from conftest import CONTAINERS, Run, nothing_left_open, picture, tree, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_corpus_files import read_all

import shardkit
from shardkit.errors import CorpusError, FormatError
from shardkit.inputs.containers.lmdb_files import kind_of_key, shown_key
from shardkit.inputs.detect import detect
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.open import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}

Items = Iterable[tuple[bytes, bytes]]


def database(path: Path, items: Items, subdir: bool = False, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if int(lmdb.__version__.partition(".")[0]) >= 3:
        options["lib_version"] = 0
    with (
        lmdb.open(str(path), subdir=subdir, map_size=64 << 20, lock=subdir, **options) as env,
        env.begin(write=True) as txn,
    ):
        for key, value in items:
            txn.put(key, value)
    return path


def scene_text(number: int = 40) -> list[tuple[bytes, bytes]]:
    """As text recognition has it: pictures, labels, and how many there are."""
    items = [(b"num-samples", b"%d" % number)]
    for i in range(number):
        items.append((b"image-%09d" % i, picture(i, size=16 + 40 * (i % 3))))
        items.append((b"label-%09d" % i, f"wörd {i}".encode()))
    return items


@pytest.mark.parametrize("subdir", [False, True])
def test_keys_and_values(tmp_path: Path, subdir: bool) -> None:
    source = database(tmp_path / "x.lmdb", scene_text(), subdir)
    assert detect(source) == "lmdb"
    with nothing_left_open():
        batch = read_all(open_corpus(source), tmp_path / "scratch")["train"]
    held = dict(scene_text())
    assert batch.keys == [b"%09d" % i for i in range(40)] and not batch.rejects
    for i, key in enumerate(batch.keys):
        assert batch.fields(i) == {"jpg": held[b"image-" + key], "txt": held[b"label-" + key]}
    assert batch.paths[0] == b"=image-000000000.jpg\0=label-000000000.txt"


@pytest.mark.parametrize(
    "items",
    [
        scene_text()[:-1],
        [(b"lq-%d" % i, picture(i)) for i in range(4)]
        + [(b"gt-%d" % i, picture(i)) for i in range(4)],
        [(b"image-%d" % i, picture(i)) for i in range(4)]
        + [(b"label-%d" % i, b"x") for i in range(1, 5)],
    ],
)
def test_keys_of_kinds_that_do_not_fit_together(tmp_path: Path, items: Items) -> None:
    """Each is a sample, which is said."""
    corpus = open_corpus(database(tmp_path / "x.lmdb", items))
    num_about = sum(key == b"num-samples" for key, _ in items)
    assert len(read_all(corpus, tmp_path)["train"]) == len([*items]) - num_about
    assert corpus.notes[-1].startswith("keys are of several kinds, ")
    assert corpus.notes[-1].endswith(": each is a sample")


@pytest.mark.parametrize(
    "more",
    [[(b"name-000000001", b"x")], [(b"label-000000009", b"x")], [(b"image-000000001x", b"x")]],
)
def test_a_file_of_other_kinds_than_the_first_is_refused(tmp_path: Path, more: Items) -> None:
    database(tmp_path / "in" / "a.lmdb", scene_text(3))
    database(tmp_path / "in" / "b.lmdb", [*scene_text(3), *more])
    with pytest.raises(CorpusError, match=r"b\.lmdb is not all image-# and label-# of the same"):
        read_all(open_corpus(tmp_path / "in"), tmp_path)


@pytest.mark.parametrize("to", CONTAINERS)
def test_packed_verified_and_read_back(to: str, tmp_path: Path) -> None:
    source = database(tmp_path / "x.mdb", scene_text())
    packed = shardkit.pack(source, tmp_path / "out", to=to, shard_size="2kB", **OPTIONS)
    assert (packed.num_samples, packed.kind) == (40, "lmdb") and packed.num_shards > 5
    assert packed.notes[-1].endswith("image-#, label-#: those of one number are a sample")
    checked = shardkit.verify(tmp_path / "out", against=source)
    assert checked.ok and checked.num_compared == 40
    shardkit.convert(source, tmp_path / "two", to=to, workers=2)
    shardkit.pack(source, tmp_path / "one", to=to, **OPTIONS)
    assert tree(tmp_path / "two") == tree(tmp_path / "one")
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    assert (tmp_path / "back" / "image-000000007.jpg").read_bytes() == dict(scene_text())[
        b"image-000000007"
    ]


def test_splits(tmp_path: Path) -> None:
    for name in ("train", "val"):
        database(tmp_path / "folders" / name, scene_text(3), subdir=True)
        database(tmp_path / "files" / f"{name}.lmdb", scene_text(3))
    for source in (tmp_path / "folders", tmp_path / "files"):
        assert detect(source) == "lmdb"
        corpus = open_corpus(source)
        assert corpus.splits() == ["train", "val"]
        batches = read_all(corpus, tmp_path / "s")
        assert len(batches["val"]) == 3 and batches["val"].paths[0].startswith(b"=val")
        shardkit.pack(source, tmp_path / f"{source.name}-out", to="npy", **OPTIONS)
        shardkit.unpack(tmp_path / f"{source.name}-out", tmp_path / f"{source.name}-back")
        assert len(tree(tmp_path / f"{source.name}-back")) == 12
    database(tmp_path / "files" / "more.lmdb", scene_text(3))
    corpus = open_corpus(tmp_path / "files")
    read_all(corpus, tmp_path / "s")
    assert corpus.splits() == ["train"]
    assert corpus.notes[0] == "all of split train, val.lmdb too, since more.lmdb names no split"


def test_what_values_are(tmp_path: Path) -> None:
    """By kind of key; where keys are names, all are of one kind."""
    items = [(b"feat-%d" % i, np.arange(i + 1, dtype=np.float32).tobytes()) for i in range(9)]
    items += [(b"meta-%d" % i, json.dumps({"i": i}).encode()) for i in range(9)]
    batch = read_all(open_corpus(database(tmp_path / "a.lmdb", items)), tmp_path)["train"]
    assert sorted(batch.columns) == ["bin", "txt"] and batch.columns["bin"][0] == items[0][1]
    names = [bytes([65 + i // 10, 97 + i % 10]) * 3 + b".jpg" for i in range(70)]
    source = database(tmp_path / "b.lmdb", [(name, picture(i)) for i, name in enumerate(names)])
    assert open_corpus(source).spec()["values"] == {"": "picture"}
    assert read_all(open_corpus(source), tmp_path)["train"].keys == sorted(names)


def test_values_of_another_sort_are_rejects(tmp_path: Path) -> None:
    items = [(b"a-%03d" % i, b"text") for i in range(30)] + [(b"a-030", b"\xff\0")]
    items += [(b"b-%03d" % i, picture(i)) for i in range(30)] + [(b"b-030", b"text")]
    items += [(b"b-031", pickle.dumps([1]))]
    batch = read_all(open_corpus(database(tmp_path / "a.lmdb", items)), tmp_path)["train"]
    assert len(batch) == 60
    assert [why[:40] for _, why in batch.rejects] == [
        "the first values are text in UTF-8, and ",
        "the first values are pictures, and this ",
        "holds a pickle, which shardkit never rea",
    ]


def test_pickles_are_refused_with_what_makes_them_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [(b"%03d" % i, pickle.dumps(np.arange(i + 1))) for i in range(5)]
    source = database(tmp_path / "x.lmdb", items)
    with pytest.raises(CorpusError, match="holds pickles, which can run any code") as caught:
        open_corpus(source)
    assert "\n" not in str(caught.value)
    monkeypatch.chdir(tmp_path)
    run_lines(caught.value)
    packed = shardkit.pack("plain", "out", to="npy", **OPTIONS)
    assert packed.num_samples == 5 and shardkit.open("out")[4]["npy"].tolist() == [0, 1, 2, 3, 4]


def run_lines(error: CorpusError) -> None:
    """Run the lines that are below a message."""
    (lines,) = error.__notes__
    assert lines.count("\n") < 16 and max(map(len, lines.split("\n"))) < 100
    exec(lines, {})


@pytest.mark.parametrize("subdir", [False, True])
def test_pickles_of_several_parts_lose_nothing(
    subdir: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As image classification has them: (JPEG, label), beside values that are no pickles."""
    data = [picture(i) + bytes(3) for i in range(4)]
    items = [(b"%03d" % i, pickle.dumps((data[i], i))) for i in range(3)]
    items += [(b"raw", data[3]), (b"text", pickle.dumps({"a": "w\u00f6rd", "b": np.arange(3)}))]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="holds pickles") as caught:
        open_corpus(database(tmp_path / "x.lmdb", items, subdir))
    run_lines(caught.value)
    found = tree(tmp_path / "plain")
    assert [found[f"00{i}.0.jpg"] for i in range(3)] + [found["raw.jpg"]] == data
    assert np.load("plain/002.1.npy") == 2 and found["text.a.txt"] == "w\u00f6rd".encode()
    assert np.load("plain/text.b.npy").tolist() == [0, 1, 2] and len(found) == 9
    packed = shardkit.pack("plain", "out", to="npy", **OPTIONS)
    assert packed.num_samples == 5 and packed.kind == "paired"


def test_keys_about_the_file_are_passed_over(tmp_path: Path) -> None:
    """``__len__`` and ``__keys__`` are often pickled, where values are not."""
    items = [(b"%d" % i, picture(i)) for i in range(5)]
    about = [(b"__len__", pickle.dumps(5)), (b"__keys__", pickle.dumps([b"0"]))]
    source = database(tmp_path / "x.lmdb", [*items, *about])
    packed = shardkit.pack(source, tmp_path / "out", to="npy", workers=2)
    assert packed.num_samples == 5
    said = "passed over: keys that say something of the whole file: __keys__, __len__"
    assert packed.notes == [said]
    assert shardkit.verify(tmp_path / "out", against=source).ok
    source = database(tmp_path / "y.lmdb", [*items, (b"____", b"x"), (b"__a", b"x")])
    assert len(read_all(open_corpus(source), tmp_path)["train"]) == 7


def test_names_that_lead_nowhere_are_rejects(tmp_path: Path) -> None:
    source = tmp_path / "in"
    database(source / "train", scene_text(3), subdir=True)
    for name in ("val", "b.lmdb"):
        (source / name).symlink_to("nowhere")
    corpus = open_corpus(source, "lmdb")
    batches = [corpus.read(run, tmp_path) for run in corpus.runs(tmp_path)]
    assert sum(map(len, batches)) == 3
    assert sorted(name for batch in batches for name, _ in batch.rejects) == ["b.lmdb", "val"]


def test_keys_with_nul_and_an_empty_database(tmp_path: Path) -> None:
    items = [(i.to_bytes(4, "big"), b"v") for i in range(300)]
    batch = read_all(open_corpus(database(tmp_path / "x.lmdb", items)), tmp_path)["train"]
    assert batch.keys[:2] == [b"0x00000000", b"0x00000001"] and len(set(batch.keys)) == 300
    source = database(tmp_path / "empty.lmdb", [])
    with pytest.raises(CorpusError, match="no LMDB files in"):
        list(open_corpus(source).runs(tmp_path))


def test_named_databases_are_refused(tmp_path: Path, run: Run) -> None:
    options = {} if int(lmdb.__version__.partition(".")[0]) < 3 else {"lib_version": 0}
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, max_dbs=2, lock=False, **options) as env:
        inner = env.open_db(b"inner")
        with env.begin(write=True, db=inner) as txn:
            txn.put(b"a", b"b")
    code, _, err = run("pack", "x.lmdb", "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1
    assert "x.lmdb: an LMDB file of named databases; copy the one that is meant" in err


@pytest.mark.parametrize("cut", [0, 100, 5000])
def test_damaged_files_give_one_line(tmp_path: Path, cut: int, run: Run) -> None:
    whole = database(tmp_path / "x.lmdb", scene_text()).read_bytes()
    write(tmp_path / "x.lmdb", whole[:cut] or b"text, and no database" * 99)
    code, _, err = run("pack", "x.lmdb", "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1 and "x.lmdb: " in err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return database(tmp_path_factory.mktemp("lmdb") / "x.lmdb", scene_text(200)).read_bytes()


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=20))
def test_no_damage_brings_the_process_down(
    tmp_path: Path, whole: bytes, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(whole)
    for at, byte in damage:
        data[at % len(data)] = byte
    path = write(tmp_path / "x.lmdb", bytes(data))
    try:
        read_all_loosely(path, tmp_path)
    except (FormatError, CorpusError):
        pass


def read_all_loosely(path: Path, scratch: Path) -> None:
    corpus = open_corpus(path)
    for run in corpus.runs(scratch):
        corpus.read(run, scratch)


def test_a_change_is_noticed(tmp_path: Path) -> None:
    path = database(tmp_path / "x.lmdb", scene_text())
    corpus = open_corpus(path)
    (run,) = corpus.runs(tmp_path)
    database(path, scene_text(50))
    batch = from_spec(path, corpus.spec()).read(run, tmp_path)
    assert len(batch.rejects) == 40 and batch.rejects[0][1] == "the file changed while packing"


def test_kinds_of_keys() -> None:
    assert kind_of_key(b"image-000012.jpg") == b"image-#.jpg"
    assert kind_of_key(b"abc") == b"abc"
    assert shown_key(b"a\0b") == b"0x610062" and shown_key(b"ab") == b"ab"
