"""Make the golden datasets of a release: small ones of every kind, which all later code must read.

    python tests/golden/make.py

writes ``tests/golden/{version}/``, named after the installed shardkit. For each kind of input, one
``.tar.xz`` holds the input and the dataset that each container made of it, and one ``.json`` says
how they were packed and what must be in them. What must be in them is computed here from the input
alone, by numpy, pillow and the tokenizers library. Datasets that were appended to and edited, one
of each container, are made of lists of keys, labels and pictures in the same way.

Run it once for each release that raises the version of the format, or that writes other bytes than
the last one. Commit what it writes, and never make a folder again that was released:
``tests/test_golden.py`` reads them all.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import mmap
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import tokenizers
import xxhash
from PIL import Image

import shardkit
from shardkit.packing.plan import draw

HERE = Path(__file__).parent
SIDE = 16
CONTAINERS = {"lmdb": {}, "hdf5": {}, "webdataset": {}, "npy": {}}

Sample = tuple[str, dict[str, bytes]]
"""A key, and the canonical value of each field that is there."""


def versions() -> dict[str, Any]:
    """All but shardkit that decides the bytes of a dataset."""
    return {
        "lmdb": ".".join(map(str, lmdb.version())),
        "page size": mmap.PAGESIZE,
        "hdf5": h5py.version.hdf5_version,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "byte order": sys.byteorder,
        "machine": platform.machine(),
    }


# --- inputs -------------------------------------------------------------------------------


def write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)


def pixels(seed: int, height: int = SIDE, width: int = SIDE) -> np.ndarray[Any, Any]:
    """(height, width, 3) uint8: a gradient, which compresses well."""
    grid = np.add.outer(np.arange(height) * (seed % 5 + 1), np.arange(width) * 3) + seed * 13
    return np.stack([grid, grid[::-1], grid[:, ::-1]], axis=-1).astype(np.uint8)


def picture(array: np.ndarray[Any, Any], kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind, **options)
    return out.getvalue()


def npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def make_pictures(root: Path) -> None:
    """Colour, grey, progressive; two splits; an empty class."""
    for split, count in (("train", 6), ("val", 2)):
        for c, name in enumerate(["ant", "bee", "emu"]):
            for i in range(count):
                array = pixels(10 * c + i, SIDE + i, SIDE + c)
                if i == 1:
                    array = array[..., 0]
                data = picture(array, progressive=i == 2)
                write(root / split / name / f"{split}.{i:03d}.jpg", data)
    (root / "train" / "none").mkdir()


def make_fields(root: Path) -> None:
    """Absent and empty values, labels in odd forms, arrays of one and of several lengths, a
    picture of another kind, a name that is no UTF-8."""
    for i in range(16):
        stem = f"{'part.one' if i < 8 else 'two'}/{i:04d}"
        write(root / f"{stem}.jpg", picture(pixels(i)))
        write(root / f"{stem}.emb.npy", npy(np.arange(80, dtype=np.float32) + i))
        if i < 8 or i % 2:
            write(root / f"{stem}.cls", str(i - 4) if i < 8 else [" 12", "0", "-3\n"][i % 3])
        if i % 3:
            write(root / f"{stem}.txt", "" if i == 4 else f"caption {i} \u00e9\r\n")
        if i % 4 == 0:
            write(root / f"{stem}.json", f'{{ "b" : 1,\n  "a": [1.0, {i}] }}\n')
        if i % 5 == 0:
            write(root / f"{stem}.feat.npy", npy(np.arange(i * 3, dtype=">i2").reshape(i, 3)))
    write(root / os.fsdecode(b"IMG 50%\xff.png"), picture(pixels(90), "PNG"))
    write(root / os.fsdecode(b"IMG 50%\xff.txt"), "x")


def make_raw(root: Path) -> None:
    """PNGs of just the size that is asked for: their pixels depend on no decoder."""
    for c, name in enumerate(["ant", "bee"]):
        for i in range(5):
            write(root / name / f"{i}.png", picture(pixels(10 * c + i), "PNG"))


TEXTS = {
    "crlf.txt": b"one\r\ntwo\r\n",
    "emoji.txt": "\U0001f469\u200d\U0001f680 \u00e9 e\u0301 \u65e5\u672c\u8a9e\n".encode(),
    "empty.txt": b"",
    "nul.txt": b"a\0b\0\0",
    "special.txt": b"<|endoftext|> is text here, and <|endoftext|><|endoftext|>",
}


def make_texts(root: Path) -> None:
    for name, text in TEXTS.items():
        write(root / name, text)
    for i in range(12):
        write(root / "plain" / f"{i:02d}.txt", f"document {i}, " * (i + 1) + "the end.\n")


def make_tokenizer(path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator([(HERE.parents[1] / "formats.md").read_text()], trainer)
    write(path, made.to_str())


# --- what must be in them -----------------------------------------------------------------


def files(root: Path) -> Iterable[tuple[str, bytes]]:
    """(name, contents) of all files, in the order of their names' bytes, folder after folder."""
    for folder, subfolders, names in os.walk(root):
        subfolders.sort(key=os.fsencode)
        for name in sorted(names, key=os.fsencode):
            path = Path(folder, name)
            yield str(path.relative_to(root)), path.read_bytes()


def classes_of(root: Path) -> list[str]:
    train = root / "train"
    return sorted(path.name for path in (train if train.exists() else root).iterdir())


def samples_of_pictures(root: Path) -> dict[str, list[Sample]]:
    classes = classes_of(root)
    found: dict[str, list[Sample]] = {"train": [], "val": []}
    for name, data in files(root):
        split, folder, _ = name.split("/")
        label = str(classes.index(folder)).encode()
        key = name.removeprefix(f"{split}/").removesuffix(".jpg")
        found[split].append((key, {"jpg": data, "cls": label}))
    return found


def samples_of_fields(root: Path) -> dict[str, list[Sample]]:
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files(root):
        folder, slash, last = name.rpartition("/")
        stem, _, field = last.partition(".")
        found.setdefault(folder + slash + stem, {})[field] = data
    return {"train": list(found.items())}


def samples_of_raw(root: Path) -> dict[str, list[Sample]]:
    classes = classes_of(root)
    found = []
    for name, data in files(root):
        array = np.asarray(Image.open(io.BytesIO(data)))
        label = str(classes.index(name.partition("/")[0])).encode()
        found.append((name.removesuffix(".png"), {"image.npy": npy(array), "cls": label}))
    return {"train": found}


def samples_of_texts(root: Path) -> dict[str, list[Sample]]:
    made = tokenizers.Tokenizer.from_file(str(root.parent / "tokenizer.json"))
    made.encode_special_tokens = True
    end = made.token_to_id("<|endoftext|>")
    found = []
    for name, data in files(root):
        ids = made.encode(data.decode(), add_special_tokens=False).ids
        array = np.array([*ids, end], "<u2")
        found.append((name.removesuffix(".txt"), {"tokens": npy(array)}))
    return {"train": found}


def unpacked_raw(root: Path) -> dict[str, bytes]:
    [samples] = samples_of_raw(root).values()
    return {f"{key}.image.npy": values["image.npy"] for key, values in samples}


def unpacked_as_they_were(root: Path) -> dict[str, bytes]:
    return dict(files(root))


# --- the table, and the making ------------------------------------------------------------

Kind = tuple[
    Callable[[Path], None],
    Callable[[Path], dict[str, list[Sample]]],
    Callable[[Path], dict[str, bytes]],
    dict[str, Any],
    dict[str, dict[str, Any]],
]
KINDS: dict[str, Kind] = {
    "pictures": (
        make_pictures,
        samples_of_pictures,
        unpacked_as_they_were,
        {"shard_size": "3kB"},
        CONTAINERS | {"webdataset": {"dali_index": True}},
    ),
    "fields": (
        make_fields,
        samples_of_fields,
        unpacked_as_they_were,
        {"shard_size": "6kB"},
        CONTAINERS | {"hdf5": {"compression": 6}},
    ),
    "raw": (
        make_raw,
        samples_of_raw,
        unpacked_raw,
        {"shard_size": "1kB", "image_format": "raw", "crop": SIDE},
        CONTAINERS,
    ),
    "tokens": (
        make_texts,
        samples_of_texts,
        unpacked_as_they_were,
        {"shard_size": "500B", "tokenizer": "tokenizer.json"},
        CONTAINERS,
    ),
}
"""Kind of input -> what makes it, what is in it, what unpacks from it, options for all datasets,
and those of each container."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make(kind: str, folder: Path, out: Path) -> None:
    """Write ``{kind}.tar.xz`` and ``{kind}.json`` into ``out``; ``folder`` is to work in."""
    make_input, samples_of, unpacked_of, options, containers = KINDS[kind]
    source = folder / "input"
    make_input(source)
    if "tokenizer" in options:
        make_tokenizer(folder / options["tokenizer"])
    os.chdir(folder)  # the path of a tokenizer is from here
    datasets = {}
    for to, own in containers.items():
        datasets[to] = {"to": to, **options, **own}
        shardkit.pack("input", to, workers=0, progress=False, **datasets[to])
    info = json.loads((folder / "npy" / "shardkit.json").read_bytes())
    said = {
        "format_version": info["version"],
        "made_with": versions(),
        "datasets": datasets,
        "classes": classes_of(source) if kind in ("pictures", "raw") else None,
        "splits": {
            split: [
                [key, {field: digest(value) for field, value in sorted(values.items())}]
                for key, values in samples
            ]
            for split, samples in samples_of(source).items()
        },
        "unpacked": {name: digest(data) for name, data in unpacked_of(source).items()},
    }
    (out / f"{kind}.json").write_text(json.dumps(said, indent=1) + "\n")
    (out / f"{kind}.tar.xz").write_bytes(archive(folder))


# --- datasets that were changed in every way -----------------------------------------------

SMALL: dict[str, Any] = {"shard_size": "2kB", "workers": 0, "progress": False}

Named = dict[str, tuple[str, bytes]]
"""Key -> name of its class, and its picture."""


def make_more(root: Path, classes: list[str], count: int, first: int) -> Named:
    made: Named = {}
    for c, name in enumerate(classes):
        for i in range(first, first + count):
            data = picture(pixels(20 * c + i))
            write(root / name / f"{i:03d}.jpg", data)
            made[f"{name}/{i:03d}"] = (name, data)
    return made


def said_of(splits: dict[str, Named], classes: list[str]) -> dict[str, Any]:
    """What must be in one version."""
    return {
        "classes": classes,
        "splits": {
            split: [
                [key, {"cls": digest(str(classes.index(name)).encode()), "jpg": digest(data)}]
                for key, (name, data) in samples.items()
            ]
            for split, samples in splits.items()
        },
    }


def in_val(keys: list[str], count: int, seed: int) -> set[str]:
    """The keys whose draws are the lowest."""
    hashes = np.array([xxhash.xxh3_64_intdigest(key.encode()) for key in keys], np.uint64)
    draws = draw(hashes, seed, "val").tolist()
    return {key for _, key in sorted(zip(draws, keys, strict=True))[:count]}


def make_versions(folder: Path) -> dict[str, Any]:
    first = make_more(folder / "first", ["ant", "bee"], 6, 0)
    more = make_more(folder / "more", ["ant", "cow"], 3, 100)
    labels = {"ant/002": "cow", "bee/004": "dog"}
    drop = ["ant/000", "cow/101", "bee/003"]
    for to in CONTAINERS:
        dataset = folder / to
        shardkit.pack(folder / "first", dataset, to=to, **SMALL)
        shardkit.append(dataset, folder / "more", **SMALL)
        shardkit.edit(dataset, labels=labels, progress=False)
        shardkit.edit(dataset, drop_keys=drop, progress=False)
        shardkit.edit(dataset, val_fraction=0.25, seed=1, progress=False)
        shardkit.edit(dataset, restore=2)
    both = first | more
    new = {key: (labels.get(key, name), data) for key, (name, data) in both.items()}
    left = {key: sample for key, sample in new.items() if key not in drop}
    val = in_val([*left], round(0.25 * len(left)), 1)
    cut = {
        "train": {key: sample for key, sample in left.items() if key not in val},
        "val": {key: sample for key, sample in left.items() if key in val},
    }
    four = ["ant", "bee", "cow", "dog"]
    return {
        "1": said_of({"train": first}, ["ant", "bee"]),
        "2": said_of({"train": both}, four[:3]),
        "3": said_of({"train": new}, four),
        "4": said_of({"train": left}, four),
        "5": said_of(cut, four),
        "6": said_of({"train": both}, four[:3]),
    }


def make_changed(folder: Path, out: Path) -> None:
    """Write ``changed.tar.xz``, with one dataset of each container, and ``changed.json``."""
    made = {"format_version": 3, "made_with": versions(), "versions": make_versions(folder)}
    shutil.rmtree(folder / "first")
    shutil.rmtree(folder / "more")
    (out / "changed.json").write_text(json.dumps(made, indent=1) + "\n")
    (out / "changed.tar.xz").write_bytes(archive(folder))


def archive(folder: Path) -> bytes:
    """The same folder gives the same bytes: no times, no users."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(folder)))
            entry.mtime = entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mode = 0o755 if path.is_dir() else 0o644
            tar.addfile(entry, io.BytesIO(path.read_bytes()) if path.is_file() else None)
    return lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    out = HERE / shardkit.__version__
    if out.exists():
        sys.exit(f"{out} is there already: a release is made once")
    out.mkdir()
    for kind in (*KINDS, "changed"):
        folder = Path(tempfile.mkdtemp(prefix="shardkit-golden-"))
        try:
            make_changed(folder, out) if kind == "changed" else make(kind, folder, out)
        finally:
            os.chdir(HERE)
            shutil.rmtree(folder)
        size = (out / f"{kind}.tar.xz").stat().st_size
        print(f"{out / kind}: {size:,} bytes of archive")


if __name__ == "__main__":
    main()
