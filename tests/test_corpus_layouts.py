"""Pictures with annotations: packed, verified, read back and unpacked, layout by layout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import picture, tree, write
from dying import dies_before_change
from forked_workers import forked_workers
from layouts import (
    FLAT,
    MAKERS,
    ROWS,
    YAML,
    coco,
    csv_of,
    jsonl,
    make_coco,
    make_flickr,
    make_metadata,
    make_roboflow,
    make_yolo,
    png,
)

import shardkit
from shardkit.errors import CorpusError, DestinationError, ResumeError, SampleError
from shardkit.inputs.open import open_corpus
from shardkit.packing.job import Setup, write_job
from shardkit.packing.listing import Listing, list_jobs
from shardkit.packing.options import PackOptions
from shardkit.packing.result import PackResult

OPTIONS: dict[str, Any] = {"to": "npy", "workers": 0, "progress": False, "shard_size": "3kB"}


def pack(source: Path, name: str = "packed", **options: Any) -> PackResult:
    return shardkit.pack(source, source.parent / name, **{**OPTIONS, **options})


def samples(result: PackResult, split: str = "train") -> dict[str, dict[str, Any]]:
    """Key -> the fields that a sample has."""
    held = shardkit.open(result.dest, split=split)
    return {
        str(s.pop("__key__")): {n: v for n, v in s.items() if v is not None}
        for s in (dict(sample) for sample in held)
    }


@pytest.fixture(params=MAKERS)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """(kind, a folder of it) for each layout."""
    kind, make = MAKERS[request.param]
    return kind, make(tmp_path / "source")


# --- all of them --------------------------------------------------------------------------


def test_detected_packed_verified_and_unpacked(layout: tuple[str, Path], tmp_path: Path) -> None:
    """What comes back has all pictures, and nothing that is not of the source or of an annotation
    file."""
    kind, source = layout
    packed = pack(source)
    assert (packed.kind, packed.num_rejects) == (kind, 0)
    result = shardkit.verify(packed.dest, against=source)
    assert result.ok, result.problems
    assert result.num_compared == packed.num_samples
    shardkit.unpack(packed.dest, tmp_path / "back")
    before, after = tree(source), tree(tmp_path / "back")
    common = before.keys() & after.keys()
    assert {name: after[name] for name in common} == {name: before[name] for name in common}
    passed = sum(packed.ignored.values())
    used = shardkit.info(packed.dest).corpus.get("annotations", {})
    assert len(before) - len(common | used.keys()) == passed
    assert ("data.yaml" in after) == (kind == "yolo")
    if kind in ("parallel", "companions", "yolo"):
        assert after.keys() <= before.keys()
    else:
        assert all(
            Path(name).suffix in (".txt", ".npy", ".json") for name in after.keys() - before.keys()
        )


def test_any_number_of_workers(layout: tuple[str, Path], tmp_path: Path) -> None:
    _, source = layout
    one = pack(source, "one")
    with forked_workers():
        two = pack(source, "two", workers=2)
    assert tree(one.dest) == tree(two.dest)
    assert (one.notes, one.ignored) == (two.notes, two.ignored)
    again = pack(source, "one")
    assert again.notes == ["complete already, from an earlier run"]


FRESH = """
import json, os, sys
from shardkit.packing.job import Job, Setup, write_job
for name, setup, jobs in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        setup = Setup(**setup)
        corpus = setup.open_corpus()
        for job in jobs:
            write_job(corpus, Job(**job), setup, lambda *read: None)
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0, name
"""


def test_a_fresh_python_writes_what_this_one_does(tmp_path: Path) -> None:
    """With nothing imported before and another seed of hashes, as a worker has that is no fork."""
    given = []
    for name, (_, make) in MAKERS.items():
        corpus = open_corpus(make(tmp_path / name))
        here, there = (
            Setup(str(tmp_path / name), str(tmp_path / f"{name}-{where}"), corpus.spec(), "npy")
            for where in ("here", "there")
        )
        for setup in (here, there):
            setup.stage.mkdir(parents=True)
            setup.scratch.mkdir(parents=True)
            runs = corpus.runs(setup.scratch)
            jobs = list(list_jobs(corpus, Listing(setup.work), PackOptions(to="npy"), runs))
        for job in jobs:
            write_job(corpus, job, here, lambda *read: None)
        told = {**asdict(there), "objects": ""}
        given.append((name, told, [asdict(job) for job in jobs]))
    command = [sys.executable, "-c", FRESH]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, input=json.dumps(given), text=True, env=env, check=True)
    for name in MAKERS:
        written = tree(tmp_path / f"{name}-here")
        assert any(file.endswith(".npy") for file in written)
        assert written == tree(tmp_path / f"{name}-there"), name


def test_killed_and_gone_on_with(layout: tuple[str, Path], tmp_path: Path) -> None:
    _, source = layout
    whole = tree(pack(source, "whole").dest)
    for number in (4, 9, 17, 26):
        dest = tmp_path / f"killed-{number}"
        dies_before_change(number, lambda dest=dest: shardkit.pack(source, dest, **OPTIONS))
        assert tree(shardkit.pack(source, dest, **OPTIONS).dest) == whole


def test_shuffled_and_cut(layout: tuple[str, Path], tmp_path: Path) -> None:
    """Entries out of order find their files and values all the same."""
    _, source = layout
    plain = pack(source)
    splits = list(plain.splits)
    mixed = pack(source, "mixed", shuffle=True)
    for split in splits:
        one, two = samples(plain, split), samples(mixed, split)
        assert repr(sorted(one.items())) == repr(sorted(two.items()))
    assert shardkit.verify(mixed.dest, against=source).ok


ANNOTATIONS = ["metadata.jsonl", "metadata.csv", "coco", "roboflow", "flickr"]


def start(source: Path, dest: Path) -> Path:
    """Leave a pack that has listed all of its input, and has not come to its end."""
    for number in range(4, 40):
        assert dies_before_change(number, lambda: shardkit.pack(source, dest, **OPTIONS))
        if (dest / ".packing" / "listing.json").exists():
            return dest
        shutil.rmtree(dest, ignore_errors=True)
    raise AssertionError("it was never listed")


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_an_annotation_file_that_changes(name: str, tmp_path: Path) -> None:
    """A started pack is refused, and a finished one is another, to the byte of one annotation."""
    source = MAKERS[name][1](tmp_path / "source")
    whole = pack(source, "whole")
    file = source / next(iter(shardkit.info(whole.dest).corpus["annotations"]))
    started = start(source, tmp_path / "started")
    text = file.read_text(encoding="utf-8")
    changed = text.replace("caption 1", "caption 9").replace("number 1 of", "number 9 of")
    changed = changed.replace("7.123456789", "7.123456780")
    assert changed != text and len(changed) == len(text)
    file.write_text(changed, encoding="utf-8")
    with pytest.raises(
        ResumeError, match="input files changed since this pack was started"
    ) as info:
        shardkit.pack(source, started, **OPTIONS)
    assert len(str(info.value)) < 300, "a locator is not shown"
    with pytest.raises(DestinationError, match="already holds a dataset"):
        pack(source, "whole")
    result = shardkit.verify(tmp_path / "whole", against=source)
    assert any("differs from the original" in problem.what for problem in result.problems)


def test_touched_annotations_are_read_again_and_found_equal(tmp_path: Path) -> None:
    source = make_metadata(tmp_path / "source")
    pack(source)
    (source / "metadata.jsonl").touch()
    assert pack(source).was_complete


# --- parallel folders ---------------------------------------------------------------------


def test_fields_of_parallel_folders(tmp_path: Path) -> None:
    packed = pack(MAKERS["voc"][1](tmp_path / "source"))
    held = samples(packed)
    assert len(held) == 8
    assert held["2007_000001"].keys() == {"jpg", "annotations.xml", "segmentationclass.png"}
    assert held["2007_000002"].keys() == {"jpg", "annotations.xml"}
    assert bytes(held["2007_000003"]["segmentationclass.png"]) == png(3)
    assert bytes(held["2007_000003"]["jpg"]) == picture(3)
    assert packed.ignored == {".txt": 1}
    assert packed.notes == [
        "ImageSets/ is passed over: no file in it is called as one in JPEGImages",
        "SegmentationClass: 4 of 8 pictures have no file there: 2007_000000, 2007_000002,"
        " 2007_000004, ...",
    ]


def test_annotations_in_folders_of_their_own(tmp_path: Path) -> None:
    packed = pack(MAKERS["pets"][1](tmp_path / "source"))
    assert shardkit.open(packed.dest).fields == ["jpg", "trimaps.png", "xmls.xml"]
    assert packed.ignored == {".txt": 1}


def test_names_that_end_in_what_they_are(tmp_path: Path) -> None:
    packed = pack(MAKERS["masks in splits"][1](tmp_path / "source"))
    assert packed.splits == {"train": 6, "val": 3}
    held = samples(packed, "val")
    assert held.keys() == {"a/0", "a/1", "a/2"}
    assert bytes(held["a/2"]["masks.png"]) == png(2)
    assert packed.notes == ["masks: names end in '_mask' besides"]
    assert packed.ignored == {".md": 1}


def test_what_names_end_in_is_cut_once(tmp_path: Path) -> None:
    """``a_rgb`` is the stem of ``a_rgb_rgb.jpg``, and not of ``a_rgb.jpg``, which is ``a``."""
    source = tmp_path / "source"
    for i, stem in enumerate(["a", "b", "a_rgb"]):
        write(source / "images" / f"{stem}_rgb.jpg", picture(i))
        write(source / "masks" / f"{stem}.png", png(i))
    held = samples(pack(source))
    assert sorted(held) == ["a", "a_rgb", "b"]
    for i, stem in enumerate(["a", "b", "a_rgb"]):
        assert bytes(held[stem]["jpg"]) == picture(i) and bytes(held[stem]["masks.png"]) == png(i)


def test_a_mask_of_a_picture_that_is_not_there_is_no_other_pictures(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for stem in ("1", "1_a", "2", "2_a"):
        write(source / "images" / f"{stem}.jpg", picture(1))
    for stem in ("1_a", "2_a", "1_b", "2_b"):
        write(source / "masks" / f"{stem}.png", png(1))
    packed = pack(source)
    held = samples(packed)
    assert {key for key, own in held.items() if "masks.png" in own} == {"1_a", "2_a", "1_b", "2_b"}
    assert "jpg" not in held["1_b"]
    assert "masks: 2 files have no picture, and are samples without one: 1_b, 2_b" in packed.notes


def test_splits_within(tmp_path: Path) -> None:
    packed = pack(MAKERS["splits within"][1](tmp_path / "source"))
    assert packed.splits == {"train": 5, "test": 1, "val": 2}
    assert samples(packed, "test")["0"].keys() == {"jpg"}
    assert packed.notes == ["masks: 1 of 8 pictures have no file there: test/0"]


def test_several_files_of_one_folder_a_picture(tmp_path: Path) -> None:
    packed = pack(MAKERS["cityscapes"][1](tmp_path / "source"))
    assert packed.splits == {"train": 3, "test": 3, "val": 3}
    held = samples(packed, "val")["munster/munster_000002_000019"]
    assert bytes(held["png"]) == png(2)
    assert bytes(held["gtfine_color.png"]) == png(21)
    assert bytes(held["gtfine_labelids.png"]) == png(22)
    assert held["gtfine_polygons.json"] == {"n": 2}
    assert packed.ignored == {"": 1}
    assert packed.notes == [
        "leftImg8bit: names end in '_leftImg8bit' besides",
        "gtFine: names end in '_gtFine_color', '_gtFine_labelIds', '_gtFine_polygons' besides,"
        " which name its fields",
    ]


def test_splits_in_names_of_folders(tmp_path: Path) -> None:
    packed = pack(MAKERS["carvana"][1](tmp_path / "source"))
    assert packed.splits == {"train": 5, "test": 1}
    assert samples(packed)["03_01"].keys() == {"jpg", "masks.gif"}
    assert samples(packed, "test")["07_01"].keys() == {"jpg"}
    assert packed.ignored == {".csv": 1}
    assert packed.notes == [
        "masks: names end in '_mask' besides",
        "masks: 1 of 6 pictures have no file there: test/07_01",
    ]


def test_training_and_validation_are_splits(tmp_path: Path) -> None:
    packed = pack(MAKERS["ade"][1](tmp_path / "source"))
    assert packed.splits == {"train": 4, "validation": 2}
    assert (packed.ignored, packed.notes) == ({".txt": 1}, [])


def test_what_others_leave_among_pictures_is_no_sample(tmp_path: Path) -> None:
    source = MAKERS["parallel"][1](tmp_path / "source")
    before = pack(source)
    write(source / "images" / "Thumbs.db", b"db")
    write(source / "images" / "list.txt", b"1.jpg")
    write(source / "masks" / "list.txt", b"1.png")
    packed = pack(source, "other")
    assert packed.num_samples == before.num_samples + 1
    assert packed.ignored == {**before.ignored, "Thumbs.db": 1}
    assert samples(packed)["list"].keys() == {"txt", "masks.txt"}


def test_a_mask_without_its_picture_is_not_lost(tmp_path: Path) -> None:
    source = MAKERS["parallel"][1](tmp_path / "source")
    write(source / "masks" / "lone.png", png(3))
    packed = pack(source)
    assert samples(packed)["lone"].keys() == {"masks.png"}
    assert "masks: 1 file has no picture, and is a sample without one: lone" in packed.notes


def test_two_pictures_of_one_stem_are_refused(tmp_path: Path) -> None:
    source = MAKERS["parallel"][1](tmp_path / "source")
    write(source / "images" / "001.png", png(1))
    with pytest.raises(SampleError, match=r"images/001.png: has the stem of images/001.jpg, which"):
        pack(source)


def test_folders_that_could_all_be_the_pictures(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / "source" / "left" / f"{i}.png", png(i))
        write(tmp_path / "source" / "right" / f"{i}.png", png(i + 9))
    packed = pack(tmp_path / "source", corpus="parallel")
    assert shardkit.open(packed.dest).fields == ["left.png", "right.png"]
    assert shardkit.verify(packed.dest, against=tmp_path / "source").ok


def test_folders_that_have_nothing_in_common(tmp_path: Path) -> None:
    write(tmp_path / "source" / "images" / "a.jpg", picture(1))
    write(tmp_path / "source" / "masks" / "b.png", png(1))
    with pytest.raises(CorpusError, match="no file in masks is called as one in images"):
        pack(tmp_path / "source", corpus="parallel")


def test_arrays_of_equal_stems(tmp_path: Path) -> None:
    for i in range(4):
        for name, array in (("images", np.full((2, 3), i)), ("labels", np.array(i))):
            (tmp_path / "source" / name).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / "source" / name / f"{i}.npy", array)
    packed = pack(tmp_path / "source")
    assert (packed.kind, packed.num_samples) == ("parallel", 4)
    assert samples(packed)["3"]["labels.npy"] == 3


def test_what_leads_nowhere_in_parallel_folders(tmp_path: Path) -> None:
    source = MAKERS["parallel"][1](tmp_path / "source")
    (source / "masks" / "far.png").symlink_to("nowhere")
    (source / "depth").symlink_to("nowhere")
    packed = pack(source, on_error="skip", max_rejects=0.5)
    lines = (packed.dest / "rejected.jsonl").read_text().splitlines()
    assert {json.loads(line)["path"] for line in lines} == {"masks/far.png", "depth"}
    assert packed.num_samples == 9


# --- companions ---------------------------------------------------------------------------


def test_companions_keep_their_class(tmp_path: Path) -> None:
    packed = pack(MAKERS["companions"][1](tmp_path / "source"))
    ds = shardkit.open(packed.dest)
    assert (ds.classes, ds.fields) == (["cat", "dog"], ["cls", "jpg", "mask.png", "txt"])
    sample = samples(packed)["dog/IMG (1).0"]
    assert (sample["cls"], bytes(sample["mask.png"])) == (1, png(1))


@pytest.mark.parametrize("ending", ["_mask.png", ".mask.png", "-mask.png", ".png"])
def test_each_way_to_call_a_mask(ending: str, tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / "source" / f"{i}.jpg", picture(i))
        write(tmp_path / "source" / f"{i}{ending}", png(i))
    packed = pack(tmp_path / "source")
    assert packed.kind == "companions"
    held = samples(packed)
    assert held.keys() == {"0", "1", "2", "3"}
    assert all(bytes(held[f"{i}"]["mask.png"]) == png(i) for i in range(4))
    is_said = packed.notes == ["a picture beside a .jpg of one stem is its field mask.<ending>"]
    assert is_said == (ending == ".png")
    shardkit.unpack(packed.dest, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(tmp_path / "source")


def test_several_masks_and_what_belongs_to_none(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in (
        "benign (1).png",
        "benign (1)_mask.png",
        "benign (1)_mask_1.png",
        "benign (2).png",
    ):
        write(source / "benign" / name, png(len(name)))
    for name in ("notes.txt", "README.md", "benign (2).json"):
        write(source / "benign" / name, "{}")
    packed = pack(source)
    held = samples(packed)
    assert held["benign/benign (1)"].keys() == {"cls", "png", "mask.png", "mask_1.png"}
    assert held["benign/benign (2)"].keys() == {"cls", "png", "json"}
    assert packed.ignored == {".txt": 1, ".md": 1}


# --- metadata -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv", "metadata.parquet"])
def test_columns_become_fields(name: str, tmp_path: Path) -> None:
    packed = pack(make_metadata(tmp_path / "source", name))
    held = samples(packed)
    columns = FLAT if name.endswith("csv") else tuple(ROWS[0])
    for row in ROWS:
        sample = held[row["file_name"].removesuffix(".jpg")]
        assert sample["txt"] == row["text"]
        assert (sample["label.npy"], sample["label.npy"].dtype) == (row["label"], np.int64)
        assert (sample["score.npy"], sample["score.npy"].dtype) == (row["score"], np.float64)
        assert bytes(sample["id.txt"].encode()) == row["id"].encode()
        assert sample.get("objects.json") == (row["objects"] if "objects" in columns else None)
    assert packed.ignored == {".jpg": 1}
    assert packed.notes == [
        f"annotations of {name}",
        "1 pictures that it does not name: 6.jpg",
    ]
    batch = shardkit.open(packed.dest).read([0, 1, 5])
    assert batch["label.npy"].tolist() == [0, 1, 2]


def test_files_of_several_columns_in_splits(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for split in ("train", "test"):
        rows = []
        for i in range(3):
            write(source / split / "images" / f"{i}.jpg", picture(i))
            write(source / split / "masks" / f"{i}.png", png(i))
            rows.append({"file_name": f"images/{i}.jpg", "mask_file_name": f"masks/{i}.png"})
        write(source / split / "metadata.jsonl", jsonl(rows))
    packed = pack(source)
    assert (packed.kind, packed.splits) == ("metadata", {"train": 3, "test": 3})
    assert bytes(samples(packed)["images/2"]["mask.png"]) == png(2)
    assert packed.ignored == {}
    shardkit.unpack(packed.dest, tmp_path / "back")
    lines = {name for name in tree(source) if name.endswith("jsonl")}
    assert tree(tmp_path / "back").keys() == tree(source).keys() - lines


def test_class_folders_stay_labels(tmp_path: Path) -> None:
    rows = [{"file_name": f"{name}/{i}.jpg", "n": i} for name in ("cat", "dog") for i in range(3)]
    for row in rows:
        write(tmp_path / "source" / row["file_name"], picture(row["n"]))
    write(tmp_path / "source" / "metadata.csv", csv_of(rows, ("file_name", "n")))
    packed = pack(tmp_path / "source")
    assert packed.kind == "metadata"
    ds = shardkit.open(packed.dest)
    assert (ds.classes, ds.column("cls").tolist()) == (["cat", "dog"], [0, 0, 0, 1, 1, 1])
    assert "class numbers are those of the 2 folders" in packed.notes


def test_rows_of_files_that_are_not_there(tmp_path: Path) -> None:
    source = make_metadata(tmp_path / "source")
    more = [
        {"file_name": name} for name in ("gone.jpg", "../far.jpg", "/etc/x.jpg", "", "noending")
    ]
    (source / "metadata.jsonl").write_text(jsonl(ROWS + more), encoding="utf-8")
    with pytest.raises(
        SampleError, match=r"gone.jpg: is named in metadata.jsonl, and is not there"
    ):
        pack(source)
    packed = pack(source, on_error="skip", max_rejects=0.9, overwrite=True)
    lines = map(json.loads, (packed.dest / "rejected.jsonl").read_text().splitlines())
    assert {line["path"]: line["reason"] for line in lines} == {
        "gone.jpg": "is named in metadata.jsonl, and is not there",
        **{
            f"metadata.jsonl at row {number}": f"file_name is {name!r}, and no path of a file in"
            " its folder"
            for number, name in ((8, "../far.jpg"), (9, "/etc/x.jpg"), (10, ""), (11, "noending"))
        },
    }
    assert shardkit.verify(packed.dest, against=source).ok


# --- COCO ---------------------------------------------------------------------------------


def test_records_of_coco(tmp_path: Path) -> None:
    packed = pack(make_coco(tmp_path / "source"))
    assert packed.splits == {"train": 5, "val": 3}
    ds = shardkit.open(packed.dest)
    assert (ds.classes, ds.fields) == (["person", "dog"], ["jpg", "json"])
    made = coco([f"{i:012d}.jpg" for i in range(5)], 5)
    for i, image in enumerate(made["images"]):
        held = samples(packed)[f"{i:012d}"]["json"]
        own = [each for each in made["annotations"] if each["image_id"] == image["id"]]
        assert held["image"] == image
        assert held["annotations"] == own
        assert len(own) == (2 if i < 4 else 0)
        assert held["categories"] == ({"1": "person", "18": "dog"} if own else {})
    raw = shardkit.open(packed.dest, decode=False)[1]["json"]
    text = (tmp_path / "source" / "annotations" / "instances_train2017.json").read_text("utf-8")
    for each in made["annotations"]:
        if each["image_id"] == 506:
            assert json.dumps(each) in bytes(raw).decode() and json.dumps(each) in text
    corpus = shardkit.info(packed.dest).corpus["annotations"]
    rest = corpus["annotations/instances_val2017.json"]["rest"]
    assert rest == {name: made[name] for name in ("info", "licenses", "categories")}


def test_roboflow_has_a_file_in_each_split(tmp_path: Path) -> None:
    packed = pack(make_roboflow(tmp_path / "source"))
    assert packed.splits == {"train": 5, "valid": 3}
    assert samples(packed, "valid")["1_png.rf.01"]["json"]["image"]["id"] == 501
    assert packed.ignored == {".txt": 1}


def test_several_files_tell_of_a_picture(tmp_path: Path) -> None:
    source = make_coco(tmp_path / "source")
    made = coco([f"{i:012d}.jpg" for i in range(5)])
    captions = [{"id": 1, "image_id": 500, "caption": "a dog"}]
    captions.append({"id": 2, "image_id": 77, "caption": "of no picture"})
    text = json.dumps({"images": made["images"], "annotations": captions})
    write(source / "annotations" / "captions_train2017.json", text)
    packed = pack(source)
    sample = samples(packed)["000000000000"]
    assert sample.keys() == {"jpg", "captions.json", "instances.json"}
    assert sample["captions.json"]["annotations"] == captions[:1]
    assert samples(packed, "val")["000000000000"].keys() == {"jpg", "instances.json"}
    assert (
        "annotations/captions_train2017.json: 1 annotations are of images that it does not list,"
        " and are passed over" in packed.notes
    )


def test_paths_of_another_machine_are_taken_and_named(tmp_path: Path) -> None:
    source = tmp_path / "source"
    names = [f"images\\{i}.jpg" for i in range(3)]
    for i in range(3):
        write(source / "images" / f"{i}.jpg", picture(i))
    write(source / "result.json", json.dumps(coco(names)))
    packed = pack(source)
    assert packed.splits == {"train": 3}
    assert "result.json: 'images\\\\0.jpg' and the like are images/0.jpg" in packed.notes


def test_pictures_that_were_not_fetched(tmp_path: Path) -> None:
    """Those of the other split are called alike, and are not taken for them."""
    source = make_coco(tmp_path / "source")
    for path in (source / "train2017").iterdir():
        path.unlink()
    packed = pack(source)
    assert (packed.splits, packed.ignored) == ({"val": 3}, {".json": 1})
    assert packed.notes == [
        "annotations of annotations/instances_val2017.json",
        "annotations/instances_train2017.json is passed over: none of the 5 pictures that it names"
        " is there; fetch them",
    ]
    write(source / "train2017" / "000000000004.jpg", picture(4))
    with pytest.raises(
        SampleError, match=r"is named in annotations/instances_train2017\.json, and is"
    ):
        pack(source, "other")


def test_a_picture_in_two_splits_is_refused(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write(tmp_path / "source" / f"{name}.json", json.dumps(coco(["a.jpg", "b.jpg"])))
    for name in ("a", "b"):
        write(tmp_path / "source" / "images" / f"{name}.jpg", picture(1))
    with pytest.raises(CorpusError, match=r"images/a.jpg is in split train and in split val"):
        pack(tmp_path / "source")


# --- YOLO ---------------------------------------------------------------------------------


def test_labels_of_yolo(tmp_path: Path) -> None:
    packed = pack(make_yolo(tmp_path / "source"))
    ds = shardkit.open(packed.dest)
    assert (ds.classes, ds.fields) == (["person", "dog"], ["jpg", "labels.txt"])
    held = samples(packed)
    assert held["000000"].keys() == {"jpg"}
    assert held["000001"]["labels.txt"] == ""
    assert held["000002"]["labels.txt"] == "0 0.5 0.5 0.25 0.1\n"
    assert packed.ignored == {".cache": 1}
    assert shardkit.info(packed.dest).corpus["annotations"] == {"data.yaml": {"text": YAML}}
    assert packed.notes == ["labels: 2 of 8 pictures have no file there: 000000, val/000000"]


def test_yolo_without_names_of_classes(tmp_path: Path) -> None:
    source = make_yolo(tmp_path / "source")
    (source / "data.yaml").unlink()
    assert pack(source).kind == "yolo"
    write(source / "labels" / "classes.txt", "person\ndog\n")
    packed = pack(source, "other")
    assert shardkit.open(packed.dest).classes == ["person", "dog"]
    assert packed.ignored == {".cache": 1}


# --- captions -----------------------------------------------------------------------------


def test_several_captions_a_picture(tmp_path: Path) -> None:
    packed = pack(make_flickr(tmp_path / "source"))
    held = samples(packed)["Images/3_b"]
    assert held["captions.json"] == [f"A dog, number {k} of 3 ." for k in range(5)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("captions.txt", "0.jpg,one\n1.jpg,two\n"),
        ("captions.csv", "image,caption\r\n0.jpg,one\r\n1.jpg,two\r\n"),
        ("Flickr8k.token.txt", "0.jpg#0\tone\n1.jpg#0\ttwo\n"),
        ("captions.tsv", "image\tcaption\n0.jpg\tone\n1.jpg\ttwo\n"),
        ("results.csv", "image_name| comment_number| comment\n0.jpg| 0| one\n1.jpg| 0   two\n"),
    ],
)
def test_each_way_to_write_captions(name: str, text: str, tmp_path: Path) -> None:
    for i in range(2):
        write(tmp_path / "source" / f"{i}.jpg", picture(i))
    write(tmp_path / "source" / name, text)
    packed = pack(tmp_path / "source")
    assert packed.kind == "captions"
    assert [sample["txt"] for sample in samples(packed).values()] == ["one", "two"]
