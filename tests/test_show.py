"""``show``: samples as a person sees them; whatever they hold, the terminal stays whole."""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Ran, Run, make_images, make_pairs, picture, tree, write
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from token_data import documents, pack_tokens

import shardkit
from shardkit.cli.output import visible
from shardkit.images import sheet
from shardkit.index.manifest import dump_info, read_info
from shardkit.operations import show as show_samples
from shardkit.tokens.bytelevel import byte_of
from shardkit.tokens.load import load_tokenizer


def pack(source: Path, dest: Path, to: str = "npy") -> Path:
    return shardkit.pack(source, dest, to=to, workers=0, progress=False).dest


@pytest.fixture
def pictures(run: Run) -> Run:
    """Runs commands where ``pictures-npy`` is."""
    assert run("pack", "pictures", "--to", "npy", "--workers", 0).code == 0
    return run


# --- whole outputs ------------------------------------------------------------------------


def test_pairs_in_every_format(run: Run, tmp_path: Path, container: str) -> None:
    """Text with control characters, odd class numbers, arrays, fields that a sample lacks."""
    write(tmp_path / "pairs" / "0003.caption", "a\tb\x1b[2Jc\r\n")
    write(tmp_path / "pairs" / "0003.blob", b"\0\1\2" + bytes(30))
    pack(make_pairs(tmp_path / "pairs"), tmp_path / "packed", container)
    assert run("show", "packed", "--rows", "0,3,4") == Ran(
        0,
        "packed, train: 3 of 13 samples\n"
        "row 0: 0000\n"
        "  cls: 7\n"
        "  feat.npy: array, float32 0 x 3, SIZE\n"
        "  jpg: picture, jpg 16 x 16, SIZE\n"
        "  json: text, SIZE\n"
        '    | { "b" : 1,\n'
        '    |   "a": [1.0, 0] }\n'
        "row 3: 0003\n"
        "  blob: bytes, begins 00 01 02 00 00 00 00 00 00 00 00 00 00 00 00 00, SIZE\n"
        "  caption: text, SIZE\n"
        "    | a\\tb\\x1b[2Jc\\r\n"
        "  cls: 0\n"
        "  jpg: picture, jpg 16 x 16, SIZE\n"
        "row 4: 0004\n"
        "  cls: 7\n"
        "  jpg: picture, jpg 16 x 16, SIZE\n"
        "  json: text, SIZE\n"
        '    | { "b" : 1,\n'
        '    |   "a": [1.0, 4] }\n'
        "  txt: text, SIZE\n",
        "",
    )


def test_arrays_begin_with_their_numbers(run: Run, tmp_path: Path, container: str) -> None:
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "a.npy", np.arange(20, dtype=np.int16).reshape(5, 4).T)
    np.save(tmp_path / "arrays" / "b.npy", np.array(2.5 + 1j))
    pack(tmp_path / "arrays", tmp_path / "packed", container)
    assert run("show", "packed").out.splitlines()[1:] == [
        "row 0: a",
        "  npy: array, int16 4 x 5, SIZE",
        "    0 4 8 12 16 1 5 9 13 17 2 6 ...",
        "row 1: b",
        "  npy: array, complex128, SIZE",
        "    (2.5+1j)",
    ]
    assert json.loads(run("show", "packed", "--json").out)["samples"][1]["fields"][0] == {
        "name": "npy",
        "kind": "array",
        "what": "complex128",
        "num_bytes": 16,
        "text": None,
        "is_cut": False,
        "numbers": ["(2.5+1j)"],
        "num_numbers": 1,
    }


def test_tokens_without_a_tokenizer(run: Run, tmp_path: Path, container: str) -> None:
    pack_tokens(tmp_path, documents([15, 0, 3]), container)
    assert run("show", container) == Ran(
        0,
        f"{container}, train: 3 of 3 samples\n"
        "row 0: 000000\n"
        "  tokens: tokens, 15 of uint16, SIZE\n"
        "    0 1 2 3 4 5 6 7 8 9 10 11 ...\n"
        "row 1: 000001\n"
        "  tokens: tokens, 0 of uint16, SIZE\n"
        "row 2: 000002\n"
        "  tokens: tokens, 3 of uint16, SIZE\n"
        "    15 16 17\n"
        "its tokens stay numbers: it does not say which tokenizer made them\n",
        "",
    )


def with_tokenizer(dataset: Path) -> Path:
    """The same, said to be of a tokenizer whose ids are bytes, 256 the end."""
    vocabulary = {chr(code): byte for code, byte in byte_of().items()}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    end = {"id": 256, "content": "<|endoftext|>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    parts = {"model": model, "added_tokens": [end | flags], "pre_tokenizer": level}
    data = json.dumps({"version": "1.0", **parts, "decoder": level}).encode()
    write(dataset / "tokenizer.json", data)
    spec = load_tokenizer(dataset / "tokenizer.json").spec
    info = read_info(dataset)
    info = replace(info, provenance=replace(info.provenance, tokens=spec.to_json()))
    (dataset / "shardkit.json").write_bytes(dump_info(info))
    return dataset


def test_tokens_as_text(run: Run, tmp_path: Path, container: str) -> None:
    texts = ["short \x1b[2J é\n", "", "日" * 300]
    docs = [np.array([*text.encode(), 256], np.uint16) for text in texts]
    docs.append(np.array([0xE9, 10, 10], np.uint16))
    dataset = with_tokenizer(pack_tokens(tmp_path, docs, container))
    assert run("show", container, "--num", 9) == Ran(
        0,
        f"{container}, train: 4 of 4 samples\n"
        "row 0: 000000\n"
        "  tokens: tokens, 15 of uint16, SIZE\n"
        "    115 104 111 114 116 32 27 91 50 74 32 195 ...\n"
        "    | short \\x1b[2J é\n"
        "    | <|endoftext|>\n"
        "row 1: 000001\n"
        "  tokens: tokens, 1 of uint16, SIZE\n"
        "    256\n"
        "    | <|endoftext|>\n"
        "row 2: 000002\n"
        "  tokens: tokens, 901 of uint16, SIZE\n"
        "    230 151 165 230 151 165 230 151 165 230 151 165 ...\n"
        f"    | {'日' * 166}\\xe6\\x97\n"
        "    ...\n"
        "row 3: 000003\n"
        "  tokens: tokens, 3 of uint16, SIZE\n"
        "    233 10 10\n"
        "    | \\xe9\n"
        "    |\n",
        "",
    )
    (dataset / "tokenizer.json").write_bytes(b"{}")
    got = run("show", container, "--rows", 1)
    assert got.code == 0
    *_, numbers, note = got.out.splitlines()
    assert numbers == "    256"
    assert note.startswith("its tokens stay numbers: ")


def test_an_id_that_no_tokenizer_has(run: Run, tmp_path: Path) -> None:
    with_tokenizer(pack_tokens(tmp_path, [np.array([65, 300], np.uint16)]))
    got = run("show", "npy")
    assert got.code == 1
    assert got.out.endswith("  tokens: BROKEN, id 300 is not in the tokenizer's vocabulary, SIZE\n")


def test_long_texts_are_cut(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "texts" / "lines.txt", "".join(f"line {i}\n" for i in range(13)))
    write(tmp_path / "texts" / "twelve.txt", "\n" * 11 + "end")
    write(tmp_path / "texts" / "wide.txt", "é" * 5000)
    pack(tmp_path / "texts", tmp_path / "packed")
    lines = run("show", "packed").out.splitlines()
    assert lines[2:16] == ["  txt: text, SIZE", *[f"    | line {i}" for i in range(12)], "    ..."]
    assert lines[17:30] == ["  txt: text, SIZE", *11 * ["    |"], "    | end"]
    assert lines[31:] == ["  txt: text, SIZE", f"    | {'é' * 200} ...", "    ..."]


# --- which samples ------------------------------------------------------------------------


def rows_of(**options: object) -> list[int]:
    return [each.row for each in shardkit.show("pictures-npy", **options).samples]  # type: ignore[arg-type]


def test_samples_are_drawn_by_their_seed(pictures: Run) -> None:
    assert rows_of() == rows_of(num=3, seed=0) != rows_of(seed=1)
    assert rows_of(num=36) == rows_of(num=1000) == [*range(36)]
    assert len({row // 12 for row in rows_of(num=12)}) == 3  # of all classes, not the first
    assert rows_of(rows=[7, 7, 0]) == [7, 7, 0]


def test_a_split(run: Run, tmp_path: Path) -> None:
    make_images(tmp_path / "both" / "train", per_class=1)
    make_images(tmp_path / "both" / "val", per_class=2)
    pack(tmp_path / "both", tmp_path / "packed")
    assert run("show", "packed").out.startswith("packed, train: 3 of 3 samples\n")
    assert run("show", "packed", "--split", "val").out.startswith("packed, val: 3 of 6 samples\n")


def test_tars_made_by_others(pictures: Run, tmp_path: Path) -> None:
    pictures("convert", "pictures-npy", "wds", "--to", "wds", "--workers", 0)
    (tmp_path / "wds" / "train-00000.tar").rename(tmp_path / "others.tar")
    lines = pictures("show", "others.tar", "--rows", 0).out.splitlines()
    assert lines[1:] == [
        "row 0: class0/img%2E000",
        "  cls: 0",
        "  jpg: picture, jpg 16 x 16, SIZE",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rows", "36"], "row 36 is outside 0..35 of train"),
        (["--rows", "0,-1"], "row -1 is outside 0..35 of train"),
        (["--rows", "0-3"], "Invalid value for '--rows': '0-3' is no list of row numbers"),
        (["--rows", ""], "Invalid value for '--rows': '' is no list of row numbers, as in 0,5,7"),
        (["--num", "0"], "--num must be at least 1, got 0"),
        (["--num", "2", "--rows", "1"], "give either --rows or --num: those samples, or so many"),
        (["--split", "test"], "pictures-npy has no split 'test', only train"),
        (["--out", "sheet.jpg"], "a sheet is a .png file, got sheet.jpg"),
        (["--out", "no/sheet.png"], "writing no/sheet.png: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_line(pictures: Run, tmp_path: Path, options: list[str], said: str) -> None:
    before = tree(tmp_path)
    got = pictures("show", "pictures-npy", *options)
    assert got.code == (1 if "writing" in said else 2) and got.out == ""
    assert got.err.startswith(f"shardkit: error: {said}") and got.err.count("\n") == 1
    assert tree(tmp_path) == before


# --- hostile values -----------------------------------------------------------------------

UNSEEN = {chr(code) for code in [*range(32), *range(127, 160)]}
UNSEEN |= {
    "\u202e",
    "\u2028",
    "\u200b",
    "\ufeff",
    "\u2066",
    "\xad",
}  # they turn text round, or hide


def test_nothing_drives_the_terminal(run: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x1b[31mred\x9b2J\b\b\r\u202eabc\u2028\u200b\ufeff\x7f\x00 end"
    source = tmp_path / "evil\x1b[2J"
    write(source / "cl\x1bass" / "a\x1b[1m\n.jpg", picture(1))
    write(source / "other" / "b.jpg", picture(2))
    pack(source, tmp_path / "pictures \x1b")
    write(tmp_path / "texts" / "a.txt", evil.encode() + b"\xff\xfe\xc3")
    pack(tmp_path / "texts", tmp_path / "packed")
    for dataset in ("packed", "pictures \x1b"):
        for as_json in ([], ["--json"]):
            got = run("show", dataset, *as_json)
            assert got.code == 0
            assert not UNSEEN & set(got.out.replace("\n", "")), got.out
    assert "\\x1b]0;title\\x07" in run("show", "packed").out
    assert r"\x00 end\xff\xfe\xc3" in run("show", "packed").out


@given(st.text())
def test_visible_text_is_one_line_of_plain_characters(text: str) -> None:
    seen = visible(text)
    assert not UNSEEN & set(seen)
    assert seen.isprintable()
    assert not text.isprintable() or seen == text


@given(st.binary(max_size=40), st.integers(1, 40))
def test_a_cut_text_ends_at_a_character(tail: bytes, size: int) -> None:
    text = ("aé日😀" * 10).encode() + tail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(show_samples, "TEXT_BYTES", size)
        found = show_samples._text("txt", text).field
    whole = text.decode("utf-8", "backslashreplace")
    assert found.text is not None and whole.startswith(found.text)
    assert found.is_cut and len(found.text.encode()) > size - 4


def test_a_broken_field_hides_no_other(run: Run, tmp_path: Path) -> None:
    values = {"jpg": picture(1), "npy": b"\x93NUMPY\x01\0", "png": b"no picture", "txt": b"a"}
    with tarfile.open(tmp_path / "theirs.tar", "w") as tar:
        for field, value in values.items():
            member = tarfile.TarInfo(f"a.{field}")
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    assert run("show", "theirs.tar") == Ran(
        1,
        "theirs.tar, train: 1 of 1 sample\n"
        "row 0: a\n"
        "  jpg: picture, jpg 16 x 16, SIZE\n"
        "  npy: BROKEN, not a .npy value: it does not begin with \\x93NUMPY, SIZE\n"
        "  png: BROKEN, 10 bytes that are no picture of a known kind, SIZE\n"
        "  txt: text, SIZE\n"
        "    | a\n",
        "",
    )


def test_a_missing_shard_breaks_its_samples_alone(run: Run, tmp_path: Path) -> None:
    run("pack", "pictures", "--to", "npy", "--shard-size", "3kB", "--workers", 0)
    (tmp_path / "pictures-npy" / "train-00001.jpg.npy").unlink()
    got = run("show", "pictures-npy", "--rows", "0,4")
    assert got.code == 1
    *_, whole, _, label, broken = got.out.splitlines()
    assert whole == "  jpg: picture, jpg 16 x 16, SIZE"
    assert label == "  cls: 0 class0"
    assert broken.startswith("  jpg: BROKEN, ") and "train-00001.jpg.npy" in broken


# --- the sheet ----------------------------------------------------------------------------


def test_a_sheet_of_all_classes(pictures: Run, tmp_path: Path) -> None:
    got = pictures("show", "pictures-npy", "--out", "sheet.png")
    assert got.out.startswith("pictures-npy, train: 24 of 36 samples\n")
    assert got.out.endswith("their pictures: sheet.png\n")
    first = (tmp_path / "sheet.png").read_bytes()
    image = Image.open(io.BytesIO(first))
    # 6 columns and 4 rows of thumbnails with two lines of text each.
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", (6 * 200 + 8, 4 * 228 + 8))
    pictures("show", "pictures-npy", "--out", "sheet.png")
    assert (tmp_path / "sheet.png").read_bytes() == first


def test_thumbnails_are_the_pictures(pictures: Run, tmp_path: Path) -> None:
    shardkit.show("pictures-npy", rows=[20, 3], out=tmp_path / "sheet.png")
    drawn = np.asarray(Image.open(tmp_path / "sheet.png")).astype(int)
    for column, row in enumerate([20, 3]):
        wanted = shardkit.images.decode(shardkit.open("pictures-npy")[row]["jpg"])
        left = 8 + column * 200
        thumbnail = drawn[8:200, left : left + 192]
        assert (thumbnail[6::12, 6::12] == wanted).all()
        caption = drawn[200:228, left : left + 192]
        assert (caption == 255).mean() > 0.5 and (caption < 128).any()


def test_large_and_raw_pictures(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "mixed" / "a" / "wide.png", picture(1, size=400, kind="PNG"))
    write(tmp_path / "mixed" / "a" / "small.jpg", picture(2, size=90))
    pack(tmp_path / "mixed", tmp_path / "packed")
    shardkit.show("packed", out=tmp_path / "sheet.png")
    run("pack", "pictures", "raw", "--to", "npy", "--image-format", "raw", "--workers", 0)
    assert run("show", "raw", "--rows", 1, "--out", "raw.png") == Ran(
        0,
        "raw, train: 1 of 36 samples\n"
        "row 1: class0/img.001\n"
        "  cls: 0 class0\n"
        "  image.npy: picture, 16 x 16 pixels, SIZE\n"
        "their pictures: raw.png\n",
        "",
    )
    small = sheet.thumbnail(picture(1, size=400, kind="PNG"))
    assert small.size == (192, 192)
    assert sheet.thumbnail(picture(2, size=90)).size == (180, 180)


def test_a_picture_that_is_cut_off_is_found_when_drawn(run: Run, tmp_path: Path) -> None:
    cut = picture(1, size=64)[:-300]
    write(tmp_path / "pairs" / "a.jpg", cut)
    write(tmp_path / "pairs" / "b.jpg", picture(2))
    write(tmp_path / "pairs" / "b.mask.png", picture(3, kind="PNG"))
    write(tmp_path / "pairs" / "b.txt", "b")
    pack(tmp_path / "pairs", tmp_path / "packed")
    assert run("show", "packed").code == 0
    got = run("show", "packed", "--out", "sheet.png")
    assert got.code == 1
    assert re.search(r"  jpg: BROKEN, jpg does not decode: .*", got.out)
    drawn = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert drawn.shape[1] == 3 * 200 + 8  # a, and two of b
    assert ((drawn == (200, 0, 0)).all(2)).sum() > 700  # the frame of a


def test_no_pictures_no_sheet(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "texts" / "a.txt", "a")
    pack(tmp_path / "texts", tmp_path / "packed")
    got = run("show", "packed", "--out", "sheet.png")
    assert got == Ran(
        2,
        "",
        "shardkit: error: these samples have no pictures to draw: leave out the sheet\n",
    )
    assert not (tmp_path / "sheet.png").exists()


def test_captions_fit_whatever_the_key(pictures: Run) -> None:
    tiles = [sheet.Tile(None, "日" * 500 + "\x1b tail", "W" * 500)] * 3
    assert Image.open(io.BytesIO(sheet.contact_sheet(tiles))).size == (3 * 200 + 8, 228 + 8)
    with pytest.raises(shardkit.errors.UsageError, match="a sheet holds 1,000 pictures, got 1,001"):
        sheet.contact_sheet([sheet.Tile(None, "", "")] * 1001)


def test_without_pillow(pictures: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """JPEGs are described all the same."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    sheet.pillow.image_module.cache_clear()
    try:
        assert "picture, jpg 16 x 16" in pictures("show", "pictures-npy").out
        got = pictures("show", "pictures-npy", "--out", "sheet.png")
        assert got.code == 2 and "pictures need Pillow" in got.err
    finally:
        monkeypatch.undo()
        sheet.pillow.image_module.cache_clear()
