"""Files of one folder that are one sample."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import write
from hypothesis import given
from hypothesis import strategies as st
from layouts import JPG, PNG, check_run

from shardkit.errors import CorpusError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import from_spec
from shardkit.inputs.file_parts import MAIN, CompanionCorpus, PairedCorpus, group
from shardkit.inputs.files import extension
from shardkit.samples.sample import SampleBatch, unpack_paths


def made(root: Path, files: dict[str, bytes] | list[str]) -> Path:
    for name in files:
        ending = name.rpartition(".")[2].lower()
        data = JPG if ending in ("jpg", "jpeg") else PNG if ending == "png" else b"1"
        write(root / name, files[name] if isinstance(files, dict) else data)
    return root


def read(corpus: PairedCorpus, split: str = "train") -> SampleBatch:
    batch = SampleBatch()
    for run in corpus.runs(corpus.source):
        check_run(run)
        if run.split == split:
            batch.extend(from_spec(corpus.source, corpus.spec()).read(run, corpus.source))
    return batch


def fields(corpus: PairedCorpus) -> dict[str, dict[str, str]]:
    """Return key -> field -> path."""
    batch = read(corpus)
    return {
        os.fsdecode(key): {
            name: os.fsdecode(path)
            for name, path, _ in unpack_paths(key, batch.paths[i], [*batch.fields(i)])
        }
        for i, key in enumerate(batch.keys)
    }


def each(names: str, count: int) -> str:
    """Return names with a number for each ``#``."""
    return " ".join(names.replace("#", str(i)) for i in range(count))


TABLE = [
    ("by ending", "0.jpg 0.txt 0.json 1.jpg", "0=jpg,json,txt 1=jpg", ""),
    ("arrays", "a.npy a.cls b.npy", "a=cls,npy b=npy", ""),
    ("by content", "a.JPEG a.TXT b.left.jpeg b.jpg", "a=jpg,txt b=jpg,left.jpg", ""),
    ("dots in folders", "v1.0/a.jpg v1.0/a-b.jpg", "v1.0/a=jpg v1.0/a-b=jpg", ""),
    ("two endings", "a.nii.gz a.npy", "a=nii.gz,npy", ""),
    # Masks and other companions of an image.
    ("x_mask", "a.jpg a_mask.png a_mask_2.png b.jpg", "a=jpg,mask.png,mask_2.png b=jpg", ""),
    ("x.mask", "a.jpg a.mask.png a.txt", "a=jpg,mask.png,txt", ""),
    ("x.png next to x.jpg", "a.jpg a.png b.png", "a=jpg,png b=png", ""),
    ("masks of masks", "a.jpg a_mask.jpg a_mask_mask.jpg", "a=jpg,mask.jpg a_mask_mask=jpg", ""),
    ("dots and masks", "I1.0.jpg I1.0_mask.png", "I1.0=jpg,mask.png", ""),
    # Dots are a part of names, unless samples share views.
    ("frames", each("shot.#.jpg shot.#.txt", 6), each("shot.#=jpg,txt", 6), ""),
    ("versions", each("s#.#-9.0.png s#.#-9.0.txt", 3), each("s#.#-9.0=png,txt", 3), ""),
    ("views", each("#.left.png #.right.png", 3), each("#=left.png,right.png", 3), ""),
    ("a view of one", "a.jpg a.seg.png a.xml", "a=jpg,seg.png,xml", ""),
    ("frames and a plain one", "s.jpg " + each("s.#.jpg", 20), "s=jpg " + each("s.#=jpg", 20), ""),
    # What is about samples is none.
    ("classes", "a.jpg a.txt classes.txt", "a=jpg,txt", "classes.txt"),
    ("above them", "k/a.jpg k/a.txt obj.names train.txt", "k/a=jpg,txt", "obj.names train.txt"),
    ("documents", "a.jpg a.json README.md authors.jpg", "a=jpg,json authors=jpg", "README.md"),
    ("no dot", "a.jpg a Makefile", "a=jpg", "Makefile a"),
    ("mostly texts", "a.jpg a.txt 1.txt 2.txt 3.txt", "a=jpg,txt", "1.txt 2.txt 3.txt"),
]


@pytest.mark.parametrize(("files", "expected", "passed"), [t[1:] for t in TABLE])
def test_table(files: str, expected: str, passed: str, tmp_path: Path) -> None:
    corpus = PairedCorpus(made(tmp_path, files.split()))
    found = fields(corpus)
    assert {f"{key}={','.join(sorted(own))}" for key, own in found.items()} == {*expected.split()}
    taken = {path for own in found.values() for path in own.values()}
    assert taken == {*files.split()} - {*passed.split()}
    assert sum(corpus.ignored.values()) == len(passed.split())
    others = [name for name in passed.split() if "." in name and not name.startswith("README")]
    assert all(name in " ".join(corpus.notes) for name in others), "what is passed over is named"


@pytest.mark.parametrize(
    ("kind", "strength", "names"),
    [
        ("paired", 2, ["a.jpg", "a.txt"]),
        ("paired", 2, ["a.npy", "a.cls"]),
        ("paired", 2, ["k/a.wav", "k/a.txt", "k/b.wav"]),
        ("paired", 2, ["a.jpg", "a.png", "a.txt"]),
        ("companions", 2, ["a.jpg", "a_mask.png", "b.jpg", "b_mask.png"]),
        ("paired", 2, ["a.jpg", "a.seg.png", "a.xml"]),
        ("companions", 2, ["a.jpg", "a.png", "b.jpg", "b.png", "c.jpg"]),
        ("companions", 1, [f"k/{i}.jpg" for i in range(50)] + ["k/7_mask.jpg"]),
        ("companions", 1, ["1.jpg", "2.jpg", "3.jpg", "2.png", "3.png", "5.png"]),
        ("", 0, ["1.jpg", "2.jpg", "3.jpg", "2.png", "4.png", "5.png"]),
        ("", 0, ["k/a.jpg", "k/b.jpg", "k/b.xml", "k/c.jpg"]),
        ("", 0, ["a.txt", "b.md"]),
    ],
)
def test_claims(kind: str, strength: int, names: list[str], tmp_path: Path) -> None:
    look = Look(made(tmp_path, names))
    claims = {one.kind: one.claim(look) for one in (PairedCorpus, CompanionCorpus)}
    found = {kind: claim.strength for kind, claim in claims.items() if claim is not None}
    assert found == ({kind: Strength(strength)} if kind else {})


def test_class_folders_label_images_with_masks_alone(tmp_path: Path) -> None:
    made(tmp_path, ["cat/a.jpg", "cat/a_mask.png", "dog/b.jpg", "dog/b_mask.png"])
    batch = read(CompanionCorpus(tmp_path))
    assert batch.columns["cls"] == [b"0", b"1"] and batch.keys == [b"cat/a", b"dog/b"]
    assert "cls" not in read(PairedCorpus(tmp_path)).columns
    assert CompanionCorpus(tmp_path).classes == ["cat", "dog"]


def test_splits_and_lists_next_to_them(tmp_path: Path) -> None:
    pairs = [f"{split}/{i}.{e}" for split in ("train", "val") for i in "01" for e in ("jpg", "txt")]
    corpus = PairedCorpus(made(tmp_path, [*pairs, "train.txt", "obj.names"]))
    assert [read(corpus, split).keys for split in corpus.splits()] == [[b"0", b"1"]] * 2
    assert corpus.ignored == {".txt": 1, ".names": 1}


@pytest.mark.parametrize(
    ("files", "path", "why"),
    [
        ({"b.jpg": JPG, "b.jpeg": JPG}, "b.jpg", "is field 'jpg' of its sample, and b.jpeg is"),
        (
            {"b.npy": b"", "b.txt": b"1", "b.TXT": b"2"},
            "b.txt",
            "is field 'txt' of its sample, and b.TXT is",
        ),
        ({"b.jpg": b"text", "b.txt": b"1"}, "b.jpg", "not an image: begins with b'text'"),
    ],
)
def test_one_bad_file_rejects_its_sample(
    files: dict[str, bytes], path: str, why: str, tmp_path: Path
) -> None:
    files = {"a.jpg": JPG, "c.jpg": JPG, "c.txt": b"c", **files}
    batch = read(PairedCorpus(made(tmp_path, files)))
    assert batch.keys == [b"a", b"c"] and batch.columns["jpg"] == [JPG, JPG]
    ((found, reason),) = batch.rejects
    assert found == path and reason.startswith(why)


@pytest.mark.parametrize("name", ["a.left image", "a.é", "a.__key__", "a.jpg.offsets", "a."])
def test_what_cannot_name_a_field(name: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot name a field; rename it") as info:
        [*PairedCorpus(made(tmp_path, ["k/a.jpg", f"k/{name}"])).runs(tmp_path)]
    assert "k/" in str(info.value) and str(info.value).isprintable()


def test_files_of_no_sample_are_few(tmp_path: Path) -> None:
    made(tmp_path, ["a.jpg", "a.txt", *(f"{i}.txt" for i in range(20))])
    with pytest.raises(CorpusError, match=r"20 files \(0.txt, .*\) belong to none of 1 samples"):
        [*PairedCorpus(tmp_path).runs(tmp_path)]
    with pytest.raises(CorpusError, match=r"no paired files in .* only 1 file \(no extension 1\)"):
        [*PairedCorpus(made(tmp_path / "b", ["x"])).runs(tmp_path)]


names = st.sets(st.text(st.sampled_from("ab.-_\udcff\n"), min_size=1, max_size=6), max_size=15)
words = st.sampled_from(["a", "b", "a_mask", "a.mask", "a_mask_mask", "b-seg_1", "a.b", "readme"])
endings = st.sampled_from([".jpg", ".png", ".txt", ".npy", ".gif", "", ".x y", ".jpeg"])


@given(names | st.sets(st.builds(str.__add__, words, endings)))
def test_each_file_is_in_one_sample_and_keys_never_repeat(found: set[str]) -> None:
    ordered = sorted(name for name in found if not name.startswith("."))
    samples, passed = group(ordered, any(extension(name) in MAIN for name in ordered))
    held = [name for files in samples.values() for name in files]
    assert sorted([*held, *passed]) == ordered
    with TemporaryDirectory() as folder:
        corpus = PairedCorpus(made(Path(folder), dict.fromkeys(ordered, b"1")))
        try:
            runs = [*corpus.runs(Path(folder))]
        except CorpusError:
            return
        keys = [key for run in runs for key in run.keys]
        assert len({*keys}) == len(keys) == len(samples)
        assert sum(size for run in runs for size in run.sizes) == len(held)
        assert sum(corpus.ignored.values()) == len(passed)
