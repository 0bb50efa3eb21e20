"""Small data of every kind, made from a seed: what is packed, and what was packed from it.

``sources/{kind}`` are inputs, ``packed/{kind}-{container}`` datasets of them, several shards each;
``foreign/`` tars as others write them. Tiny on purpose: a case should cost milliseconds, and a bit
that is flipped should mean something.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

import shardkit

CONTAINERS = ("lmdb", "hdf5", "webdataset", "npy")
SHARD_SIZE = "2kB"
TOKENIZER = "tokenizer.json"
TAR_FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}

Random = random.Random


def make(folder: Path, seed: int) -> None:
    """Everything, in some seconds."""
    for kind, write in SOURCES.items():
        root = folder / "sources" / kind
        root.mkdir(parents=True)
        write(root, random.Random(f"{kind}:{seed}"))
    _write_tokenizer(folder / TOKENIZER)
    for kind in PACKED:
        for container in CONTAINERS:
            dest = folder / "packed" / f"{kind}-{container}"
            shardkit.pack(folder / "sources" / kind, dest, **pack_options(folder, kind, container))
    for name, form in TAR_FORMATS.items():
        _write_tar(folder / "foreign" / name / "some.tar", form, random.Random(f"tar:{seed}"))


def pack_options(folder: Path, kind: str, container: str) -> dict[str, Any]:
    """How a source is packed."""
    options: dict[str, Any] = {"to": container, "shard_size": SHARD_SIZE}
    options |= {"workers": 0, "progress": False}
    if kind == "tokens":
        options |= {"tokenizer": folder / TOKENIZER}
    if kind == "arrays" and container == "hdf5":
        options |= {"compression": 5}
    if kind == "pictures" and container == "webdataset":
        options |= {"dali_index": True}
    return options


def jpeg(rng: Random, width: int = 24, height: int = 20) -> bytes:
    """A picture of its own: a gradient under some noise."""
    noise = np.frombuffer(rng.randbytes(height * width * 3), np.uint8).reshape(height, width, 3)
    ramp = np.linspace(0, 200, width)[None, :, None] + noise // 8 + rng.randrange(20)
    return bytes(simplejpeg.encode_jpeg(ramp.astype(np.uint8), quality=80))


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """A ``.npy`` file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def put(path: Path, data: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


# --- one function a kind ------------------------------------------------------------------


def _pictures(root: Path, rng: Random) -> None:
    for number in range(30):
        put(root / f"class{number % 3}" / f"img.{number:03d}.jpg", jpeg(rng))


def _pairs(root: Path, rng: Random) -> None:
    """Fields that are absent, empty values, labels in odd spellings, awkward names."""
    for i in range(14):
        stem = ["{:04d}", "dotted.dir/IMG 50% {}", "tr\u00e4umen/{}", "__x{}"][i % 4].format(i)
        put(root / f"{stem}.jpg", jpeg(rng, 16, 12))
        put(root / f"{stem}.cls", [b"7", b"-3\n", b" 12", b"0"][i % 4])
        if i % 3:
            put(root / f"{stem}.txt", "" if i == 4 else f"caption {rng.random()}\r\n")
        if i % 4 == 0:
            put(root / f"{stem}.json", json.dumps({"b": 1, "a": [1.0, i]}, indent=i % 3))
        if i % 5 == 0:
            ramp = np.arange(i * 3, dtype=np.float32).reshape(i, 3) + np.float32(rng.random())
            put(root / f"{stem}.feat.npy", npy(ramp))


def _arrays(root: Path, rng: Random) -> None:
    for i in range(12):
        values = np.frombuffer(rng.randbytes(320), np.int16).reshape(4, 40)
        put(root / f"a{i:02d}.npy", npy(values))


def _ragged(root: Path, rng: Random) -> None:
    for i in range(12):
        put(root / f"r{i:02d}.npy", npy(np.frombuffer(rng.randbytes(i * 40), np.float32)))


def _texts(root: Path, rng: Random) -> None:
    words = [
        "a",
        "shard",
        "is",
        "one",
        "file",
        "of",
        "many",
        "samples",
        "which",
        "it",
        "gives",
        "back",
    ]
    for i in range(30):
        text = " ".join(rng.choices(words, k=rng.randrange(40))) + "\n" * (i % 3)
        put(root / ("deep/er" if i % 5 == 0 else "") / f"doc{i:02d}.txt", text + "\u00e9" * (i % 2))


def _jsonl(root: Path, rng: Random) -> None:
    for part in ("a", "b"):
        lines = [json.dumps({"text": f"{rng.random()} \u00e9", "n": i}) for i in range(15)]
        put(root / f"{part}.jsonl", "\n".join(lines) + "\n")


def _jsonl_gz(root: Path, rng: Random) -> None:
    lines = [json.dumps({"text": f"{rng.random()}", "n": i}) for i in range(20)]
    put(root / "a.jsonl.gz", gzip.compress("\n".join(lines).encode(), mtime=0))


def _jsonl_zst(root: Path, rng: Random) -> None:
    import zstandard

    lines = [json.dumps({"text": f"{rng.random()}", "n": i}) for i in range(20)]
    put(root / "a.jsonl.zst", zstandard.compress("\n".join(lines).encode()))


def _parquet(root: Path, rng: Random) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    texts = [f"text {rng.random()}" * rng.randrange(4) for _ in range(25)]
    table = pa.table({"n": [*range(25)], "text": texts})
    parquet.write_table(table, root / "t.parquet", row_group_size=10)


def _hf(root: Path, rng: Random) -> None:
    """A folder as ``datasets`` saves it."""
    import pyarrow as pa

    out = io.BytesIO()
    table = pa.table({"text": [f"text {rng.random()}" for _ in range(20)]})
    with pa.ipc.new_stream(out, table.schema) as stream:
        for part in table.to_batches(7):
            stream.write_batch(part)
    name = "data-00000-of-00001.arrow"
    put(root / name, out.getvalue())
    state = {"_data_files": [{"filename": name}], "_split": None, "_fingerprint": "0"}
    put(root / "state.json", json.dumps(state))
    features = {"text": {"dtype": "string", "_type": "Value"}}
    put(root / "dataset_info.json", json.dumps({"features": features}))


def _megatron(root: Path, rng: Random) -> None:
    """``ids.bin`` and ``ids.idx``: 20 documents of one sequence each, int32."""
    lengths = [rng.randrange(1, 30) for _ in range(20)]
    ids = [rng.randrange(500) for _ in range(sum(lengths))]
    begins = np.cumsum([0, *lengths])[:-1] * 4
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, len(lengths), len(lengths) + 1)
    firsts = np.arange(len(lengths) + 1).astype("<i8").tobytes()
    index = np.array(lengths, "<i4").tobytes() + begins.astype("<i8").tobytes() + firsts
    put(root / "ids.bin", np.array(ids, "<i4").tobytes())
    put(root / "ids.idx", head + index)


SOURCES: dict[str, Callable[[Path, Random], None]] = {
    "pictures": _pictures,
    "pairs": _pairs,
    "arrays": _arrays,
    "ragged": _ragged,
    "texts": _texts,
    "tokens": _texts,
    "jsonl": _jsonl,
    "jsonl_gz": _jsonl_gz,
    "jsonl_zst": _jsonl_zst,
    "parquet": _parquet,
    "hf": _hf,
    "megatron": _megatron,
}

PACKED = ("pictures", "pairs", "arrays", "ragged", "tokens")


def _write_tokenizer(path: Path) -> None:
    """Of 300 entries. It does not cut text by an expression: or each pack would spend a second on
    proving that the faster backend cuts alike."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["a shard holds many samples, and gives back each"] * 9, trainer)
    made.save(str(path))


def _write_tar(path: Path, form: int, rng: Random) -> None:
    """Samples of three fields, as another program would write them; one name is long."""
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w", format=form) as tar:
        for i in range(8):
            stem = f"shard/{'long' * 20 if i == 5 else 'name'}/{i:04d}"
            text = rng.randbytes(i).hex().encode()
            fields = {"jpg": jpeg(rng), "cls": b"%d" % (i % 3), "txt": text}
            for name, data in fields.items():
                member = tarfile.TarInfo(f"{stem}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
