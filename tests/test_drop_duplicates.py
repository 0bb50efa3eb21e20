"""pack --drop-duplicates: of equal inputs one is packed, the same one whoever packs and how."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run as RunCommand
from conftest import make_images, picture, tree, write
from forked_workers import forked_workers
from hypothesis import given
from hypothesis import strategies as st
from tf_records import records

import shardkit
from shardkit.corpus.base import Run
from shardkit.corpus.images import ImageCorpus
from shardkit.corpus.open import open_corpus
from shardkit.errors import (
    DestinationError,
    PartError,
    ResumeError,
    SampleError,
    StorageError,
    UsageError,
)
from shardkit.index.manifest import INDEX_NAME
from shardkit.operations.duplicates import find_duplicates
from shardkit.packing import distinct, hash_file, hash_job, local, whole_listing
from shardkit.packing.equal import find_copies, repeated
from shardkit.packing.left_out import LeftOut, copy_lines, lines_of_copies, told_copies
from shardkit.packing.whole_listing import WholeListing
from shardkit.remote import connection
from shardkit.shards.locate import locate

SMALL: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False, "shard_size": "4kB"}
DROP: dict[str, Any] = {**SMALL, "drop_duplicates": True}


def make_source(root: Path) -> Path:
    """Pictures in two splits: copies in one class, in another class, and in both splits."""
    make_images(root / "train", per_class=9)
    make_images(root / "val", per_class=2)  # each of them is in train, too
    train, val = root / "train", root / "val"
    for number in range(2):
        for i in range(3):
            write(val / f"class{i}" / f"img.{number:03d}.jpg", picture(500 + 10 * i + number))
    write(train / "class0" / "same.jpg", picture(3))
    write(train / "class1" / "other.jpg", picture(4))
    write(train / "class2" / "z.jpg", picture(4))
    write(train / "class2" / "leak.jpg", picture(511))
    write(val / "class0" / "zz.jpg", picture(501))
    return root


LEFT_OUT = {
    "train/class0/same.jpg": "train/class0/img.003.jpg",
    "train/class1/other.jpg": "train/class0/img.004.jpg",
    "train/class2/leak.jpg": "val/class1/img.001.jpg",
    "train/class2/z.jpg": "train/class0/img.004.jpg",
    "val/class0/zz.jpg": "val/class0/img.001.jpg",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "source")


def clean(source: Path) -> Path:
    """The same without what is to be left out."""
    for name in LEFT_OUT:
        (source / name).unlink()
    return source


def told(dataset: Path) -> dict[str, str]:
    lines = (dataset / "rejected.jsonl").read_text().splitlines()
    return {
        held["path"]: held["reason"].removeprefix("the same contents as ")
        for held in map(json.loads, lines)
    }


def shards(dataset: Path) -> dict[str, bytes]:
    """All but what says where it came from."""
    return {n: d for n, d in tree(dataset).items() if n not in (INDEX_NAME, "rejected.jsonl")}


# --- what is left out -----------------------------------------------------------------------


def test_the_first_is_packed_and_train_gives_way(
    source: Path, container: str, tmp_path: Path
) -> None:
    result = shardkit.pack(source, tmp_path / "d", **DROP | {"to": container})
    assert told(tmp_path / "d") == LEFT_OUT
    assert list(told(tmp_path / "d")) == sorted(LEFT_OUT), "in the order of the listing"
    assert (result.num_duplicates, result.num_rejects, result.num_samples) == (5, 0, 27 + 6)
    num_bytes = sum((source / name).stat().st_size for name in LEFT_OUT)
    assert result.notes[-1] == (
        f"left out 5 duplicates of {num_bytes / 1000:.1f} kB: the inputs have the same contents as"
        " others, 3 of them with another label, 1 of them in another split; rejected.jsonl names"
        " them"
    )
    assert find_duplicates(locate(tmp_path / "d")).num_copies == 0
    assert shardkit.verify(tmp_path / "d").ok
    shardkit.pack(clean(source), tmp_path / "clean", **SMALL | {"to": container})
    assert shards(tmp_path / "d") == shards(tmp_path / "clean")


@pytest.mark.parametrize(
    "options",
    [
        {"workers": 2},
        {"workers": 1, "shuffle": True, "limit": 20},
        {"shuffle": True},
        {"limit": 7},
        {"shard_size": None, "resize": 8},
        {"to": "webdataset", "dali_index": True, "check_images": True},
    ],
    ids=str,
)
def test_as_if_they_had_not_been_there(
    options: dict[str, Any], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_listing, "PIECE_BYTES", 3_000)
    given = DROP | options
    with nullcontext() if given["workers"] else forked_workers():
        first = shardkit.pack(source, tmp_path / "d", **given)
        other = {**given, "workers": 2 - given["workers"]}
        shardkit.pack(source, tmp_path / "other", **other)
    assert told(tmp_path / "d") == LEFT_OUT, "whatever is packed of the rest"
    again = shardkit.pack(source, tmp_path / "d", **{**given, "workers": 0})
    assert again.was_complete and again.num_duplicates == first.num_duplicates == 5
    for name in ("num_samples", "num_rejects", "input_bytes", "splits"):
        assert getattr(again, name) == getattr(first, name), name
    assert tree(tmp_path / "other") == tree(tmp_path / "d")
    alike = {**given, "drop_duplicates": False, "workers": 0}
    shardkit.pack(clean(source), tmp_path / "clean", **alike)
    assert shards(tmp_path / "d") == shards(tmp_path / "clean")


def test_a_split_that_is_cut_off_shares_nothing(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source", per_class=8)
    for i in range(8):
        write(source / "class2" / f"copy{i}.jpg", picture(i))
    result = shardkit.pack(source, tmp_path / "d", **DROP, val_fraction=0.4)
    assert result.num_duplicates == 8 and result.splits == {"train": 14, "val": 10}
    assert not find_duplicates(locate(tmp_path / "d")).num_across
    assert shardkit.verify(tmp_path / "d", against=source).ok


def test_nothing_to_leave_out_is_said(tmp_path: Path) -> None:
    source = make_images(tmp_path / "source")
    result = shardkit.pack(source, tmp_path / "d", **DROP)
    assert result.notes[-1] == "no input has the same contents as another"
    assert not (tmp_path / "d" / "rejected.jsonl").exists()
    assert shardkit.pack(source, tmp_path / "d", **DROP).was_complete


def test_without_it_nothing_is_said_or_left_out(source: Path, tmp_path: Path) -> None:
    result = shardkit.pack(source, tmp_path / "d", **SMALL)
    assert (result.num_duplicates, result.num_samples) == (0, 38)
    assert not any("duplicate" in note or "same contents" in note for note in result.notes)


# --- kinds of input -------------------------------------------------------------------------


def npy(number: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.full(4, number))
    return out.getvalue()


def texts(root: Path) -> dict[str, Any]:
    for i, text in enumerate(["one", "two", "six", "one", "three"]):
        write(root / f"{i}.txt", text)
    return {}


def tokens(root: Path) -> dict[str, Any]:
    for i in range(20):
        write(root / f"{i:02d}.txt", f"a text of number {i % 19} and more " * 5)
    return {"train_tokenizer": 300}


def pairs(root: Path) -> dict[str, Any]:
    """All fields are the same, but for the label, of 0 and 2 alone."""
    for i, (image, text, label) in enumerate(
        [(1, "x", "0"), (1, "y", "0"), (1, "x", "11"), (2, "x", "0")]
    ):
        write(root / f"{i}.jpg", picture(image))
        write(root / f"{i}.txt", text)
        write(root / f"{i}.cls", label)
    return {}


def pairs_without_labels(root: Path) -> dict[str, Any]:
    for i, (image, text) in enumerate([(1, "x"), (1, "y"), (1, "x"), (2, "x")]):
        write(root / f"{i}.jpg", picture(image))
        write(root / f"{i}.txt", text)
    return {}


def arrays(root: Path) -> dict[str, Any]:
    for i, number in enumerate([1, 2, 1, 3]):
        write(root / f"{i}.npy", npy(number))
    return {}


def tensors(root: Path) -> dict[str, Any]:
    """Two files of one tensor that differ, since each holds its own name; and the array of it."""
    torch = pytest.importorskip("torch")
    root.mkdir(parents=True)
    torch.save(torch.arange(4), root / "a.pt")
    torch.save(torch.arange(4), root / "longer.pt")
    np.save(root / "n.npy", np.arange(5))
    return {}


def lines(root: Path) -> dict[str, Any]:
    write(root / "a.jsonl", '{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    write(root / "b.jsonl", '{"n": 4}\n{"n": 2}\n')
    return {}


def texts_in_lines(root: Path) -> dict[str, Any]:
    """Lines differ, and the field that is packed does not."""
    write(root / "a.jsonl", '{"id": 1, "text": "x"}\n{"id": 2, "text": "y"}\n')
    write(root / "b.jsonl", '{"id": 333, "text": "x"}\n')
    return {"text_field": "text"}


def fields_of_lines(root: Path) -> dict[str, Any]:
    write(root / "a.jsonl", '{"id": 1, "t": "x", "n": 1}\n{"id": 22, "t": "x", "n": 1}\n')
    write(root / "b.jsonl", '{"id": 3, "t": "x", "n": 2}\n')
    return {"fields": "t,n"}


def compressed(root: Path) -> dict[str, Any]:
    import gzip

    root.mkdir(parents=True)
    (root / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n{"n": 2}\n{"n": 1}\n'))
    return {}


def table(root: Path) -> dict[str, Any]:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root.mkdir(parents=True)
    held = {"text": ["x", "y", "x", "z"], "n": [1, 2, 1, 1]}
    parquet.write_table(arrow.table(held), root / "a.parquet")
    return {}


def rows(root: Path) -> dict[str, Any]:
    """Rows of two splits in one file: each counts its own from 0."""
    root.mkdir(parents=True)
    train, test = np.arange(20).reshape(5, 4), np.arange(100, 112).reshape(3, 4)
    train[4] = test[1]
    held = {"x_train": train, "x_test": test}
    np.savez(root / "d.npz", y_train=np.zeros(5, int), y_test=np.ones(3, int), **held)
    return {}


def any_files(root: Path) -> dict[str, Any]:
    """What is called otherwise is another field, and so another sample."""
    for name, data in {"a.bin": "x", "b.bin": "x", "c.dat": "x", "d.dat": ""}.items():
        write(root / name, data)
    return {"corpus": "files"}


def masks(root: Path) -> dict[str, Any]:
    for i, (image, mask) in enumerate([(1, 1), (1, 2), (1, 1), (3, 3)]):
        write(root / "images" / f"{i}.jpg", picture(image))
        write(root / "masks" / f"{i}.png", picture(mask, kind="PNG"))
    return {}


def records_of_examples(root: Path) -> dict[str, Any]:
    root.mkdir(parents=True)
    held = [{"image": [picture(i)], "label": [i]} for i in (1, 2, 1, 3)]
    held[2]["label"] = [7]
    records(root / "a.tfrecord", held)
    return {}


def database(root: Path) -> dict[str, Any]:
    import lmdb

    root.parent.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(root), map_size=1 << 20) as env, env.begin(write=True) as txn:
        for i, number in enumerate([1, 2, 1, 3]):
            txn.put(b"%03d" % i, picture(number))
    (root / "lock.mdb").unlink(missing_ok=True)
    return {}


def sounds(root: Path) -> dict[str, Any]:
    for i, number in enumerate([1, 2, 1, 3]):
        write(root / f"class{i % 2}" / f"{i}.mp3", b"ID3" + bytes([number]) * 90)
    return {}


def captions(root: Path) -> dict[str, Any]:
    """Pictures that a table tells of: of equal ones, texts differ, too."""
    told = ["file_name,text"]
    for i, (number, text) in enumerate([(1, "x"), (1, "y"), (1, "x"), (3, "x")]):
        write(root / f"{i}.jpg", picture(number))
        told.append(f"{i}.jpg,{text}")
    write(root / "metadata.csv", "\n".join(told) + "\n")
    return {}


KINDS: list[Callable[[Path], dict[str, Any]]] = [
    *(texts, tokens, pairs, pairs_without_labels, arrays, tensors, lines, texts_in_lines),
    *(fields_of_lines, compressed, table, rows, any_files, masks),
    *(records_of_examples, database, sounds, captions),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_kinds_of_input(kind: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    source = tmp_path / "source"
    options = kind(source)
    plain = shardkit.pack(source, tmp_path / "plain", **SMALL | options)
    result = shardkit.pack(source, tmp_path / "d", **DROP | options)
    assert (result.num_duplicates, result.num_samples) == (1, plain.num_samples - 1)
    assert find_duplicates(locate(tmp_path / "plain")).num_copies == 1, "the same notion of equal"
    assert find_duplicates(locate(tmp_path / "d")).num_copies == 0
    assert len(told(tmp_path / "d")) == 1
    found = shardkit.verify(tmp_path / "d", against=source)
    assert found.ok, found.problems
    assert "1 input was left out as a duplicate, see rejected.jsonl" in found.notes
    assert shardkit.pack(source, tmp_path / "d", **DROP | options).was_complete
    with nullcontext() if kind in (compressed, records_of_examples) else forked_workers():
        shardkit.pack(source, tmp_path / "two", **DROP | options | {"workers": 2})
    assert tree(tmp_path / "two") == tree(tmp_path / "d")


def test_sizes_tell_what_they_say(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all is read, nothing else is found; and no two entries of a kind have one name."""
    seen = reads(monkeypatch)
    result = shardkit.pack(corpus, tmp_path / "d", **DROP)
    num_read, opened = sum(seen), open_corpus(corpus)
    never = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(type(opened), "sizes_tell", never)
    shardkit.pack(corpus, tmp_path / "all", **DROP)
    assert sum(seen) - num_read >= num_read
    assert tree(tmp_path / "all") == tree(tmp_path / "d")
    names = [opened.entry_name(run, i) for run in opened.runs(tmp_path) for i in range(len(run))]
    assert len({*names}) == len(names) == result.num_samples + result.num_duplicates


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_names_of_entries_differ(kind: Callable[[Path], dict[str, Any]], tmp_path: Path) -> None:
    options = kind(tmp_path / "source")
    given = {name: options[name] for name in ("text_field", "corpus") if name in options}
    fields = [*options["fields"].split(",")] if "fields" in options else None
    opened = open_corpus(
        tmp_path / "source", given.get("corpus"), None, given.get("text_field"), fields
    )
    names = [opened.entry_name(run, i) for run in opened.runs(tmp_path) for i in range(len(run))]
    assert len({*names}) == len(names)


def test_rows_are_called_by_their_split(tmp_path: Path) -> None:
    rows(tmp_path / "source")
    shardkit.pack(tmp_path / "source", tmp_path / "d", **DROP)
    assert told(tmp_path / "d") == {"d.npz at row 4 of train": "d.npz at row 1 of test"}


def test_a_label_is_no_content(tmp_path: Path) -> None:
    pairs(tmp_path / "source")
    result = shardkit.pack(tmp_path / "source", tmp_path / "d", **DROP)
    assert "1 of them with another label" in result.notes[-1]


# --- what is read ---------------------------------------------------------------------------


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of entries that are looked at for duplicates, from now on."""
    seen: list[int] = []
    hash_piece = hash_job.hash_piece

    def counting(corpus: Any, piece: Any, *rest: Any) -> None:
        seen.append(piece.num_entries)
        hash_piece(corpus, piece, *rest)

    monkeypatch.setattr(distinct, "hash_piece", counting)
    return seen


def test_only_what_has_the_size_of_another_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(50):
        write(tmp_path / "source" / f"{i:02d}.txt", "x" * (i + 1))
    write(tmp_path / "source" / "other.txt", "y" * 7)
    write(tmp_path / "source" / "same.txt", "x" * 7)
    seen = reads(monkeypatch)
    result = shardkit.pack(tmp_path / "source", tmp_path / "d", **DROP)
    assert sum(seen) == 3 and result.num_duplicates == 1


def test_complete_already_reads_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardkit.pack(source, tmp_path / "d", **DROP)
    seen = reads(monkeypatch)
    monkeypatch.setattr(ImageCorpus, "read", None)
    assert shardkit.pack(source, tmp_path / "d", **DROP).notes == [
        "complete already, from an earlier run"
    ]
    assert not seen


def test_complete_already_after_a_touch_reads_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shardkit.pack(source, tmp_path / "d", **DROP)
    os.utime(source / "train" / "class0" / "same.jpg", (1, 1))
    seen = reads(monkeypatch)
    assert shardkit.pack(source, tmp_path / "d", **DROP).was_complete
    assert seen
    seen.clear()
    assert shardkit.pack(source, tmp_path / "d", **DROP).was_complete
    assert not seen, "it is known now that it is the same"


def rewrite(file: Path) -> None:
    """Another picture of the same size, at a time of its own."""
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["train/class0/same.jpg", "train/class0/img.003.jpg"])
def test_a_copy_that_is_none_any_more(name: str, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **DROP)
    before = tree(tmp_path / "d")
    rewrite(source / name)
    with pytest.raises(DestinationError, match="others now: which have the same contents as"):
        shardkit.pack(source, tmp_path / "d", **DROP)
    assert tree(tmp_path / "d") == before
    found = shardkit.verify(tmp_path / "d", against=source)
    assert any(
        problem.where == "train/class0/same.jpg"
        and "was left out as train/class0/img.003.jpg was the same" in problem.what
        for problem in found.problems
    )


def test_other_calls_are_refused(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **DROP)
    shardkit.pack(source, tmp_path / "plain", **SMALL)
    for options, dest in ((SMALL, "d"), (DROP, "plain")):
        with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
            shardkit.pack(source, tmp_path / dest, **options)
    (source / "train" / "class0" / "same.jpg").unlink()
    with pytest.raises(DestinationError, match="already holds a dataset; pass --overwrite"):
        shardkit.pack(source, tmp_path / "d", **DROP)


def test_verify_misses_what_is_no_duplicate(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **DROP)
    write(source / "train" / "class0" / "new.jpg", picture(900))
    found = shardkit.verify(tmp_path / "d", against=source)
    assert [str(p) for p in found.problems] == ["sample 'class0/new': is not in the dataset"]


# --- bad inputs -----------------------------------------------------------------------------


def test_duplicates_are_no_rejects(source: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(source / "train" / "class0" / f"{name}.jpg", "no picture")
    given = DROP | {"on_error": "skip", "max_rejects": 0.06}
    result = shardkit.pack(source, tmp_path / "d", **given)
    assert (result.num_rejects, result.num_duplicates, result.num_samples) == (2, 5, 33)
    held = told(tmp_path / "d")
    assert len(held) == 7 and held["train/class0/b.jpg"].startswith("not an image"), "each is bad"
    again = shardkit.pack(source, tmp_path / "d", **given)
    assert again.was_complete and (again.num_rejects, again.num_duplicates) == (2, 5)
    assert shardkit.verify(tmp_path / "d", against=source).ok


def test_what_was_hashed_outlives_a_bad_input(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told as soon as it is met, and may be skipped the next time."""
    monkeypatch.setattr(whole_listing, "PIECE_BYTES", 2_000)
    for name in ("a", "b"):
        write(source / "train" / "class1" / f"{name}.jpg", "no picture")
    seen = reads(monkeypatch)
    with pytest.raises(SampleError, match=r"class1/a\.jpg: not an image.*pass --on-error skip"):
        shardkit.pack(source, tmp_path / "d", **DROP)
    num_pieces = len(seen)
    assert num_pieces > 2
    given = DROP | {"on_error": "skip", "max_rejects": 0.1}
    shardkit.pack(source, tmp_path / "d", **given)
    both = len(seen)
    shardkit.pack(source, tmp_path / "again", **given)
    assert both == len(seen) - both + 1, "only the piece with the bad input is read again"
    assert tree(tmp_path / "d") == tree(tmp_path / "again")


def test_a_bad_line_moves_no_other(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"t": "x"}\nno\n{"t": "y"}\n{"t": "x"}\n{"t": 5}\n{"t": "y"}\n')
    given = DROP | {"text_field": "t", "on_error": "skip", "max_rejects": 0.5}
    result = shardkit.pack(tmp_path / "a.jsonl", tmp_path / "d", **given)
    assert (result.num_rejects, result.num_duplicates, result.num_samples) == (2, 2, 2)
    copies = told_copies((tmp_path / "d" / "rejected.jsonl").read_bytes())
    assert copies == {
        "a.jsonl at byte 25": "a.jsonl at byte 0",
        "a.jsonl at byte 45": "a.jsonl at byte 14",
    }
    assert shardkit.verify(tmp_path / "d", against=tmp_path / "a.jsonl").ok


# --- parts ----------------------------------------------------------------------------------


def make_parts(source: Path, tmp_path: Path, **options: Any) -> list[Path]:
    made = [tmp_path / f"part{number}" for number in (1, 2, 3)]
    for number, dest in enumerate(made, 1):
        result = shardkit.pack(source, dest, part=f"{number}/3", **DROP | options)
        assert result.num_duplicates == 5
        assert any(note.startswith("left out 5 duplicates of ") for note in result.notes)
    return made


def test_parts_make_the_same(source: Path, container: str, tmp_path: Path) -> None:
    options = {"to": container, "shuffle": container == "lmdb"}
    whole = shardkit.pack(source, tmp_path / "whole", **DROP | options)
    parts = make_parts(source, tmp_path, **options)
    merged = shardkit.merge(parts, tmp_path / "merged")
    assert tree(tmp_path / "merged") == tree(tmp_path / "whole")
    assert (merged.num_duplicates, merged.num_rejects) == (5, 0)
    assert whole.notes[-1] in merged.notes
    again = shardkit.merge(parts, tmp_path / "merged")
    assert again.was_complete and again.num_duplicates == 5
    assert shardkit.pack(source, tmp_path / "merged", **DROP | options).was_complete
    assert shardkit.verify(tmp_path / "merged", against=source).ok


def test_parts_of_other_duplicates_are_refused(source: Path, tmp_path: Path) -> None:
    """An input is changed in between, and nothing that people see tells."""
    parts = make_parts(source, tmp_path)
    file = source / "train" / "class0" / "same.jpg"
    status = file.stat()
    rewrite(file)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    shardkit.pack(source, parts[1], part="2/3", **DROP, overwrite=True)
    with pytest.raises(PartError, match="inputs that changed in between"):
        shardkit.merge(parts, tmp_path / "merged")


def test_a_part_whose_lines_are_damaged(source: Path, tmp_path: Path) -> None:
    parts = make_parts(source, tmp_path)
    path = parts[0] / ".packing" / "contents" / "left_out.jsonl"
    path.write_bytes(path.read_bytes().replace(b"same.jpg", b"sane.jpg"))
    with pytest.raises(PartError, match=r"left_out\.jsonl is damaged; run the command that packed"):
        shardkit.merge(parts, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    shardkit.pack(source, parts[0], part="1/3", **DROP)
    assert shardkit.merge(parts, tmp_path / "merged").num_duplicates == 5


def test_to_a_url(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is packed on this machine, where the listing and the hashes are, too."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    shardkit.pack(source, tmp_path / "d", **DROP)
    url = (tmp_path / "new" / "d").as_uri()
    result = shardkit.pack(source, url, **DROP, staging=tmp_path / "staging")
    assert result.num_duplicates == 5
    assert tree(tmp_path / "new" / "d") == tree(tmp_path / "d")


# --- kills ----------------------------------------------------------------------------------


SLOW = """
import os, sys
from shardkit.cli import main
from shardkit.packing import {module}, whole_listing
whole_listing.PIECE_BYTES = {piece_bytes}
real, left = {module}.{name}, {number}
def dying(*args):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    return real(*args)
{module}.{name} = dying
sys.argv[0] = "shardkit"
main()
"""


def killed_at(module: str, name: str, number: int, source: Path, dest: Path) -> bool:
    """Whether packing was killed before the nth call of a function."""
    values = {"module": module, "name": name, "number": number}
    code = SLOW.format(**values, piece_bytes=whole_listing.PIECE_BYTES)
    flags = ["pack", source, dest, "--to", "npy", "--drop-duplicates", "--workers", "0"]
    words = [sys.executable, "-c", code, *map(str, flags), "--shard-size", "4kB"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=env, capture_output=True, check=False)
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


@pytest.mark.parametrize("number", [0, 1, 5])
def test_hashes_outlive_a_kill(
    number: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_listing, "PIECE_BYTES", 2_000)
    shardkit.pack(source, tmp_path / "whole", **DROP)
    dest = tmp_path / "killed"
    assert killed_at("distinct", "hash_piece", number, source, dest)
    seen = reads(monkeypatch)
    result = shardkit.pack(source, dest, **DROP)
    assert tree(dest) == tree(tmp_path / "whole") and result.num_duplicates == 5
    num_all = len(seen)
    seen.clear()
    shardkit.pack(source, tmp_path / "again", **DROP)
    assert num_all == len(seen) - number, "what was hashed before the kill is not read again"


@pytest.mark.parametrize("number", [0, 2])
def test_a_kill_while_packing(number: int, source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "whole", **DROP)
    dest = tmp_path / "killed"
    assert killed_at("local", "commit_job", number, source, dest)
    result = shardkit.pack(source, dest, **DROP)
    assert tree(dest) == tree(tmp_path / "whole") and result.num_duplicates == 5
    assert result.resumed_shards == number


def test_damaged_hashes_are_made_again(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_listing, "PIECE_BYTES", 2_000)
    shardkit.pack(source, tmp_path / "whole", **DROP)
    dest = tmp_path / "killed"
    assert killed_at("local", "write_job", 0, source, dest)
    path = dest / ".packing" / "contents" / "hashes"
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    seen = reads(monkeypatch)
    shardkit.pack(source, dest, **DROP)
    assert len(seen) == 1 and tree(dest) == tree(tmp_path / "whole")


def test_an_input_that_changed_since_the_kill(source: Path, tmp_path: Path) -> None:
    dest = tmp_path / "killed"
    assert killed_at("local", "write_job", 1, source, dest)
    os.utime(source / "train" / "class0" / "same.jpg", (1, 1))  # one that is left out
    with pytest.raises(ResumeError, match="input files changed since this pack was started"):
        shardkit.pack(source, dest, **DROP)
    shardkit.pack(source, dest, **DROP, overwrite=True)
    shardkit.pack(source, tmp_path / "whole", **DROP)
    assert tree(dest) == tree(tmp_path / "whole")


def test_a_worker_that_dies(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_listing, "PIECE_BYTES", 2_000)
    send = local._Worker.send

    def dying(worker: Any, message: dict[str, Any]) -> None:
        if message.get("first", 0) > 9:
            os.kill(worker.process.pid, signal.SIGKILL)
        send(worker, message)

    with monkeypatch.context() as patched:
        patched.setattr(local._Worker, "send", dying)
        with pytest.raises(StorageError, match=r"worker was killed by signal 9 .*the same command"):
            shardkit.pack(source, tmp_path / "d", **DROP | {"workers": 2})
    assert (tmp_path / "d" / ".packing" / "contents" / "hashes").exists(), "worth keeping"
    shardkit.pack(source, tmp_path / "d", **DROP | {"workers": 2})
    shardkit.pack(source, tmp_path / "whole", **DROP)
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")


def test_ctrl_c_while_looking(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was hashed is kept; nothing else was begun."""
    slow = SLOW.format(
        module="distinct", name="hash_piece", number=10**6, piece_bytes=2000
    ).replace("    left -= 1", "    import time; time.sleep(0.2)")
    flags = ["pack", source, tmp_path / "d", "--to", "npy", "--drop-duplicates", "--workers", "0"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", slow, *map(str, flags), "--shard-size", "4kB"]
    process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE)
    hashes = tmp_path / "d" / ".packing" / "contents" / "hashes"
    while not (hashes.exists() and any(hashes.read_bytes())):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert any(hashes.read_bytes())
    monkeypatch.setattr(whole_listing, "PIECE_BYTES", 2_000)
    shardkit.pack(source, tmp_path / "d", **DROP)
    assert told(tmp_path / "d") == LEFT_OUT


def test_a_full_disk_while_looking(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hash_file, "_write_at", full)
    with pytest.raises(
        StorageError, match=r"looking for duplicates .*: the disk is full; free some"
    ):
        shardkit.pack(source, tmp_path / "d", **DROP)
    monkeypatch.undo()
    assert shardkit.pack(source, tmp_path / "d", **DROP).num_duplicates == 5


def test_hashes_that_are_not_what_was_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may be lost without a word from the system: no input is left out for it."""
    real = hash_file._write_at

    def lose_half(path: Path, data: bytes, offset: int) -> None:
        real(path, data[: len(data) // 2 if path.name == "hashes" else None], offset)

    monkeypatch.setattr(hash_file, "_write_at", lose_half)
    with pytest.raises(StorageError, match="hashes is not as it was written; run the same"):
        shardkit.pack(source, tmp_path / "d", **DROP)
    monkeypatch.undo()
    assert shardkit.pack(source, tmp_path / "d", **DROP).num_duplicates == 5


def test_a_listing_that_is_not_what_was_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what is listed before duplicates are looked for: the runs of it would just be fewer."""
    init = whole_listing.WholeListing.__init__

    def cut_short(self: Any, *args: Any) -> None:
        init(self, *args)
        os.truncate(self._path, self._path.stat().st_size - 40)

    monkeypatch.setattr(whole_listing.WholeListing, "__init__", cut_short)
    with pytest.raises(StorageError, match="listing is not as it was written; run the same"):
        shardkit.pack(source, tmp_path / "d", **DROP)
    monkeypatch.undo()
    assert shardkit.pack(source, tmp_path / "d", **DROP).num_duplicates == 5


# --- the command line -----------------------------------------------------------------------


def test_what_the_command_says(run: RunCommand, source: Path, tmp_path: Path) -> None:
    words = ["pack", source, tmp_path / "d", "--to", "npy", "--drop-duplicates", "--workers", 0]
    done = run(*words)
    assert done.code == 0
    assert "  left out 5 duplicates of " in done.out and "rejected.jsonl names them" in done.out
    assert "inputs rejected" not in done.out
    assert "complete already" in run(*words).out
    assert json.loads(run(*words, "--json").out)["num_duplicates"] == 5


def test_an_estimate_is_of_all(source: Path) -> None:
    with pytest.raises(UsageError, match="leave drop_duplicates out"):
        shardkit.estimate(source, to="npy", drop_duplicates=True)


def test_a_converted_dataset_says_the_same(source: Path, tmp_path: Path) -> None:
    shardkit.pack(source, tmp_path / "d", **DROP)
    shardkit.convert(tmp_path / "d", tmp_path / "e", to="webdataset", workers=0, progress=False)
    assert told(tmp_path / "e") == LEFT_OUT
    assert shardkit.verify(tmp_path / "e", against=source).ok


# --- pure functions -------------------------------------------------------------------------


@given(st.lists(st.integers(0, 12), max_size=60))
def test_repeated(values: list[int]) -> None:
    found = repeated(np.array(values, np.int64))
    assert found.tolist() == [values.count(value) > 1 for value in values]


SAMPLES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 9), st.booleans()), max_size=60
)


@given(SAMPLES)
def test_find_copies(samples: list[tuple[int, int, int, bool]]) -> None:
    """Of each set of equal contents one stays: the first that does not give way, or the first."""
    hashes = np.array([held[:3] for held in samples], np.uint64).reshape(-1, 3)
    copies, firsts = find_copies(hashes, np.array([held[3] for held in samples], bool))
    expected = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for number, (one, two, _, _) in enumerate(samples):
        if one or two:
            groups.setdefault((one, two), []).append(number)
    for numbers in groups.values():
        stays = min(numbers, key=lambda number: (samples[number][3], number))
        expected |= {number: stays for number in numbers if number != stays}
    assert dict(zip(copies.tolist(), firsts.tolist(), strict=True)) == expected
    assert copies.tolist() == sorted(copies.tolist())


RUNS = st.lists(
    st.tuples(st.sampled_from(["test", "train"]), st.integers(1, 9)), min_size=1, max_size=8
)


@given(RUNS, st.data())
def test_a_whole_listing_without_some(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int]], data: st.DataObject
) -> None:
    made.sort()
    runs, entries = [], []
    for number, (split, count) in enumerate(made):
        names = [b"%d.%d" % (number, i) for i in range(count)]
        runs.append(Run(split, "", number, names, names, [len(n) for n in names], [7] * count))
        entries += [(split, number, name) for name in names]
    whole = WholeListing(tmp_path_factory.mktemp("whole"), iter(runs))
    assert len(whole) == len(entries)
    out = data.draw(st.sets(st.integers(0, len(entries) - 1)))
    numbers = np.array(sorted(out), np.int64)
    left = [
        (run.split, run.label, key) for run in whole.runs(leaving_out=numbers) for key in run.keys
    ]
    assert left == [entry for number, entry in enumerate(entries) if number not in out]
    found = [(number, run.keys[i]) for number, run, i in whole.found(numbers)]
    assert found == [(number, entries[number][2]) for number in sorted(out)]


PATHS = st.text(st.characters(codec=None), min_size=1, max_size=9)


@given(st.dictionaries(PATHS, PATHS, max_size=9))
def test_lines_say_what_they_were_told(copies: dict[str, str]) -> None:
    lines = copy_lines(copies.items())
    assert told_copies(lines) == copies
    other = json.dumps({"path": "x", "reason": "empty file"}).encode() + b"\n"
    assert lines_of_copies(other + lines + b"no JSON: the same contents as x\n") == lines


def test_notes() -> None:
    assert LeftOut(1, 1000, 0, 0, 0).note == (
        "left out 1 duplicate of 1.0 kB: the input has the same contents as others; rejected.jsonl"
        " names them"
    )
