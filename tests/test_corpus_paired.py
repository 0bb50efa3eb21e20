"""Files paired by stem."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpus_files import JPG, PNG, read_all, tree

from shardkit.errors import CorpusError
from shardkit.inputs.kinds import from_spec
from shardkit.inputs.names import encode
from shardkit.inputs.paired import PairedCorpus, sample_stems
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
    tree(tmp_path, {"1.jpg": JPG, "1.txt": b"", "2.jpg": JPG, "2.cls": b"7\n", "3.npy": b"alone"})
    batch = read_pairs(tmp_path)
    assert batch.keys == [b"0", b"1", b"2", b"3"]
    assert batch.columns == {
        "cls": [None, None, b"7\n", None],
        "jpg": [JPG, JPG, JPG, None],
        "json": [b'{"a": 1}', None, None, None],
        "npy": [None, None, None, b"alone"],
        "txt": [b"a cat\n", b"", None, None],
    }
    assert batch.paths[0] == b"+.jpg\0+.json\0+.txt"
    assert batch.paths[3] == b"+.npy"
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
        "c.gif": PNG,
        "d.TIFF": PNG,
    }
    batch = read_pairs(tree(tmp_path, contents))
    assert [{**row} for row in original_paths(batch)] == [
        {"jpg": b"a.JPEG", "txt": b"a.TXT"},
        {"png": b"b.jpg", "left.jpg": b"b.left.jpeg"},
        {"bin": b"c.bin", "png": b"c.gif"},
        {"png": b"d.TIFF"},
    ]
    assert batch.columns["png"] == [None, PNG, PNG, PNG]


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
            {"b.jpg": JPG, "b.txt": b"1", "b.TXT": b"2"},
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
    runs = [*corpus.runs(tmp_path)]
    (tmp_path / "a.txt").write_bytes(b"12")
    batches = [corpus.read(run, tmp_path) for run in runs]
    assert [batch.keys for batch in batches] == [[b"b"], []]
    rejects = [each for batch in batches for each in batch.rejects]
    assert rejects[0][0] == "a.txt"
    assert rejects[1] == ("b.txt", "is a FIFO, not a file")


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
    for i in range(3):
        tree(tmp_path, {f"{i}.jpg": JPG, f"{i}.txt": b"0 .5 .5 .2 .2"})
    corpus = PairedCorpus(tmp_path)
    for _ in range(2):
        list(corpus.runs(tmp_path))
        assert corpus.notes == []
    tree(tmp_path, {"mean.npy": b""})
    for _ in range(2):
        list(corpus.runs(tmp_path))
        assert corpus.notes == ["1 of 4 samples have no picture: mean"]


@pytest.mark.parametrize("ending", ["jpg", "npy", "wav"])
@pytest.mark.parametrize(
    ("base", "sidecars"),
    [
        ("", ["classes.txt", "stats.json", "train.txt"]),
        ("data/", ["README.md", "obj.data", "obj.names", "train.txt", "val.txt"]),
        ("a/b/", ["a/list.txt", "00000.parquet", "00000_stats.json"]),
    ],
    ids=["beside pairs", "above them", "at several levels"],
)
def test_files_about_samples_are_passed_over(
    tmp_path: Path, base: str, sidecars: list[str], ending: str
) -> None:
    pairs = {f"{base}{i}.{end}": JPG for i in range(3) for end in (ending, "txt")}
    tree(tmp_path, pairs | dict.fromkeys(sidecars, b"1"))
    corpus = PairedCorpus(tmp_path)
    assert read_all(corpus, tmp_path)["train"].keys == [f"{base}{i}".encode() for i in range(3)]
    told = [name for name in sidecars if not name.startswith("README")]
    (note,) = [note for note in corpus.notes if "passed over" in note]
    assert note.startswith(f"{len(told)} files without a picture, array, sound or film")
    assert sum(corpus.ignored.values()) == len(sidecars)


def test_texts_are_samples_where_most_have_no_picture(tmp_path: Path) -> None:
    """And in folders beside, where nothing says that they are about the others."""
    texts = ["a/1.txt", "a/2.txt", "a/3.txt", "b/4.txt", "b/4.json"]
    tree(tmp_path, dict.fromkeys(["a/0.jpg", "a/0.txt", *texts], JPG))
    assert read_pairs(tmp_path).keys == [b"a/0", b"a/1", b"a/2", b"a/3", b"b/4"]


# --- dots in names ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["shot.{:04d}", "www.example.com_{}", "seg_{0}.{0}-9.0", "{}.1.a", "v{}.{}_final"],
)
@pytest.mark.parametrize(
    "endings", [("jpg", "txt"), ("npy", "json"), ("png", "txt", "nii.gz"), ("jpg", "jpg.json")]
)
def test_dots_may_be_a_part_of_names(tmp_path: Path, name: str, endings: tuple[str, ...]) -> None:
    names = [name.format(i, i) for i in range(12)]
    if name == "{}.1.a":
        names = [f"{i}.{i + 1}.a" for i in range(12)]
    tree(tmp_path, {f"k/{one}.{ending}": PNG for one in names for ending in endings})
    tree(tmp_path, {"k/shot.txt": b"about them"})
    corpus = PairedCorpus(tmp_path)
    batch = read_all(corpus, tmp_path)["train"]
    assert sorted(batch.keys) == sorted(f"k/{one}".encode() for one in names)
    assert len(batch.columns) == len(endings)
    assert all(None not in column for column in batch.columns.values())
    assert corpus.notes[0].startswith("k: names are not cut at the first dot: ")
    found = {path for row in original_paths(batch) for path in row.values()}
    assert len(found) == len(names) * len(endings)


@pytest.mark.parametrize(
    "views",
    [
        ["left.jpg", "left.txt", "right.jpg", "right.txt"],
        ["0.npy", "0.json", "1.npy", "1.json"],
        ["jpg", "txt", "1.jpg", "1.txt"],
        ["rgb.png", "mask.png", "txt"],
    ],
)
def test_views_that_samples_share_are_fields(tmp_path: Path, views: list[str]) -> None:
    tree(tmp_path, {f"{i}.{view}": PNG for i in range(3) for view in views})
    tree(tmp_path, {"2.extra.jpg": PNG, "2.extra.txt": b"1"})
    assert read_pairs(tmp_path).keys == [b"0", b"1", b"2"]


def test_dots_that_may_be_of_names_are_told_of(tmp_path: Path) -> None:
    names = [f"v{i}.{k}_a" for i in range(3) for k in range(3)]
    tree(tmp_path, {f"{name}.{ending}": PNG for name in names for ending in ("jpg", "txt")})
    corpus = PairedCorpus(tmp_path)
    assert read_all(corpus, tmp_path)["train"].keys == [b"v0", b"v1", b"v2"]
    assert corpus.notes[0] == ".: names are cut at the first dot: v0.0_a is of sample v0"


def test_lists_beside_splits_leave_them_splits(tmp_path: Path) -> None:
    pairs = {
        f"{one}/{i}.{e}": JPG for one in ("train", "val") for i in "01" for e in ("jpg", "txt")
    }
    corpus = PairedCorpus(tree(tmp_path, pairs | {"train.txt": b"1", "obj.names": b"1"}))
    assert {one: batch.keys for one, batch in read_all(corpus, tmp_path).items()} == {
        "train": [b"0", b"1"],
        "val": [b"0", b"1"],
    }
    assert corpus.ignored == {".txt": 1, ".names": 1}


def test_a_folder_of_one_sample_may_have_views(tmp_path: Path) -> None:
    tree(tmp_path, {f"s/cam.{view}.{e}": PNG for view in ("left", "right") for e in ("jpg", "txt")})
    corpus = PairedCorpus(tmp_path)
    assert read_all(corpus, tmp_path)["train"].keys == [b"s/cam"]
    assert corpus.notes[0] == "s: names are cut at the first dot: cam.left is of sample cam"


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
    tops = {*sample_stems(ordered)[0]}
    with TemporaryDirectory() as scratch:
        tree(Path(scratch), dict.fromkeys(ordered, b"1"))
        corpus = PairedCorpus(Path(scratch))
        try:
            (run,) = corpus.runs(Path(scratch))
        except (CorpusError, ValueError):
            return
    assert len(set(run.keys)) == len(run.keys) <= len(tops)
    members = [name for locator in run.locators for name in locator.split(b"/")[::2]]
    assert sorted(members) == sorted(encode([name for name in ordered if "." in name]))
    assert sum(run.sizes) == len(members)
    assert sum(corpus.ignored.values()) == len(ordered) - len(members)
