"""Files paired by stem."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpus_files import JPG, PNG, read_all, tree

from shardkit.errors import CorpusError
from shardkit.inputs.files import FolderListing
from shardkit.inputs.folders import Root
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.names import encode
from shardkit.inputs.paired import PairedCorpus, paired_run
from shardkit.samples.sample import SampleBatch, unpack_paths


def read_pairs(source: Path) -> SampleBatch:
    batches = read_all(PairedCorpus(source), source)
    assert list(batches) == ["train"]
    return batches["train"]


def original_paths(batch: SampleBatch) -> list[dict[str, bytes]]:
    """For each sample: field -> original path."""
    found = []
    for i, (key, packed) in enumerate(zip(batch.keys, batch.paths, strict=True)):
        present = [name for name, column in batch.columns.items() if column[i] is not None]
        found.append({name: path for name, path, _ in unpack_paths(key, packed, present)})
    return found


def test_fields_by_extension_some_absent(tmp_path: Path) -> None:
    tree(tmp_path, {"0.jpg": JPG, "0.txt": b"a cat\n", "0.json": b'{"a": 1}'})
    tree(tmp_path, {"1.jpg": JPG, "1.txt": b"", "2.jpg": JPG, "2.cls": b"7\n", "3.txt": b"alone"})
    batch = read_pairs(tmp_path)
    assert batch.keys == [b"0", b"1", b"2", b"3"]
    assert batch.columns == {
        "cls": [None, None, b"7\n", None],
        "jpg": [JPG, JPG, JPG, None],
        "json": [b'{"a": 1}', None, None, None],
        "txt": [b"a cat\n", b"", None, b"alone"],
    }
    assert batch.paths[0] == b"+.jpg\0+.json\0+.txt"
    assert batch.paths[3] == b"+.txt"
    assert original_paths(batch)[2] == {"cls": b"2.cls", "jpg": b"2.jpg"}


def test_stems_end_at_the_first_dot_of_the_file_name_only(tmp_path: Path) -> None:
    tree(
        tmp_path,
        {"v1.0/a.seg.png": PNG, "v1.0/a.jpg": JPG, "v1.0/a-b.jpg": JPG, "v1.0/a0.jpg": JPG},
    )
    batch = read_pairs(tmp_path)
    assert sorted(batch.keys) == [b"v1.0/a", b"v1.0/a-b", b"v1.0/a0"]
    row = batch.keys.index(b"v1.0/a")
    assert original_paths(batch)[row] == {"jpg": b"v1.0/a.jpg", "seg.png": b"v1.0/a.seg.png"}


def test_pictures_are_named_by_content_other_files_by_name(tmp_path: Path) -> None:
    contents = {
        "a.JPEG": JPG,
        "a.TXT": b"x",
        "b.jpg": PNG,
        "b.left.jpeg": JPG,
        "c.bin": JPG,
        "d.TIFF": PNG,
    }
    batch = read_pairs(tree(tmp_path, contents))
    assert [{**row} for row in original_paths(batch)] == [
        {"jpg": b"a.JPEG", "txt": b"a.TXT"},
        {"png": b"b.jpg", "left.jpg": b"b.left.jpeg"},
        {"bin": b"c.bin"},
        {"png": b"d.TIFF"},
    ]
    assert batch.columns["png"] == [None, PNG, None, PNG]


def test_paths_follow_the_order_of_fields_not_of_names(tmp_path: Path) -> None:
    """``a.JPG`` sorts before ``a.cls``, field ``jpg`` after ``cls``."""
    batch = read_pairs(tree(tmp_path, {"a.JPG": JPG, "a.cls": b"1"}))
    assert batch.paths == [b"+.cls\0+.JPG"]


def test_class_folders_give_no_label(tmp_path: Path) -> None:
    corpus = PairedCorpus(tree(tmp_path, {"cat/a.jpg": JPG, "cat/a.txt": b"x"}))
    assert corpus.classes is None
    assert read_all(corpus, tmp_path)["train"].columns.keys() == {"jpg", "txt"}


def test_splits(tmp_path: Path) -> None:
    tree(tmp_path, {"train/x/a.jpg": JPG, "train/x/a.txt": b"1", "dev/a.jpg": JPG})
    batches = read_all(PairedCorpus(tmp_path), tmp_path)
    assert batches["train"].keys == [b"x/a"]
    assert original_paths(batches["train"]) == [{"jpg": b"train/x/a.jpg", "txt": b"train/x/a.txt"}]
    assert batches["dev"].keys == [b"a"]


def test_files_without_a_dot_are_passed_over(tmp_path: Path) -> None:
    corpus = PairedCorpus(tree(tmp_path, {"a.jpg": JPG, "a": b"1", "Makefile": b"1"}))
    batch = read_all(corpus, tmp_path)["train"]
    assert batch.keys == [b"a"]
    assert corpus.ignored == {"": 2}
    with pytest.raises(CorpusError, match=r"no paired files in .* only 1 file \(no extension 1\)"):
        list(PairedCorpus(tree(tmp_path / "b", {"x": b"1"})).runs(tmp_path))


def test_a_readme_is_no_sample(tmp_path: Path) -> None:
    """Unless it is a picture, or says something of one."""
    passed = ["README.md", "ReadMe.zh.md", "k/LICENSE.txt", "CITATION.cff"]
    samples = ["a.txt", "authors.jpg", "k/notice.png", "k/notice.txt", "readme2.txt"]
    tree(tmp_path, dict.fromkeys(passed + samples, JPG))
    corpus = PairedCorpus(tmp_path)
    batch = read_all(corpus, tmp_path)["train"]
    assert batch.keys == [b"a", b"authors", b"readme2", b"k/notice"]
    assert corpus.ignored == {".md": 2, ".txt": 1, ".cff": 1}


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (
            {"b.jpg": JPG, "b.jpeg": JPG},
            ("b.jpg", "is field 'jpg' of its sample, and so is b.jpeg"),
        ),
        (
            {"b.txt": b"1", "b.TXT": b"2"},
            ("b.txt", "is field 'txt' of its sample, and so is b.TXT"),
        ),
        ({"b.jpg": PNG, "b.png": PNG}, ("b.png", "is field 'png' of its sample, and so is b.jpg")),
        ({"b.jpg": b"", "b.txt": b"1"}, ("b.jpg", "empty file")),
        ({"b.jpg": b"text", "b.txt": b"1"}, ("b.jpg", "not an image: begins with b'text'")),
    ],
)
def test_one_bad_file_rejects_its_sample(
    tmp_path: Path, contents: dict[str, bytes], problem: tuple[str, str]
) -> None:
    tree(tmp_path / "k", {"a.jpg": JPG, "c.jpg": JPG, "c.txt": b"c"} | contents)
    batch = read_pairs(tmp_path)
    assert batch.keys == [b"k/a", b"k/c"]
    assert batch.columns == {"jpg": [JPG, JPG], "txt": [None, b"c"]}
    ((path, reason),) = batch.rejects
    assert path == f"k/{problem[0]}"
    assert reason.startswith(problem[1])


def test_a_fifo_and_a_changed_file(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jpg": JPG, "a.txt": b"1", "b.jpg": JPG})
    os.mkfifo(tmp_path / "b.txt")
    corpus = PairedCorpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"12")
    batch = corpus.read(run, tmp_path)
    assert batch.keys == []
    assert [path for path, _ in batch.rejects] == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    "name", ["a.left image", "a.é", "a.__key__", "a.jpg.offsets", "a.jpg.PRESENT", "a.", "a.\udcff"]
)
def test_what_cannot_name_a_field(tmp_path: Path, name: str) -> None:
    tree(tmp_path, {f"k/{name}": b"1"})
    with pytest.raises(CorpusError, match="cannot name a field") as info:
        list(PairedCorpus(tmp_path).runs(tmp_path))
    assert "k/" in str(info.value)
    assert str(info.value).isprintable()


def test_sizes_and_stamps_say_when_any_file_changes(tmp_path: Path) -> None:
    tree(tmp_path, {"a.jpg": JPG, "a.txt": b"123", "a.json": b"{}"})
    (before,) = PairedCorpus(tmp_path).runs(tmp_path)
    assert before.sizes == [len(JPG) + 5]
    for name in ("a.txt", "a.jpg"):
        os.utime(tmp_path / name, ns=(1, 1))
    (after,) = PairedCorpus(tmp_path).runs(tmp_path)
    assert after.stamps != before.stamps


def test_the_stamp_of_many_files_fits_64_bits(tmp_path: Path) -> None:
    tree(tmp_path, {f"a.{i}": b"1" for i in range(9)})
    for i in range(9):
        os.utime(tmp_path / f"a.{i}", ns=(1, 1_800_000_000_000_000_000))
    (run,) = PairedCorpus(tmp_path).runs(tmp_path)
    assert 0 <= run.stamps[0] < 2**63


def test_samples_without_a_picture_are_named(tmp_path: Path) -> None:
    """Names of classes beside pictures and boxes, as darknet has them, are a sample of text."""
    for i in range(3):
        tree(tmp_path, {f"{i}.jpg": JPG, f"{i}.txt": b"0 .5 .5 .2 .2"})
    corpus = PairedCorpus(tmp_path)
    for _ in range(2):
        list(corpus.runs(tmp_path))
        assert corpus.notes == []
    tree(tmp_path, {"classes.txt": b"dog"})
    for _ in range(2):
        list(corpus.runs(tmp_path))
        assert corpus.notes == ["1 of 4 samples have no picture: classes"]


def test_slices_and_workers(tmp_path: Path) -> None:
    tree(tmp_path, {f"{i}.txt": b"%d" % i for i in range(5)} | {"3.jpg": JPG})
    corpus = PairedCorpus(tmp_path)
    (run,) = corpus.runs(tmp_path)
    batch = from_spec(tmp_path, corpus.spec()).read(run.slice(2, 4), tmp_path)
    assert batch.columns == {"jpg": [None, JPG], "txt": [b"2", b"3"]}


def test_odd_names(tmp_path: Path) -> None:
    for stem in (b"a b", b"%20", b"n\nl", b"\xff\xfe", b"x" * 251):
        for ending in (b".jpg", b".txt"):
            with open(os.path.join(os.fsencode(tmp_path), stem + ending), "wb") as out:
                out.write(JPG)
    batch = read_pairs(tmp_path)
    assert len(batch) == 5
    assert not batch.rejects
    assert all(
        row == {"jpg": k + b".jpg", "txt": k + b".txt"}
        for k, row in zip(batch.keys, original_paths(batch), strict=True)
    )


names = st.sets(st.text(st.sampled_from("ab.-_\udcff\n"), min_size=1, max_size=6), max_size=15)


@given(names)
def test_each_file_is_in_one_sample_and_keys_never_repeat(found: set[str]) -> None:
    ordered = sorted(name for name in found if not name.startswith("."))
    folder = FolderListing("k", [], ordered, [1] * len(ordered), [1] * len(ordered))
    ignored: dict[str, int] = {}
    try:
        run = paired_run(folder, Root("train", ""), ignored)
    except CorpusError:
        return
    assert len(set(run.keys)) == len(run.keys)
    members = [name for locator in run.locators for name in locator.split(b"/")[::2]]
    assert members == encode([name for name in ordered if "." in name])
    assert sum(run.sizes) == len(members)
    assert sum(ignored.values()) == len(ordered) - len(members)
