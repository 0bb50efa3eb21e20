"""Packing with restart markers: what is stored, given back, counted, refused and said."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, make_texts, picture, tree, write
from dying import end_of, forked
from forked_workers import forked_workers, workers_for
from jpegs import jpeg, photo
from PIL import Image

import shardkit
from shardkit import images
from shardkit.errors import BadImageError, DataError, SampleError, UsageError
from shardkit.images import restarting, restarts
from shardkit.images.choice import ImageChoice
from shardkit.images.decoders import DECODERS
from shardkit.images.restarts import Outcome, add_restarts, has_restarts, remove_restarts
from shardkit.packing.job import remove_restarts as remove_added
from shardkit.samples.sample import SampleBatch

pytestmark = pytest.mark.skipif(bool(restarts.why_not()), reason=restarts.why_not())

OPTIONS: dict[str, Any] = {"to": "npy", "progress": False, "workers": 0, "shard_size": "30kB"}

Pack = Callable[..., Path]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders: 12 JPEGs that are rewritten, and one of each kind that is left as it is."""
    root = tmp_path_factory.mktemp("restarts") / "source"
    for i in range(12):
        write(root / f"class{i % 2}" / f"{i:02d}.jpg", jpeg(160, 120, seed=i))
    write(root / "class0" / "z.png", picture(1, 64, "PNG"))
    write(root / "class0" / "tiny.jpg", picture(2))
    write(root / "class1" / "cut.jpg", jpeg(160, 120)[:900])
    out = io.BytesIO()
    photo(160, 120).convert("CMYK").save(out, "JPEG")
    write(root / "class1" / "cmyk.jpg", out.getvalue())
    return root


@pytest.fixture
def pack(source: Path, tmp_path: Path) -> Pack:
    """Packs ``source`` into a folder of its own each time."""
    made: list[Path] = []

    def pack(**options: Any) -> Path:
        made.append(tmp_path / f"packed{len(made)}")
        shardkit.pack(source, made[-1], **{**OPTIONS, "restarts": True, **options})
        return made[-1]

    return pack


def pixels(jpeg: Any) -> Any:
    return np.asarray(Image.open(io.BytesIO(jpeg)))


# --- what is stored, and given back -------------------------------------------------------


def test_every_container_stores_them_and_gives_the_originals_back(
    container: str, source: Path, pack: Pack, tmp_path: Path
) -> None:
    dataset = pack(to=container)
    ds = shardkit.open(dataset, decode=False)
    stored = {key: bytes(ds[i]["jpg"]) for i, key in enumerate(ds.keys()) if "jpg" in ds[i]}
    originals = {path.removesuffix(".jpg"): data for path, data in tree(source).items()}
    rewritten = [key for key, value in stored.items() if has_restarts(value)]
    assert rewritten == [f"class{i % 2}/{i:02d}" for i in (*range(0, 12, 2), *range(1, 12, 2))]
    for key, value in stored.items():
        assert value == bytes(add_restarts(originals[key])[0])
        if key in rewritten:
            np.testing.assert_array_equal(pixels(value), pixels(originals[key]))
        else:
            assert value == originals[key]
    result = shardkit.verify(dataset, against=source)
    assert (result.ok, result.num_compared, result.notes) == (True, 16, [])
    shardkit.unpack(dataset, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    assert ds.info.provenance.images == ({"restarts": True},)


@pytest.mark.parametrize("backend", ["kernel", *DECODERS])
@pytest.mark.parametrize("make", [images.train, images.eval])
def test_batches_are_those_without_markers(
    make: Any, backend: str, tmp_path: Path, container: str
) -> None:
    """The same order, boxes, flips and pixels, of baseline and progressive pictures."""
    try:
        transform = make(48, backend=backend)
    except UsageError as why:
        pytest.skip(str(why))
    for i, layout in enumerate(("420", "444", "grey", "progressive", "422", "optimised")):
        write(tmp_path / "source" / f"{i}.jpg", jpeg(230, 190, layout, seed=i))
    batches = []
    for marked in (False, True):
        dest = tmp_path / f"packed{marked}"
        shardkit.pack(
            tmp_path / "source", dest, to=container, restarts=marked, progress=False, workers=0
        )
        ds = shardkit.open(dest)
        loader = shardkit.Loader(ds, 3, shuffle="full", seed=5, transform=transform, workers=0)
        assert all(has_restarts(ds[i]["jpg"]) == marked for i in range(len(ds)))
        batches.append([{**batch} for _ in range(2) for batch in loader])
    for plain, other in zip(*batches, strict=True):
        np.testing.assert_array_equal(plain["image"], other["image"])


def test_any_number_of_workers_makes_and_counts_the_same(
    container: str, source: Path, tmp_path: Path
) -> None:
    made = []
    for workers in (0, 1, 2):
        dest = tmp_path / str(workers)
        options = {**OPTIONS, "to": container, "workers": workers, "shuffle": True}
        with workers_for(container):
            result = shardkit.pack(source, dest, restarts=True, **options)
        made.append((tree(dest), result.notes))
    assert made[0] == made[1] == made[2]
    (note,) = (note for note in made[0][1] if "restart" in note)
    assert note.startswith("restart markers: 12 JPEGs rewritten, ")
    assert note.endswith(
        "; 4 left as they are: 1 too small to gain by it, 1 of another kind (CMYK, arithmetic"
        " codes, 12 bits) or too large, 1 damaged or cut off, 1 no JPEGs"
    )


def test_counts_of_shards_that_were_done_before(source: Path, tmp_path: Path) -> None:
    own = shutil.copytree(source, tmp_path / "own")
    dest = tmp_path / "d"
    (own / "class1" / "cut.jpg").unlink()
    write(own / "class2" / "bad.jpg", jpeg(160, 120)[:900])
    options: dict[str, Any] = {**OPTIONS, "check_images": True}
    with pytest.raises(SampleError, match=r"class2/bad.jpg"):
        shardkit.pack(own, dest, restarts=True, **options)
    with pytest.raises(UsageError, match="restarts was True, now False"):
        shardkit.pack(own, dest, **options)
    options |= {"on_error": "skip", "max_rejects": 0.5, "restarts": True}
    result = shardkit.pack(own, dest, **options)
    assert result.resumed_shards > 0 and result.num_rejects == 1
    whole = shardkit.pack(own, tmp_path / "whole", **options)
    assert result.notes == whole.notes and whole.resumed_shards == 0
    assert tree(dest) == tree(tmp_path / "whole")


def test_kill_and_go_on(container: str, source: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for i in range(8):
        shutil.copytree(source, own / f"train{i}")
    goes_on = {**OPTIONS, "to": container, "restarts": True}
    whole = shardkit.pack(own, tmp_path / "whole", **goes_on)
    dest = tmp_path / "killed"
    with forked_workers():
        process = forked(lambda: shardkit.pack(own, dest, **{**goes_on, "workers": 2}))
    while process.is_alive() and len([*(dest / ".packing").glob("*.part")]) < 3:
        time.sleep(0.001)
    process.kill()
    assert end_of(process) == -signal.SIGKILL
    result = shardkit.pack(own, dest, **goes_on)
    assert 0 < result.resumed_shards < result.num_shards
    assert result.notes == whole.notes and "96 JPEGs rewritten" in str(result.notes)
    assert tree(dest) == tree(tmp_path / "whole")


def test_what_was_stored_so_before_comes_back_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "s"
    marked = bytes(add_restarts(jpeg(160, 120))[0])
    write(source / "a.jpg", marked)
    write(source / "b.jpg", jpeg(160, 120, seed=1))
    write(source / "c.jpg", marked[: len(marked) * 3 // 4])
    for name, restart in (("plain", False), ("twice", True)):
        packed = shardkit.pack(source, tmp_path / name, restarts=restart, **OPTIONS)
        shardkit.unpack(tmp_path / name, tmp_path / f"{name}-back")
        assert tree(tmp_path / f"{name}-back") == tree(source)
    assert packed.notes[0].startswith("restart markers: 1 JPEG rewritten, ")
    assert packed.notes[0].endswith("; 2 had shardkit's already")


def test_with_what_is_written_anew(source: Path, pack: Pack, tmp_path: Path) -> None:
    own = shutil.copytree(source, tmp_path / "own")
    (own / "class1" / "cut.jpg").unlink()
    write(own / "class0" / "large.jpg", jpeg(480, 360))
    found = []
    for number, restart in enumerate((False, True)):
        dest = tmp_path / str(number)
        options = {**OPTIONS, "resize": 240, "image_format": "jpeg", "restarts": restart}
        shardkit.pack(own, dest, **options)
        assert shardkit.verify(dest, against=own).ok
        shardkit.unpack(dest, tmp_path / f"back{number}")
        found.append(tree(tmp_path / f"back{number}"))
    assert found[0] == found[1] and len(found[0]) == 16
    ds = shardkit.open(tmp_path / "1", decode=False)
    assert sum(has_restarts(bytes(value)) for value in ds.read(range(16))["jpg"]) >= 13
    large = ds[ds.keys().index("class0/large")]["jpg"]
    assert pixels(large).shape == (240, 320, 3) and has_restarts(bytes(large))


def test_other_fields_and_two_pictures_are_left(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "pairs"
    marked = bytes(add_restarts(jpeg(160, 120))[0])
    for i in range(3):
        write(source / f"{i}.jpg", jpeg(160, 120, seed=i))
        write(source / f"{i}.png", picture(i, kind="PNG"))
        write(source / f"{i}.mask.jpg", marked)  # to be given back as it is
        write(source / f"{i}.txt", "x")
    shardkit.pack(source, tmp_path / "d", corpus="paired", restarts=True, **OPTIONS)
    ds = shardkit.open(tmp_path / "d", decode=False)
    assert ds.fields == ["jpg", "mask.jpg", "png", "txt"]
    words = ["pack", source, "--to", "npy", "--estimate", "--corpus", "paired", "--restarts"]
    assert [row["choice"] for row in json.loads(run(*words, "--json").out)] == [
        "keep",
        "--restarts",
    ]
    assert "no estimate of --resize 256: its sample has two pictures, jpg and" in run(*words).out
    assert has_restarts(bytes(ds[0]["jpg"])) and bytes(ds[0]["mask.jpg"]) == marked
    assert shardkit.verify(tmp_path / "d", against=source).ok
    shardkit.unpack(tmp_path / "d", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_counts_add_up_in_tars_of_others(tmp_path: Path) -> None:
    """Where fields are called as the members' endings, whatever is in them."""
    members = {name: jpeg(160, 120) for name in ("0.jpg", "1.jpeg", "2.png")}
    members |= {"3.jpg": picture(1, 64, "PNG"), "4.jpg": jpeg(160, 120), "4.mask.jpg": picture(1)}
    write_tar(tmp_path / "a.tar", members)
    dest = tmp_path / "d"
    made = shardkit.convert(tmp_path / "a.tar", dest, to="npy", restarts=True, workers=0)
    assert made.notes[0].startswith("restart markers: 2 JPEGs rewritten, ")
    assert made.notes[0].endswith(
        "; 4 left as they are: 1 no JPEGs, 3 in fields of other names than jpg"
    )
    shardkit.unpack(dest, tmp_path / "back")
    assert tree(tmp_path / "back") == members
    del members["2.png"], members["3.jpg"]
    write_tar(tmp_path / "b.tar", members)
    made = shardkit.convert(tmp_path / "b.tar", tmp_path / "small", to="npy", resize=60, workers=0)
    assert made.notes == [
        "pictures left as they are: 1 in field jpeg, 1 in field mask.jpg; only fields called jpg,"
        " png and the like are written anew"
    ]
    write_tar(tmp_path / "c.tar", {"1.jpeg": members["1.jpeg"]})
    with pytest.raises(UsageError, match="holds jpeg, and has no pictures in fields called jpg, p"):
        shardkit.convert(tmp_path / "c.tar", tmp_path / "none", to="npy", resize=60)


# --- converted, compared ------------------------------------------------------------------


def test_convert(source: Path, pack: Pack, tmp_path: Path) -> None:
    plain, direct = pack(restarts=False, to="webdataset"), pack(to="npy")
    made = shardkit.convert(plain, tmp_path / "made", to="npy", restarts=True, workers=0)
    assert made.notes[0].startswith("restart markers: 12 JPEGs rewritten")
    assert tree(made.dest) == tree(direct)
    shardkit.convert(direct, tmp_path / "rows", to="lmdb", workers=0)
    shardkit.convert(tmp_path / "rows", tmp_path / "again", to="npy", workers=0)
    assert tree(tmp_path / "again") == tree(direct)
    shardkit.unpack(tmp_path / "rows", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    with pytest.raises(UsageError, match="was packed with --restarts already: leave it out"):
        shardkit.convert(direct, tmp_path / "twice", to="lmdb", restarts=True)
    assert not (tmp_path / "twice").exists()


def test_smaller_pictures_of_a_dataset_with_markers(tmp_path: Path) -> None:
    """They have none, until they are asked for; those that were kept get none twice."""
    write(tmp_path / "own" / "large.jpg", jpeg(480, 360))
    write(tmp_path / "own" / "small.jpg", jpeg(160, 120))
    shardkit.pack(tmp_path / "own", tmp_path / "plain", **OPTIONS)
    shardkit.pack(tmp_path / "own", tmp_path / "marked", restarts=True, **OPTIONS)
    options: dict[str, Any] = {"to": "npy", "workers": 0}
    smaller: dict[str, Any] = {**options, "resize": 240}
    shardkit.convert(tmp_path / "plain", tmp_path / "expected", **smaller)
    shardkit.unpack(tmp_path / "expected", tmp_path / "expected-back")
    shardkit.convert(tmp_path / "marked", tmp_path / "resized", **smaller)
    shardkit.convert(tmp_path / "marked", tmp_path / "at-once", restarts=True, **smaller)
    made = shardkit.convert(tmp_path / "resized", tmp_path / "later", restarts=True, **options)
    assert made.notes[0].startswith("restart markers: 2 JPEGs rewritten")
    for name in ("resized", "at-once", "later"):
        ds = shardkit.open(tmp_path / name, decode=False)
        assert [has_restarts(bytes(ds[i]["jpg"])) for i in range(2)] == [name != "resized", True]
        shardkit.unpack(tmp_path / name, tmp_path / f"{name}-back")
        assert tree(tmp_path / f"{name}-back") == tree(tmp_path / "expected-back")


def test_a_damaged_jpeg_with_markers_gets_no_others() -> None:
    whole = bytes(add_restarts(jpeg(160, 120))[0])
    batch = SampleBatch(
        [b"a", b"b", b"c"], [b""] * 3, {"jpg": [whole, None, whole[:-9]], "png": [None, b"x", None]}
    )
    made = remove_added(batch)
    assert made.columns == {"jpg": [jpeg(160, 120), None], "png": [None, b"x"]}
    ((path, reason),) = made.rejects
    assert path == "c" and "is damaged" in reason


def test_verify_against_tells_of_one_byte(source: Path, pack: Pack, tmp_path: Path) -> None:
    dataset = pack()
    other = shutil.copytree(source, tmp_path / "other")
    path = other / "class1" / "03.jpg"
    path.write_bytes(path.read_bytes()[:-2] + b"\0\xff\xd9")
    (told,) = map(str, shardkit.verify(dataset, against=other).problems)
    assert told.startswith("sample 'class1/03'") and told.endswith("differs from the original")


def test_markers_that_cannot_be_removed(
    source: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(jpeg: Any) -> Any:
        raise BadImageError("damaged")

    dataset = pack()
    monkeypatch.setattr(restarting, "remove_restarts", refuse)
    with pytest.raises(DataError, match=r"class0/00.jpg: its restart markers cannot be removed: d"):
        shardkit.unpack(dataset, tmp_path / "back")
    told = [str(problem) for problem in shardkit.verify(dataset, against=source).problems]
    assert len(told) == 12 and told[0].endswith("its jpg cannot be given back: damaged")


def test_an_unpack_that_was_stopped_goes_on(
    source: Path, pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, calls = pack(), []

    def stop(value: Any) -> Any:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return remove_restarts(value)

    monkeypatch.setattr(restarting, "remove_restarts", stop)
    with pytest.raises(KeyboardInterrupt):
        shardkit.unpack(dataset, tmp_path / "back")
    shardkit.unpack(dataset, tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)


# --- refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("image_format", ["png", "webp", "raw"])
def test_formats_that_leave_no_jpeg(image_format: Any) -> None:
    with pytest.raises(UsageError, match=f"restarts is for JPEGs, and image_format {image_format}"):
        ImageChoice(crop=8, image_format=image_format, restarts=True)


def test_quality_alone_writes_nothing_anew() -> None:
    with pytest.raises(UsageError, match="quality is for pictures that are written anew"):
        ImageChoice(quality=80, restarts=True)


def test_without_the_module_nothing_is_written(
    source: Path, pack: Pack, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, plain = pack(), pack(restarts=False)

    def refuse() -> None:
        raise UsageError("not built: install it")

    monkeypatch.setattr(restarts, "require", refuse)
    monkeypatch.setattr(restarts, "why_not", lambda: "not built")
    for call in (
        lambda dest: shardkit.pack(source, dest, restarts=True, **OPTIONS),
        lambda dest: shardkit.convert(plain, dest, to="lmdb", restarts=True),
        lambda dest: shardkit.unpack(dataset, dest),
        lambda dest: shardkit.verify(dataset, against=source),
    ):
        with pytest.raises(UsageError, match="not built: install it"):
            call(tmp_path / "d")
        assert not (tmp_path / "d").exists()
    told = run("pack", source, "--to", "npy", "--estimate").out
    assert "--resize 256" in told and "--restarts" not in told
    shardkit.unpack(plain, tmp_path / "back")
    shardkit.convert(dataset, tmp_path / "d", to="lmdb", workers=0)  # values stay as they are


def test_no_pictures(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no pictures: leave out --restarts"):
        shardkit.pack(make_texts(tmp_path / "s"), tmp_path / "d", restarts=True, **OPTIONS)


def test_pillow_is_not_needed(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, shardkit; shardkit.pack(sys.argv[1], sys.argv[2], to='npy', workers=0,"
        " restarts=True); print('PIL' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "d")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


# --- said ---------------------------------------------------------------------------------


def test_words() -> None:
    assert restarting.told({}) == ""
    added = {Outcome.ADDED: 1, restarting.BEFORE: 2000, restarting.AFTER: 1980}
    assert restarting.told(added) == (
        "restart markers: 1 JPEG rewritten, -1.0 % in bytes (2.0 kB became 2.0 kB)"
    )
    left = {outcome: 1 for outcome in Outcome if outcome is not Outcome.ADDED}
    assert restarting.told(left).startswith(
        "restart markers: 0 JPEGs rewritten; 1 had shardkit's already; 5 left as they are: "
    )
    assert restarting.told(left).count(", 1 ") == 4


def test_cli(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.jpg", jpeg(160, 120))
    got = run("pack", "in", "--to", "npy", "--restarts", "--workers", 0)
    assert got.code == 0 and "  restart markers: 1 JPEG rewritten, " in got.out
    assert run("info", "in-npy").out.splitlines()[1] == (
        "  pictures rewritten without loss: --restarts"
    )
    assert json.loads(run("info", "in-npy", "--json").out)["corpus"]["images"] == [
        {"restarts": True}
    ]
    run("convert", "in-npy", "small", "--to", "npy", "--resize", 60, "--workers", 0)
    assert run("info", "small").out.splitlines()[1:3] == [
        "  pictures written anew: --restarts, then --resize 60",
        "  what was written anew after --restarts has no restart markers",
    ]
    run("convert", "small", "again", "--to", "npy", "--restarts", "--workers", 0)
    assert "no restart markers" not in run("info", "again").out
    got = run("verify", "in-npy", "--against", "in")
    assert got.code == 0 and "written anew" not in got.out
    got = run("pack", "in", "--to", "npy", "--estimate", "--restarts")
    assert got.code == 0 and "  --restarts  " in got.out
    got = run("pack", "in", "x", "--to", "npy", "--restarts", "--image-format", "png")
    assert got.code == 2 and got.err == (
        "shardkit: error: --restarts is for JPEGs, and --image-format png leaves none: pass one of"
        " the two\n"
    )
    got = run("convert", "in-npy", "x", "--to", "lmdb", "--restarts")
    assert got.code == 2 and "--restarts already" in got.err
