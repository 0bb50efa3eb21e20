"""All kinds of input: packed, verified, packed again, and with annotations unpacked, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from array_files import IMAGES, LABELS, folder, hdf5, npz
from conftest import make_arrays, make_jsonl, make_sounds, make_texts, picture, tree, write
from dying import dies_before_change
from forked_workers import forked_workers
from layouts import MAKERS, pack, png, samples
from tables import parquet, save
from test_inputs_lmdb import database, images
from tf_records import imagenet, records

import shardkit
from shardkit.errors import CorpusError, ResumeError
from shardkit.inputs.corpus import Look, Strength
from shardkit.inputs.detection import CORPORA, open_corpus

EXAMPLES = [imagenet(i) for i in range(9)]

KINDS: dict[str, tuple[str, int, Callable[[Path], Path]]] = {
    "text": ("text", 10, make_texts),
    "media": ("media", 9, make_sounds),
    "arrays": ("arrays", 10, make_arrays),
    "jsonl": ("jsonl", 40, make_jsonl),
    "parquet": (
        "parquet",
        20,
        lambda root: write(root / "a.parquet", parquet(["text"] * 20, group=3, label=[*range(20)])),
    ),
    "saved": ("hf", 30, lambda root: save(root, [["text"] * 20, ["more"] * 10])),
    "npz": ("rows", 20, lambda root: npz(root / "x.npz", True, x=IMAGES, y=LABELS)),
    "hdf5": ("rows", 20, lambda root: hdf5(root / "x.h5", x=IMAGES, y=LABELS)),
    "npy": ("rows", 20, lambda root: folder(root, x=IMAGES, y=LABELS)),
    "tfrecord": (
        "tfrecord",
        20,
        lambda root: records(root / "x.tfrecord", map(imagenet, range(20))),
    ),
    "tfrecord.gz": (
        "tfrecord",
        9,
        lambda root: records(root / "x.tfrecord.gz", map(imagenet, range(9))),
    ),
    "lmdb": ("lmdb", 40, lambda root: database(root / "x.mdb", images())),
}
"""Layout -> its kind, its samples, and what makes it; of kinds without annotations."""


@pytest.mark.parametrize("name", KINDS)
def test_packed_verified_and_packed_again(name: str, tmp_path: Path) -> None:
    kind, number, make = KINDS[name]
    source = tmp_path / "source"
    make(source)
    one = pack(source, "one", shard_size="90B")
    assert (one.kind, one.num_samples) == (kind, number) and one.num_shards > 2
    checked = shardkit.verify(one.dest, against=source)
    assert checked.ok and checked.num_compared == number, checked.problems
    assert pack(source, "one", shard_size="90B").was_complete
    with forked_workers():
        two = pack(source, "two", workers=2, shard_size="90B")
    assert tree(one.dest) == tree(two.dest)


@pytest.fixture(params=MAKERS)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Return kind and folder of each layout."""
    kind, make = MAKERS[request.param]
    return kind, make(tmp_path / "source")


def test_claimed_packed_verified_and_unpacked(layout: tuple[str, Path], tmp_path: Path) -> None:
    """Check that all images come back, and nothing but files of the source and values."""
    kind, source = layout
    claim = CORPORA[kind].claim(Look(source))
    assert claim is not None and claim.strength >= Strength.LAYOUT and claim.reading
    packed = pack(source)
    assert (packed.kind, packed.num_rejects) == (kind, 0)
    result = shardkit.verify(packed.dest, against=source)
    assert result.ok and result.num_compared == packed.num_samples, result.problems
    shardkit.unpack(packed.dest, tmp_path / "back")
    before, after = tree(source), tree(tmp_path / "back")
    common = before.keys() & after.keys()
    assert {name: after[name] for name in common} == {name: before[name] for name in common}
    used = shardkit.info(packed.dest).corpus.get("annotations", {})
    assert len(before) - len(common | used.keys()) == sum(packed.ignored.values())
    assert ("data.yaml" in after) == ("data.yaml" in before)
    endings = {Path(name).suffix for name in after.keys() - before.keys()}
    assert endings <= ({".txt", ".npy", ".json", ".cls"} if kind in ("metadata", "coco") else set())


def test_any_number_of_workers_and_any_order(layout: tuple[str, Path], tmp_path: Path) -> None:
    _, source = layout
    one = pack(source, "one")
    with forked_workers():
        two = pack(source, "two", workers=2)
    assert tree(one.dest) == tree(two.dest)
    assert (one.notes, one.ignored) == (two.notes, two.ignored)
    mixed = pack(source, "mixed", shuffle=True)
    for split in one.splits:
        plain, other = samples(one, split), samples(mixed, split)
        assert repr(sorted(plain.items())) == repr(sorted(other.items()))
    assert shardkit.verify(mixed.dest, against=source).ok


def test_killed_and_resumed(layout: tuple[str, Path], tmp_path: Path) -> None:
    _, source = layout
    whole = tree(pack(source, "whole").dest)
    for number in (4, 17):
        dest = tmp_path / f"killed-{number}"
        dies_before_change(number, lambda dest=dest: pack(source, dest.name))
        assert tree(pack(source, dest.name).dest) == whole


@pytest.mark.parametrize("name", ["metadata.jsonl", "coco"])
def test_an_annotation_file_that_changes(name: str, tmp_path: Path) -> None:
    """Check that a started pack is refused, and that a finished one differs, by one digit."""
    source = MAKERS[name][1](tmp_path / "source")
    whole = pack(source, "whole")
    file = source / next(iter(shardkit.info(whole.dest).corpus["annotations"]))
    for number in range(4, 40):
        assert dies_before_change(number, lambda: pack(source, "started"))
        if (tmp_path / "started" / ".packing" / "listing.json").exists():
            break
        shutil.rmtree(tmp_path / "started", ignore_errors=True)
    text = file.read_text(encoding="utf-8")
    changed = text.replace("caption 1", "caption 9").replace("7.123456789", "7.123456780")
    assert changed != text
    assert pack(source, "whole").was_complete
    file.write_text(changed, encoding="utf-8")
    with pytest.raises(ResumeError, match="input files changed since this pack was") as info:
        pack(source, "started")
    assert len(str(info.value)) < 300, "a locator is not shown"
    problems = shardkit.verify(whole.dest, against=source).problems
    assert any("differs from the original" in problem.what for problem in problems)


def test_what_leads_nowhere_is_a_reject(layout: tuple[str, Path]) -> None:
    kind, source = layout
    base = next(
        path for path in sorted(source.rglob("*")) if path.suffix in (".jpg", ".png")
    ).parent
    (base / "far.png").symlink_to("nowhere")
    packed = pack(source, on_error="skip", max_rejects=0.9)
    lines = map(json.loads, (packed.dest / "rejected.jsonl").read_text().splitlines())
    assert [Path(line["path"]).name for line in lines] == ["far.png"], kind


def test_two_layouts_at_once_are_refused(tmp_path: Path) -> None:
    source = MAKERS["coco"][1](tmp_path / "in")
    write(source / "metadata.csv", "file_name\ntrain2017/000000000000.jpg\n")
    with pytest.raises(CorpusError, match=r"--corpus metadata.*--corpus coco"):
        open_corpus(source)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata.csv", "id,text\n1,a\n"),
        ("metadata.jsonl", '{"file_name": "gone.jpg"}\n'),
        ("annotations.json", '{"info": "of another kind"}'),
        ("annotations.json", '[{"images": []}]'),
    ],
)
def test_files_called_so_that_are_something_else(name: str, text: str, tmp_path: Path) -> None:
    for i in range(8):
        write(tmp_path / f"{'cat' if i % 2 else 'dog'}/{i}.jpg", picture(i))
    write(tmp_path / name, text)
    claims = [CORPORA[kind].claim(Look(tmp_path)) for kind in ("metadata", "coco")]
    assert claims == [None, None]


def test_bad_files_of_a_sample_name_it(tmp_path: Path) -> None:
    """Reject an image that is none, and two plain images of one stem."""
    for i in range(4):
        write(tmp_path / "in" / "images" / f"{i}.jpg", picture(i))
        write(tmp_path / "in" / "masks" / f"{i}.png", png(i))
    write(tmp_path / "in" / "masks" / "0.png", "text")
    write(tmp_path / "in" / "images" / "1.png", png(1))
    packed = pack(tmp_path / "in", on_error="skip", max_rejects=0.9)
    lines = map(json.loads, (packed.dest / "rejected.jsonl").read_text().splitlines())
    found: dict[str, Any] = {line["path"]: line["reason"] for line in lines}
    assert found == {
        "masks/0.png": "not an image: begins with b'text'",
        "images/1.png": "is field 'png' of its sample, and images/1.jpg is 'jpg'; remove or rename"
        " one",
    }
