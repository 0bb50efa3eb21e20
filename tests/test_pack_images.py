"""Packing with choices for pictures: what is stored, found again, refused and said."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import (
    CONTAINERS,
    Run,
    make_arrays,
    make_images,
    make_texts,
    picture,
    run_python,
    tree,
    write,
)
from odd_pictures import png16
from PIL import Image, features

import shardkit
from shardkit.cli import estimates
from shardkit.errors import DataError, IndexFileError, ResumeError, SampleError, UsageError
from shardkit.images.choice import ImageChoice
from shardkit.images.encode import rewrite
from shardkit.images.sniff import image_field

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False, "shard_size": "3kB"}

CHOICES: list[dict[str, Any]] = [
    {"resize": 8},
    {"max_side": 9},
    {"crop": 6},
    {"image_format": "png"},
    {"image_format": "jpeg", "quality": 30},
    {"resize": 8, "crop": 6, "image_format": "raw"},
    {"image_format": "raw", "crop": 16},
]

Pack = Callable[..., Path]


def shape_of(value: Any) -> tuple[int, int]:
    return Image.open(io.BytesIO(value)).size


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


@pytest.fixture
def pack(source: Path, tmp_path: Path) -> Pack:
    """Packs ``source`` into a folder of its own each time."""
    made: list[Path] = []

    def pack(**options: Any) -> Path:
        dest = tmp_path / f"packed{len(made)}"
        made.append(dest)
        shardkit.pack(source, dest, **{"to": "npy", **OPTIONS, **options})
        return dest

    return pack


# --- what is stored -----------------------------------------------------------------------


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: str(ImageChoice(**choice)))
def test_every_container_holds_what_was_chosen(
    choice: dict[str, Any], container: str, source: Path, pack: Pack
) -> None:
    dataset = pack(to=container, **choice)
    ds = shardkit.open(dataset, decode=False)
    files = sorted(source.rglob("*.jpg"))
    assert len(ds) == len(files) == 36
    (field,) = set(ds.fields) - {"cls"}
    expected = [rewrite(f.read_bytes(), "jpg", ImageChoice(**choice)) for f in files]
    assert field == {"jpg": "jpg", "png": "png", "npy": "image.npy"}[expected[0][0]]
    assert [*map(bytes, ds.read(range(36))[field])] == [bytes(value) for _, value in expected]
    assert shardkit.verify(dataset, against=source).ok
    assert ds.info.provenance.images == (ImageChoice(**choice).to_json(),)


def test_keep_is_what_it_was(pack: Pack) -> None:
    """Not a byte differs for the options being there, and Pillow is not even imported."""
    assert tree(pack()) == tree(pack(image_format="keep"))
    assert "images" not in shardkit.info(pack()).corpus


def test_raw_is_one_array(source: Path, pack: Pack) -> None:
    files = sorted(source.rglob("*.jpg"))
    pictures = np.stack([np.asarray(Image.open(f).convert("RGB")) for f in files])
    rows = np.random.default_rng(0).integers(0, 36, 100)
    for to in CONTAINERS:
        crop = {} if to in ("npy", "hdf5") else {"crop": 16}
        ds = shardkit.open(pack(to=to, image_format="raw", **crop))
        assert len(ds.info.splits["train"].shards) > 3
        for some in (rows, rows[:1], range(4)):
            column = ds.read(some)["image.npy"]
            np.testing.assert_array_equal(np.asarray(column), pictures[np.asarray(some, int)])
        column = ds.read(rows)["image.npy"]
        assert isinstance(column, np.ndarray) and column.dtype == np.uint8
        assert column.flags.c_contiguous and column.flags.writeable
        assert ds[3]["image.npy"].shape == (16, 16, 3)
        (batch,) = {b["image.npy"].shape for b in shardkit.Loader(ds, 12)}
        assert tuple(batch) == (12, 16, 16, 3)
    other = shardkit.open(pack(to="hdf5", image_format="raw", compression=1))
    np.testing.assert_array_equal(other.read(rows)["image.npy"], pictures[rows])


def test_mixed_kinds_and_names(tmp_path: Path) -> None:
    source = tmp_path / "mixed"
    write(source / "a" / "x.PNG", picture(1, kind="PNG"))
    write(source / "a" / "x.JPEG", picture(2))
    write(source / "a" / "y.bmp", picture(3, kind="BMP"))
    write(source / "a" / "odd.JPEG", picture(4, kind="PNG"))
    write(source / "a" / "plain.jpeg", picture(5))
    write(source / "a" / "big.jpe", picture(6, size=64))
    shardkit.pack(source, tmp_path / "d", to="lmdb", resize=16, image_format="jpeg", **OPTIONS)
    ds = shardkit.open(tmp_path / "d", decode=False)
    assert ds.fields == ["cls", "jpg"] and ds.keys()[-2:] == ["a/x.PNG", "a/y"]
    assert shardkit.verify(tmp_path / "d", against=source).ok
    shardkit.unpack(tmp_path / "d", tmp_path / "back")
    back = tree(tmp_path / "back")
    assert sorted(back) == sorted(
        ["a/x.PNG.jpg", "a/x.JPEG", "a/y.jpg", "a/odd.JPEG", "a/plain.jpeg", "a/big.jpe"]
    )
    assert {image_field(value[:32]) for value in back.values()} == {"jpg"}
    assert back["a/plain.jpeg"] == picture(5)
    assert shape_of(back["a/big.jpe"]) == (16, 16)


def test_pictures_beside_other_fields(tmp_path: Path) -> None:
    source = tmp_path / "pairs"
    for i in range(4):
        write(source / f"{i}.png", picture(i, kind="PNG"))
        write(source / f"{i}.txt", f"caption {i}")
        write(source / f"{i}.mask.png", picture(i + 50, kind="PNG"))
    write(source / "only.txt", "no picture")
    made = shardkit.pack(source, tmp_path / "d", to="hdf5", crop=6, image_format="raw", **OPTIONS)
    assert made.notes[-1].startswith("pictures left as they are: 4 in field mask.png; only fields")
    ds = shardkit.open(tmp_path / "d")
    assert ds.fields == ["image.npy", "mask.png", "txt"]
    assert bytes(ds[1]["mask.png"]) == picture(51, kind="PNG")
    assert (ds[1]["image.npy"].shape, ds[1]["txt"]) == ((6, 6, 3), "caption 1")
    assert len(ds) == 4 and any(note.endswith("passed over: only.txt") for note in made.notes)
    result = shardkit.verify(tmp_path / "d", against=source)
    assert result.ok and result.num_compared == 4
    shardkit.unpack(tmp_path / "d", tmp_path / "back")
    assert sorted(tree(tmp_path / "back"))[:3] == ["0.image.npy", "0.mask.png", "0.txt"]


def test_two_pictures_of_one_sample(tmp_path: Path) -> None:
    source = tmp_path / "pairs"
    write(source / "a.jpg", picture(1))
    write(source / "a.png", picture(2, kind="PNG"))
    write(source / "a.txt", "x")
    with pytest.raises(SampleError, match=r"two pictures, jpg and png.*as in x.mask.png"):
        shardkit.pack(source, tmp_path / "d", to="npy", corpus="paired", resize=8, **OPTIONS)


# --- what does not decode -----------------------------------------------------------------


def test_bad_pictures(source: Path, pack: Pack, tmp_path: Path) -> None:
    bad = source / "class1" / "img.003.jpg"
    bad.write_bytes(picture(9)[:200])
    with pytest.raises(
        SampleError, match=r"class1/img.003.jpg: jpg does not decode: .*on-error skip"
    ):
        pack(max_side=8)
    assert len(shardkit.open(pack())) == 36  # without a choice nobody looks
    for choice in ({"max_side": 8}, {"image_format": "raw"}):
        dataset = pack(on_error="skip", max_rejects=0.1, **choice)
        (line,) = (dataset / "rejected.jsonl").read_text().splitlines()
        assert json.loads(line)["path"] == "class1/img.003.jpg"
        assert "class1/img.003" not in [*shardkit.open(dataset).keys()]
        assert len(shardkit.open(dataset)) == 35
        assert shardkit.verify(dataset, against=source).ok


@pytest.mark.parametrize("shard_size", ["3kB", "1MB"])
def test_raw_of_unequal_shapes(shard_size: str, source: Path, pack: Pack) -> None:
    (source / "class2" / "img.011.jpg").write_bytes(picture(1, size=20))
    with pytest.raises(SampleError, match=r"is 20x20, and pictures before it are 16x16.*--crop N"):
        pack(image_format="raw", shard_size=shard_size)
    for to in ("lmdb", "webdataset"):
        with pytest.raises(UsageError, match="pass crop, or choose hdf5 or npy"):
            pack(to=to, image_format="raw")
    assert shardkit.open(pack(image_format="raw", crop=18)).read([35])["image.npy"].shape[1] == 18


def test_no_pictures(run: Run, tmp_path: Path) -> None:
    for number, make in enumerate((make_arrays, make_texts)):
        source = make(tmp_path / f"s{number}")
        with pytest.raises(UsageError, match=r"is taken for .* leave out --resize 8"):
            shardkit.pack(source, tmp_path / "d", to="npy", resize=8, **OPTIONS)
        got = run("pack", source, "--to", "npy", "--estimate")
        assert got.code == 2 and "no pictures to estimate" in got.err
    shardkit.pack(make_texts(tmp_path / "t"), tmp_path / "texts", to="npy", **OPTIONS)
    with pytest.raises(UsageError, match="holds txt, and has no pictures"):
        shardkit.convert(tmp_path / "texts", tmp_path / "d", to="lmdb", crop=8)


# --- resumed, converted, compared ---------------------------------------------------------


def test_other_options_do_not_go_on(source: Path, tmp_path: Path) -> None:
    write(source / "class2" / "zz.jpg", picture(1)[:100])
    dest = tmp_path / "d"
    with pytest.raises(SampleError):
        shardkit.pack(source, dest, to="npy", max_side=8, **OPTIONS)
    assert [*(dest / ".packing").glob("*.part")]
    for options, change in (
        ({"max_side": 9}, "max_side was 8, now 9"),
        ({"max_side": 8, "quality": 80}, "quality was None, now 80"),
    ):
        with pytest.raises(ResumeError, match=change):
            shardkit.pack(source, dest, to="npy", **OPTIONS, **options)
    skips = {"on_error": "skip", "max_rejects": 0.5}
    result = shardkit.pack(source, dest, to="npy", max_side=8, **OPTIONS, **skips)
    assert result.resumed_shards > 0
    whole = tmp_path / "whole"
    shardkit.pack(source, whole, to="npy", max_side=8, **OPTIONS, **skips)
    assert tree(dest) == tree(whole)


def test_convert(source: Path, pack: Pack, tmp_path: Path) -> None:
    whole, direct = pack(to="webdataset"), pack(to="npy", max_side=8)
    shardkit.convert(whole, tmp_path / "small", to="npy", workers=1, max_side=8)
    assert tree(tmp_path / "small") == tree(direct)
    shardkit.convert(tmp_path / "small", tmp_path / "raw", to="hdf5", image_format="raw")
    ds = shardkit.open(tmp_path / "raw")
    assert ds.read([0, 9])["image.npy"].shape == (2, 8, 8, 3)
    assert ds.info.provenance.images == ({"max_side": 8}, {"image_format": "raw"})
    shardkit.convert(tmp_path / "raw", tmp_path / "rows", to="lmdb")
    shardkit.convert(tmp_path / "rows", tmp_path / "again", to="hdf5")
    assert tree(tmp_path / "again") == tree(tmp_path / "raw")
    assert shardkit.verify(tmp_path / "raw", against=source).ok


def test_convert_skips_what_does_not_decode(source: Path, pack: Pack, tmp_path: Path) -> None:
    write(source / "class0" / "none.jpg", "no picture")
    (source / "class1" / "img.003.jpg").write_bytes(picture(9)[:200])
    packed = pack(on_error="skip", max_rejects=0.1)
    with pytest.raises(SampleError, match=r"class1/img.003.jpg: jpg does not decode"):
        shardkit.convert(packed, tmp_path / "d", to="lmdb", max_side=8)
    skips = {"on_error": "skip", "max_rejects": 0.1}
    result = shardkit.convert(packed, tmp_path / "d", to="lmdb", max_side=8, **skips)
    assert (result.num_samples, result.num_rejects) == (35, 1)
    lines = (tmp_path / "d" / "rejected.jsonl").read_text().splitlines()
    paths = [json.loads(line)["path"] for line in lines]
    assert paths == ["class0/none.jpg", "class1/img.003.jpg"]
    assert shardkit.verify(tmp_path / "d", against=source).ok


def test_against_others(source: Path, pack: Pack, tmp_path: Path) -> None:
    dataset = pack(image_format="png")
    result = shardkit.verify(dataset, against=source)
    assert result.notes == [
        "pictures were written anew (--image-format png): keys, labels and all other fields were"
        " compared, but not pixels"
    ]
    assert shardkit.verify(pack(image_format="png", val_fraction=0.3), against=source).ok
    write(source / "class1" / "new.jpg", picture(1))
    (source / "class2" / "img.000.jpg").unlink()
    told = [str(problem) for problem in shardkit.verify(dataset, against=source).problems]
    assert told == [
        "sample 'class1/new': is not in the dataset",
        f"sample 'class2/img.000' (row 24, train-00006): has no original in {source}",
    ]
    assert shardkit.verify(pack(), against=source).notes == []


def test_labels_against_folders(source: Path, pack: Pack, tmp_path: Path) -> None:
    """Those of folders are compared; those of a file say nothing of folders."""
    rows = [f"{path.relative_to(source)},class0\n" for path in sorted(source.rglob("*.jpg"))]
    rows[-1], rows[-2] = (
        rows[-1].replace(",class0", ",class1"),
        rows[-2].replace(",class0", ",class2"),
    )
    labels = write(tmp_path / "labels.csv", "path,label\n" + "".join(rows))
    dataset = pack(resize=8, labels=labels)
    result = shardkit.verify(dataset, against=source)
    assert result.ok
    assert "classes are of a file given by --labels, which was not compared" in result.notes
    index = dataset / "shardkit.json"
    info = json.loads(index.read_text())
    assert info["corpus"]["labels"] is True
    swapped = tmp_path / "swapped"
    shutil.copytree(source, swapped)
    (swapped / "class0").rename(swapped / "tmp")
    (swapped / "class1").rename(swapped / "class0")
    (swapped / "tmp").rename(swapped / "class1")
    assert shardkit.verify(pack(resize=8), against=swapped).ok  # one cannot tell: names are equal
    (swapped / "class0").rename(swapped / "class00")
    assert not shardkit.verify(pack(resize=8), against=swapped).ok


@pytest.mark.parametrize("forged", ["5", '["resize"]', "null", '{"resize": 8}'])
def test_a_forged_record_of_choices(forged: str, pack: Pack) -> None:
    index = pack(resize=8, shard_size="1MB") / "shardkit.json"
    text = index.read_text()
    start = text.index('"images": ') + len('"images": ')
    index.write_text(text[:start] + forged + text[text.index("]", start) + 1 :])
    with pytest.raises(IndexFileError, match="bad corpus"):
        shardkit.info(index.parent)


# --- names --------------------------------------------------------------------------------


# --- one gather ---------------------------------------------------------------------------


def test_gather_of_any_dtype_and_damage(tmp_path: Path) -> None:
    """Arrays of two shapes, or not of this byte order, are read one by one, to the same effect."""
    arrays = np.random.default_rng(0).integers(0, 9, (40, 3, 5))
    for dtype in ("<f4", ">i2", "|b1", "<c8"):
        source = tmp_path / dtype.strip("<>|")
        for i, array in enumerate(arrays.astype(dtype)):
            out = io.BytesIO()
            np.save(out, array)
            write(source / f"{i:02d}.npy", out.getvalue())
        shardkit.pack(source, tmp_path / f"{source.name}.d", to="hdf5", **OPTIONS)
        got = shardkit.open(tmp_path / f"{source.name}.d").read([7, 39, 7] * 9)["npy"]
        assert isinstance(got, np.ndarray) and got.dtype == np.dtype(dtype).newbyteorder("=")
        np.testing.assert_array_equal(got, arrays.astype(dtype)[[7, 39, 7] * 9])


def test_a_place_outside_the_shard(pack: Pack) -> None:
    dataset = pack(image_format="raw")
    (rows,) = dataset.glob("*.rows")
    table = np.load(rows)
    table["image.npy.start"][5] = 2**40
    with rows.open("r+b") as file:
        file.seek(rows.stat().st_size - table.nbytes)
        file.write(table.tobytes())
    with pytest.raises(DataError, match="outside its shard"):
        shardkit.open(dataset).read(range(20))


# --- the command line ---------------------------------------------------------------------


def test_cli_estimate(run: Run, tmp_path: Path) -> None:
    got = run("pack", "pictures", "--to", "npy", "--estimate", "--resize", 8, "--workers", 3)
    assert got.code == 0 and got.err == ""
    head, columns, *rows = got.out.splitlines()
    assert head == (
        "measured on 36 of 36 samples, 0 bad ones apart; decoded/s and made/s by one thread, to"
        " make by 3 workers"
    )
    assert " ".join(columns.split()) == "choice a sample in all decoded/s made/s to make"
    choices = [row.split("  ")[1] for row in rows]
    assert choices[:2] == ["keep", "--resize 256"] and choices[-1] == "--resize 8"
    assert ("--max-side 512 --image-format webp" in choices) == features.check("webp")
    assert [*tmp_path.iterdir()] == [tmp_path / "pictures"]
    found = json.loads(run("pack", "pictures", "--to", "npy", "--estimate", "--json").out)
    keep, usual, *_ = found
    size = sum(len(value) for value in tree(tmp_path / "pictures").values())
    assert keep["sample_bytes"] == pytest.approx(size / 36 + 1)  # and a digit of label
    assert keep["made_per_s"] is None and keep["decodes_per_s"] > 0
    assert usual["sample_bytes"] == keep["sample_bytes"] and usual["made_per_s"] > 0


def test_cli_estimate_draws_by_seed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "NUM_SAMPLES", 5)
    write(tmp_path / "sizes" / "a" / "0.jpg", picture(1))
    for i in range(1, 40):
        write(tmp_path / "sizes" / "ab"[i % 2] / f"{i}.jpg", picture(i) + bytes(i))
    means = []
    for seed in (0, 0, 1):
        got = run("pack", "sizes", "--to", "npy", "--estimate", "--json", "--seed", seed)
        means.append(json.loads(got.out)[0]["sample_bytes"])
    assert means[0] == means[1] != means[2]
    got = run("pack", "sizes", "--to", "npy", "--estimate", "--limit", 2)
    assert got.out.startswith("measured on 2 of 2 samples")


def test_cli_estimate_of_bad_pictures(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "s" / "a.jpg", picture(1)[:90])
    words = ["pack", "s", "--to", "npy", "--estimate"]
    got = run(*words)
    assert got.code == 1 and "none of 1 samples drawn has a picture to measure: a.jpg:" in got.err
    write(tmp_path / "s" / "b.jpg", picture(1))
    write(tmp_path / "s" / "c.jpg", "none")
    assert run(*words).out.startswith("measured on 1 of 3 samples, 2 bad ones apart")


def test_cli_pack(run: Run, tmp_path: Path) -> None:
    here = ("--workers", 0)
    options = ["--resize", 8, "--image-format", "png", *here]
    lines = run("pack", "pictures", "small", "--to", "npy", *options).out.splitlines()
    assert lines[0].startswith("packed 36 samples (images) into 1 shard of npy: ")
    assert run("info", "small").out.splitlines()[1] == (
        "  pictures written anew: --resize 8 --image-format png"
    )
    told = run("verify", "small", "--against", "pictures").out.splitlines()[1]
    assert told.startswith("  pictures were written anew (--resize 8 --image-format png): keys, ")
    assert json.loads(run("pack", "pictures", "j", "--to", "npy", "--crop=4", "--json", *here).out)
    got = run("convert", "small", "--to", "lmdb", "--image-format", "raw", "--crop", 4, *here)
    assert got.code == 0
    assert "image.npy: bytes" in run("info", "small-lmdb").out


def test_what_pictures_lost_is_said(run: Run, tmp_path: Path) -> None:
    """Also by a pack that goes on after a kill, of the shards that are done."""
    for i in range(40):
        write(tmp_path / "deep" / f"{i:02d}.png", png16(2)[0])
    write(tmp_path / "deep" / "page.gif", picture(1, kind="GIF"))
    got = run("pack", "deep", "--to", "npy", "--resize", 4, "--shard-size", "2kB", "--workers", 2)
    said = "pictures written anew: 40 from more than 8 bits a channel to 8; without --resize 4 all"
    assert said in got.out and got.code == 0
    got = run("convert", "deep-npy", "again", "--to", "lmdb", "--resize", 2, "--workers", 0)
    assert "pictures written anew" not in got.out and got.code == 0  # they have 8 bits now
    got = run("pack", "deep", "kept", "--to", "npy", "--workers", 0)
    assert "pictures written anew" not in got.out and got.code == 0


def test_losses_of_shards_that_were_done_before(source: Path, pack: Pack) -> None:
    write(source / "class0" / "a.png", png16(2)[0])
    options: dict[str, Any] = {**OPTIONS, "resize": 4, "shard_size": "1kB"}
    write(source / "class2" / "z.jpg", picture(1)[:90])
    with pytest.raises(SampleError, match=r"z\.jpg"):
        pack(**options)
    dest = source.parent / "packed0"
    result = shardkit.pack(source, dest, to="npy", on_error="skip", max_rejects=0.5, **options)
    assert result.resumed_shards > 0
    assert [note for note in result.notes if "anew" in note] == [
        "pictures written anew: 1 from more than 8 bits a channel to 8; without --resize 4 all stay"
        " as they are"
    ]


def test_cli_errors(run: Run, tmp_path: Path) -> None:
    got = run("pack", "pictures", "--to", "npy", "--quality", 80, "--workers", 0)
    assert got.code == 2 and "quality is for pictures that are written anew" in got.err
    got = run("pack", "pictures", "--to", "npy", "--resize", 0, "--workers", 0)
    assert got.err == "shardkit: error: --resize is a number of pixels from 1 to 65535, got 0\n"
    write(tmp_path / "bad" / "a.jpg", picture(1)[:90])
    got = run("pack", "bad", "--to", "npy", "--resize", 8, "--workers", 0)
    assert got.code == 1 and got.err.startswith("shardkit: error: a.jpg: jpg does not decode: ")


def test_only_those_who_choose_import_pillow(source: Path, tmp_path: Path) -> None:
    code = (
        "import sys, shardkit; shardkit.pack(sys.argv[1], sys.argv[2], to='npy', workers=0,"
        " **eval(sys.argv[3])); print(sorted({'PIL', 'torch'} & {*sys.modules}))"
    )
    for number, (options, expected) in enumerate([({}, "[]"), ({"resize": 8}, "['PIL']")]):
        assert run_python(code, source, tmp_path / str(number), repr(options)) == expected + "\n"


def test_pictures_packed_as_pixels_are_mirrored_by_key(tmp_path: Path) -> None:
    make_images(tmp_path / "in", per_class=12)
    options: dict[str, Any] = {"crop": 16, "image_format": "raw", "progress": False}
    ds = shardkit.open(shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **options).dest)
    flip = shardkit.images.flip()
    batch = next(iter(shardkit.Loader(ds, len(ds), transform=flip, workers=0, with_keys=True)))
    again = next(iter(shardkit.Loader(ds, len(ds), transform=flip, workers=2)))
    assert torch.equal(batch["image"], again["image"])
    plain = torch.from_numpy(ds.read(range(len(ds)))["image.npy"])
    mirrored = [bool((a == b.flip(1)).all()) for a, b in zip(batch["image"], plain, strict=True)]
    same = [bool((a == b).all()) for a, b in zip(batch["image"], plain, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 0 < sum(mirrored) < len(ds)
    always = next(iter(shardkit.Loader(ds, 4, transform=shardkit.images.flip(1.0), workers=0)))
    assert torch.equal(always["image"], plain[:4].flip(2))
    one = shardkit.images.flip(1.0)(ds[0], np.random.default_rng(0))
    assert (one["image"] == ds[0]["image.npy"][:, ::-1]).all() and one["cls"] == ds[0]["cls"]
    with pytest.raises(UsageError, match=r"packed as pixels .* there is cls"):
        shardkit.images.flip().batch({"cls": [1]}, np.zeros(1, np.uint64))
    with pytest.raises(UsageError, match="share is a probability, got 2"):
        shardkit.images.flip(2)


def test_new_names_that_are_taken_are_refused(container: str, tmp_path: Path) -> None:
    for name in ("d.bmp", "d.png", "d.bmp.png"):
        kind = "BMP" if name.endswith("bmp") else "PNG"
        path = tmp_path / "in" / "train" / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), len(name), np.uint8)).save(path, kind)
    with pytest.raises(DataError, match=r"c/d\.bmp would be restored as .*c/d\.bmp\.png, which"):
        shardkit.pack(
            tmp_path / "in", tmp_path / "out", to=container, resize=20, workers=0, progress=False
        )
    with pytest.raises(UsageError):
        shardkit.open(tmp_path / "out")
