"""Third-party LMDB files, written by the library itself."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from conftest import Run, examples, nothing_left_open, picture, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_inputs_files import read_all

from shardkit.errors import CorpusError, DataError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import open_corpus
from shardkit.inputs.records.containers import LmdbCorpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}
VERSION = {} if int(lmdb.__version__.partition(".")[0]) < 3 else {"lib_version": 0}

Items = Iterable[tuple[bytes, bytes]]


def database(path: Path, items: Items, subdir: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"map_size": 64 << 20, "lock": subdir, **VERSION}
    with lmdb.open(str(path), subdir=subdir, **options) as env, env.begin(write=True) as txn:
        for key, value in items:
            txn.put(key, value)
    return path


def images(number: int = 40) -> list[tuple[bytes, bytes]]:
    return [(b"image-%09d" % i, picture(i, size=16 + 40 * (i % 3))) for i in range(number)]


def captions(number: int) -> list[tuple[bytes, bytes]]:
    return [(b"label-%09d" % i, f"wörd {i}".encode()) for i in range(number)]


def test_keys_stay(tmp_path: Path) -> None:
    for i, items in enumerate((images(40), captions(9), [(b"%d" % i, b"\0") for i in range(9)])):
        source = database(tmp_path / f"{i}.lmdb", [*items, (b"num-samples", b"9")], subdir=i == 1)
        corpus = open_corpus(source)
        with nothing_left_open():
            batch = read_all(corpus, tmp_path / "scratch")["train"]
        assert dict(zip(batch.keys, *batch.columns.values(), strict=True)) == dict(items)
        assert [*batch.columns] == [["jpg"], ["txt"], ["bin"]][i] and not batch.rejects
        said = "passed over: keys that say something of the whole file: num-samples"
        assert corpus.notes == [said]
    items = [(i.to_bytes(4, "big"), b"v") for i in range(300)]
    batch = read_all(open_corpus(database(tmp_path / "c.lmdb", items)), tmp_path)["train"]
    assert batch.keys[:2] == [b"0x00000000", b"0x00000001"] and len(set(batch.keys)) == 300


def test_parts_of_samples(tmp_path: Path) -> None:
    """Images next to other values are refused; if all are images, each is a sample."""
    with pytest.raises(CorpusError, match=r"\(image-#, label-#\), .*: .*LMDB of several values a"):
        open_corpus(database(tmp_path / "x.lmdb", [*images(40), *captions(40)]))
    pairs = [*images(4), *((b"gt-" + key, value) for key, value in images(4))]
    corpus = open_corpus(database(tmp_path / "y.lmdb", pairs))
    assert read_all(corpus, tmp_path)["train"].keys == sorted(key for key, _ in pairs)
    assert corpus.notes == ["keys are of several kinds, gt-image-#, image-#: each is a sample"]


def test_pickles_are_refused_but_not_of_the_file(tmp_path: Path) -> None:
    """``__len__`` and ``__keys__`` are often pickled, where values are not."""
    items = [(b"%d" % i, picture(i)) for i in range(5)]
    about = [(b"__len__", pickle.dumps(5)), (b"__keys__", pickle.dumps([b"0"]))]
    corpus = open_corpus(database(tmp_path / "x.lmdb", [*items, *about]))
    assert len(read_all(corpus, tmp_path)["train"]) == 5
    said = "passed over: keys that say something of the whole file: __keys__, __len__"
    assert corpus.notes == [said]
    source = database(tmp_path / "y.lmdb", [(b"1", pickle.dumps(np.arange(3)))])
    with pytest.raises(CorpusError, match=r"holds pickles, .*: docs/recipes/records\.md, LMDB of"):
        open_corpus(source)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train/", "val/"], {"train": 3, "val": 3}),
        (["bedroom_train_lmdb/", "bedroom_val_lmdb/"], {"train": 3, "val": 3}),
        (["train.lmdb", "val.lmdb"], {"train": 3, "val": 3}),
        (["data/"], {"train": 3}),
    ],
)
def test_splits(names: list[str], splits: dict[str, int], tmp_path: Path) -> None:
    for i, name in enumerate(names):
        items = [(b"%d%d" % (i, row), b"x") for row in range(3)]
        database(tmp_path / "in" / name.rstrip("/"), items, subdir=name.endswith("/"))
    claim = LmdbCorpus.claim(Look(tmp_path / "in"))
    assert claim is not None and claim.strength == Strength.MARKED
    corpus = open_corpus(tmp_path / "in")
    batches = read_all(corpus, tmp_path / "s")
    assert {split: len(batch) for split, batch in batches.items()} == splits
    assert corpus.notes == [] and corpus.ignored == {}, "a lock is no file that is passed over"


def test_claims(tmp_path: Path) -> None:
    for name in ("a", "b"):
        database(tmp_path / "in" / name, images(1), subdir=True)
    with pytest.raises(CorpusError, match="not called as splits are: pack each folder apart, or"):
        open_corpus(tmp_path / "in")
    assert LmdbCorpus.claim(Look(write(tmp_path / "x.txt", "x"))) is None
    access = LmdbCorpus.claim(Look(write(tmp_path / "x.mdb", b"\0\1\0\0Standard Jet DB")))
    assert access is not None and access.strength == Strength.FILES


def test_names_that_lead_nowhere_are_rejects(tmp_path: Path) -> None:
    source = tmp_path / "in"
    database(source / "train", images(3), subdir=True)
    for name in ("val", "train_b.lmdb"):
        (source / name).symlink_to("nowhere")
    corpus = open_corpus(source, "lmdb")
    batches = [corpus.read(run, tmp_path) for run in corpus.runs(tmp_path)]
    assert sum(map(len, batches)) == 3
    assert sorted(name for batch in batches for name, _ in batch.rejects) == ["train_b.lmdb", "val"]


# --- damage -------------------------------------------------------------------------------


def test_empty_and_named_databases_are_refused(tmp_path: Path, run: Run) -> None:
    with pytest.raises(CorpusError, match="no LMDB files in"):
        list(open_corpus(database(tmp_path / "empty.lmdb", [])).runs(tmp_path))
    with lmdb.open(str(tmp_path / "x.lmdb"), subdir=False, max_dbs=2, lock=False, **VERSION) as env:
        inner = env.open_db(b"inner")
        with env.begin(write=True, db=inner) as txn:
            txn.put(b"a", b"b")
    code, _, err = run("pack", "x.lmdb", "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1
    assert "x.lmdb: an LMDB file of named databases; copy the one that is meant" in err


@pytest.mark.parametrize("cut", [0, 100, 5000])
def test_damaged_files_give_one_line(tmp_path: Path, cut: int, run: Run) -> None:
    whole = database(tmp_path / "x.lmdb", images()).read_bytes()
    write(tmp_path / "x.lmdb", whole[:cut] or b"text, and no database" * 99)
    code, _, err = run("pack", "x.lmdb", "out", "--to", "npy")
    assert code == 1 and err.count("\n") == 1 and "x.lmdb: " in err


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return database(tmp_path_factory.mktemp("lmdb") / "x.lmdb", images(200)).read_bytes()


@settings(examples(0.6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=20))
def test_no_damage_brings_the_process_down(
    tmp_path: Path, whole: bytes, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(whole)
    for at, byte in damage:
        data[at % len(data)] = byte
    try:
        corpus = LmdbCorpus(write(tmp_path / "x.lmdb", bytes(data)))
        for run in corpus.runs(tmp_path):
            corpus.read(run, tmp_path)
    except (CorpusError, DataError):
        pass
