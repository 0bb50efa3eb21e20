"""Folders of sound, film and of any files, as they are."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EACH_FORMAT, picture, tree, write
from forked_workers import workers_for
from jobs import EXAMPLES
from test_inputs_files import read_all

import shardkit
from shardkit.errors import CorpusError, UsageError
from shardkit.inputs.detection import open_corpus

OPTIONS: dict[str, Any] = {"workers": 0, "progress": False}


def sound(number: int) -> bytes:
    """A short tone, as Python's own library writes it."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((np.arange(50 + number) * 300 % 2000).astype("<i2").tobytes())
    return out.getvalue()


def make_sounds(root: Path) -> Path:
    for name in ("cat", "dog"):
        for i in range(6):
            write(root / name / f"{i}.WAV", sound(i + (name == "dog")))
    return root


def test_class_folders_of_sound(tmp_path: Path) -> None:
    source = make_sounds(tmp_path / "in")
    write(source / "README.md", "# sounds")
    write(source / "cat" / "0.wav", b"")
    corpus = open_corpus(source)
    assert (corpus.kind, corpus.classes) == ("media", ["cat", "dog"])
    batch = read_all(corpus, tmp_path)["train"]
    assert batch.columns["wav"][7] == sound(2)
    assert batch.columns["cls"] == [b"0"] * 6 + [b"1"] * 6
    assert batch.rejects == [("cat/0.wav", "empty file")] and corpus.ignored == {".md": 1}


@pytest.mark.parametrize("to", EACH_FORMAT)
@pytest.mark.parametrize("kind", ["media", "files"])
def test_packed_verified_and_unpacked(kind: str, to: str, tmp_path: Path) -> None:
    source = make_sounds(tmp_path / "in")
    if kind == "files":
        write(source / "cat" / "noise.bin", b"\0" * 9)
        write(source / "dog" / "bare", b"no extension")
        write(source / "dog" / "empty.dat", b"")
    packed = shardkit.pack(
        source, tmp_path / "out", to=to, corpus=kind, shard_size="500B", **OPTIONS
    )
    assert packed.kind == kind and packed.num_samples == (12 if kind == "media" else 15)
    assert shardkit.verify(tmp_path / "out", against=source).ok
    shardkit.unpack(tmp_path / "out", tmp_path / "back")
    assert tree(tmp_path / "back") == tree(source)
    with workers_for(to):
        shardkit.pack(source, tmp_path / "two", to=to, corpus=kind, shard_size="500B", workers=2)
    assert tree(tmp_path / "two") == tree(tmp_path / "out")
    ds = shardkit.open(tmp_path / "out")
    assert ds.info.classes == ["cat", "dog"]
    if kind == "files":
        assert ds.fields == ["bin", "cls", "dat", "wav"]


def test_splits_labels_and_flat_folders(tmp_path: Path) -> None:
    for split in ("train", "test"):
        make_sounds(tmp_path / "splits" / split)
    assert open_corpus(tmp_path / "splits").splits() == ["test", "train"]
    for i in range(4):
        write(tmp_path / "flat" / f"{i}.mp3", b"ID3 pretend")
    assert open_corpus(tmp_path / "flat").classes is None
    labels = write(
        tmp_path / "l.csv", "path,label\n" + "".join(f"{i}.mp3,{'ab'[i % 2]}\n" for i in range(4))
    )
    corpus = open_corpus(tmp_path / "flat", labels=labels)
    batch = read_all(corpus, tmp_path)["train"]
    assert corpus.classes == ["a", "b"] and batch.keys == [b"0", b"2", b"1", b"3"]
    assert batch.columns["cls"] == [b"0", b"0", b"1", b"1"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("text", "a.txt"), ("media", "a.wav"), ("files", "a.x"), ("paired", "a.txt")],
)
def test_a_pointer_of_git_lfs_is_a_reject(kind: str, name: str, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    write(tmp_path / name, pointer)
    if kind == "paired":
        write(tmp_path / "a.jpg", picture(0))
    corpus = open_corpus(tmp_path, kind)
    [run] = corpus.runs(tmp_path)
    assert corpus.read(run, tmp_path).rejects == [
        (name, "a pointer of Git LFS and not the file; run git lfs pull")
    ]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["cat/a.x", "b.x"], r"holds 1 files \(b.x, ...\) beside 1 folders \(cat, ...\)"),
        (["cat/a.c++"], r"cat/a.c\+\+: its extension cannot name a field"),
        (["cat/a.cls"], r"cat/a.cls would be the field cls, and so would its class"),
        ([], "no files in"),
    ],
)
def test_refused(tmp_path: Path, names: list[str], what: str) -> None:
    for name in names:
        write(tmp_path / name, b"1")
    with pytest.raises(CorpusError, match=what):
        list(open_corpus(tmp_path, "files").runs(tmp_path / "s"))


def test_the_example_trains_on_sound(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "train_sounds.py", "--folder", tmp_path / "sounds"]
    env = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent.parent)}
    done = subprocess.run(
        [*map(str, command), "--count", "40"], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"^160 sounds, (\d+)% right after 4 epochs$", done.stdout, re.MULTILINE)
    assert found and int(found[1]) > 60, done.stdout


# --- decode="torchcodec" ------------------------------------------------------------------


class Head:
    """The first 40 samples of a sound, as 16-bit integers."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        held = sample["wav"].get_all_samples().data[0, :40].numpy()
        return {"head": np.round(held * 32768).astype(np.int64), "cls": sample["cls"]}

    def __repr__(self) -> str:
        return "Head()"


@pytest.mark.parametrize("workers", [0, 2])
def test_torchcodec_decodes_sound(workers: int, tmp_path: Path) -> None:
    try:
        from torchcodec.decoders import AudioDecoder
    except (ImportError, OSError, RuntimeError):
        pytest.skip("torchcodec, or its FFmpeg, is not installed here")
    make_sounds(tmp_path / "in")
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", **OPTIONS)
    ds = shardkit.open(tmp_path / "out", decode="torchcodec")
    assert isinstance(ds[0]["wav"], AudioDecoder)
    loader = shardkit.Loader(ds, 4, shuffle=False, transform=Head(), workers=workers)
    heads = np.concatenate([batch["head"].numpy() for batch in loader])
    assert np.array_equal(heads, np.tile(np.arange(40) * 300 % 2000, (12, 1)))


def test_without_torchcodec_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where a field needs it."""
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    write(tmp_path / "in" / "a.mp3", b"sound")
    write(tmp_path / "in" / "b.xyz", b"x")
    shardkit.pack(tmp_path / "in", tmp_path / "out", to="npy", corpus="files", **OPTIONS)
    ds = shardkit.open(tmp_path / "out", decode="torchcodec")
    with pytest.raises(UsageError, match="needs torchcodec and FFmpeg: pip install torchcodec"):
        ds[0]
    assert shardkit.open(tmp_path / "out", decode="torchcodec", fields=["xyz"])[1]["xyz"] == b"x"
    with pytest.raises(UsageError, match="True, False, 'pil' or 'torchcodec', got 'ffmpeg'"):
        shardkit.open(tmp_path / "out", decode="ffmpeg")  # type: ignore[arg-type]
