"""Ways to spoil a file: blind ones, and those that know what the file is."""

from __future__ import annotations

import io
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

Random = random.Random
Change = Callable[[Random, bytearray, bytes], bytes | bytearray]

EXTREMES = (0, 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63)
MOST_GROWTH = 1 << 16


def blind(rng: Random, data: bytes, other: bytes) -> tuple[str, bytes]:
    """A file changed in one way, of which it says the name; ``other`` is another file's."""
    name = rng.choice([*CHANGES]) if data else "extend"
    return name, bytes(CHANGES[name](rng, bytearray(data), other))


# --- blind --------------------------------------------------------------------------------


def _flip(rng: Random, data: bytearray, other: bytes) -> bytearray:
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _run(rng: Random, data: bytearray, other: bytes) -> bytearray:
    at, size = _span(rng, data)
    data[at : at + size] = rng.choice([b"\0" * size, b"\xff" * size, rng.randbytes(size)])
    return data


def _truncate(rng: Random, data: bytearray, other: bytes) -> bytearray:
    return data[: rng.choice([0, 1, len(data) - 1, rng.randrange(len(data))])]


def _extend(rng: Random, data: bytearray, other: bytes) -> bytearray:
    size = rng.choice([1, 7, 512, rng.randrange(1, MOST_GROWTH)])
    return data + rng.choice([b"\0" * size, rng.randbytes(size), other[:size]])


def _swap(rng: Random, data: bytearray, other: bytes) -> bytearray:
    block = rng.choice([8, 16, 64, 512, 4096])
    a, b = (rng.randrange(-(-len(data) // block)) * block for _ in range(2))
    size = min(block, len(data) - max(a, b))
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]
    return data


def _delete(rng: Random, data: bytearray, other: bytes) -> bytearray:
    at, size = _span(rng, data)
    del data[at : at + size]
    return data


def _repeat(rng: Random, data: bytearray, other: bytes) -> bytearray:
    at, size = _span(rng, data)
    return data[: at + size] + data[at:]


def _splice(rng: Random, data: bytearray, other: bytes) -> bytes:
    return bytes(data[: rng.randrange(len(data))]) + other[rng.randrange(len(other) or 1) :]


def _length(rng: Random, data: bytearray, other: bytes) -> bytearray:
    """A binary number set to an extreme, or moved by a little."""
    form = rng.choice(["<H", "<I", "<Q", ">I", ">Q", "<i", "<q"])
    size = struct.calcsize(form)
    if len(data) < size:
        return data
    at = rng.randrange(len(data) - size + 1)
    at = at // size * size if rng.random() < 0.7 else at
    (old,) = struct.unpack_from(form, data, at)
    value = rng.choice([*EXTREMES, old + 1, old - 1, old * 2, -old])
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(
        size, "big" if form[0] == ">" else "little"
    )
    return data


def _digits(rng: Random, data: bytearray, other: bytes) -> bytes | bytearray:
    """A number in text set to another: of JSON, of a header of tar or npy."""
    found = [*re.finditer(rb"-?\d+", bytes(data[: 1 << 16]))]
    if not found:
        return data
    old = rng.choice(found)
    width = len(old[0])
    same_width = [b"7" * width, b"0" * width, b"9" * width, b" " * width, b"-" + b"1" * (width - 1)]
    values = [b"-1", b"0", b"1e309", b"9" * 30, b"18446744073709551615", b"true", b"NaN"]
    new = rng.choice(same_width if rng.random() < 0.6 else values)
    return bytes(data[: old.start()]) + new + bytes(data[old.end() :])


CHANGES: dict[str, Change] = {
    "flip": _flip,
    "run": _run,
    "truncate": _truncate,
    "extend": _extend,
    "swap": _swap,
    "delete": _delete,
    "repeat": _repeat,
    "splice": _splice,
    "length": _length,
    "digits": _digits,
}


def _span(rng: Random, data: bytearray) -> tuple[int, int]:
    at = rng.randrange(len(data))
    return at, min(rng.choice([1, 4, 16, 100, 1000]), len(data) - at)


# --- of one format ------------------------------------------------------------------------


def tar_header(rng: Random, data: bytes) -> bytes:
    """A field of a member's header, with the checksum made to fit."""
    changed = bytearray(data)
    starts = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    if not starts:
        return data
    at = rng.choice(starts)
    fields = {"name": (0, 100), "mode": (100, 8), "size": (124, 12), "type": (156, 1)}
    fields |= {"link": (157, 100), "magic": (257, 8), "prefix": (345, 155)}
    begin, size = rng.choice([*fields.values()])
    values = [b"\0", b"\xff", b"7", b"../", b"/", b"L", b"x", b"g", b"S", b"2", b"\x80", b"K"]
    value = rng.choice(values) * size
    if rng.random() < 0.4:
        value = rng.choice(values) + bytes(data[at + begin : at + begin + size])
    changed[at + begin : at + begin + size] = value[:size]
    changed[at + 148 : at + 156] = b" " * 8
    total = sum(changed[at : at + 512])
    changed[at + 148 : at + 156] = b"%06o\0 " % total
    return bytes(changed)


HEADERS = (
    *("{'descr': '|O', 'fortran_order': False, 'shape': (4, 40), }", "{}", "[1, 2]", "__import__"),
    *("{'descr': '<i2', 'fortran_order': False, 'shape': (-1,), }",),
    *("{'descr': '<i2', 'fortran_order': False, 'shape': (True,), }",),
    *("{'descr': '<i2', 'fortran_order': True, 'shape': (4, 40), }",),
    *("{'descr': '<i2', 'fortran_order': 0, 'shape': (4, 40), }",),
    *("{'descr': '<i2', 'fortran_order': False, 'shape': (4611686018427387904, 4), }",),
    *("{'descr': '<i2', 'fortran_order': False, 'shape': (0, 4611686018427387904), }",),
    *("{'descr': '<f8', 'fortran_order': False, 'shape': (), }",),
    *("{'descr': [('a', '<i2'), ('b', '<i2')], 'fortran_order': False, 'shape': (2, 40), }",),
    *("{'descr': '<U4', 'fortran_order': False, 'shape': (20,), }",),
    *("{'descr': '<M8[s]', 'fortran_order': False, 'shape': (40,), }",),
    *("{'descr': '>i2', 'fortran_order': False, 'shape': (4, 40), 'more': 1}",),
    *("{'shape': (4, 40), 'descr': '<i2', 'fortran_order': False}",),
    "{'descr': '<i2', 'fortran_order': False, 'shape': " + "(" * 500 + ")" * 500 + ", }",
)


def npy_header(rng: Random, data: bytes) -> bytes:
    """Another header before the same elements."""
    if not data.startswith(b"\x93NUMPY") or len(data) < 12:
        return data
    text = rng.choice(HEADERS).encode()
    body = data[10 + int.from_bytes(data[8:10], "little") :]
    padded = text + b" " * (-(len(text) + 11) % 64) + b"\n"
    version, width = rng.choice([(1, 2), (1, 2), (2, 4), (3, 4), (9, 2)])
    return (
        b"\x93NUMPY" + bytes([version, 0]) + len(padded).to_bytes(width, "little") + padded + body
    )


# --- of a dataset -------------------------------------------------------------------------

Json = dict[str, Any]

WRONG: list[Any] = [None, True, -1, 0, 1, 2.5, 2**31, 2**63, 2**80, "x", "../x", "/tmp/x", "\0"]
WRONG += ["\ud800", [], [[]], {}, {"x": []}, "train-00000.npy", "tokens", "jpg", "cls", "<O"]


def load(folder: Path) -> Json:
    raw: Json = json.loads((folder / "shardkit.json").read_bytes())
    return {name: value for name, value in raw.items() if name != "xxh3"}


def write_sealed(folder: Path, raw: Json) -> None:
    """Write shardkit.json as a writer would who meant all of it: formats.md says how."""
    body = json.dumps(raw, indent=1).removesuffix("\n}").encode()
    seal = f',\n "xxh3": "{xxhash.xxh3_64_intdigest(body):016x}"\n}}\n'
    (folder / "shardkit.json").write_bytes(body + seal.encode())


def reseal(folder: Path) -> None:
    """Make the sizes and hashes in shardkit.json fit the files there are."""
    raw = load(folder)
    for split in raw["splits"].values():
        for name, entry in split["files"].items():
            data = (folder / name).read_bytes()
            entry |= {"bytes": len(data), "xxh3": f"{xxhash.xxh3_64_intdigest(data):016x}"}
        for shard in split["shards"]:
            for name in shard[2]:
                shard[2][name] = (folder / name).stat().st_size
    write_sealed(folder, raw)


def edit_json(rng: Random, folder: Path, is_sealed: bool) -> str:
    """One entry of shardkit.json, anywhere in it, set to something else, or gone."""
    raw = load(folder)
    holder, key = rng.choice(places(raw))
    if rng.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    elif isinstance(holder[key], int) and rng.random() < 0.5:
        holder[key] += rng.choice([-1, 1, 8, 4096])
    else:
        holder[key] = rng.choice(WRONG)
    if is_sealed:
        write_sealed(folder, raw)
    else:
        (folder / "shardkit.json").write_text(json.dumps(raw, indent=1))
    return f"shardkit.json[{key!r}]"


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) below a value."""
    keys = [*value] if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


def edit_rows(rng: Random, folder: Path) -> str:
    """Entries of the row index set to extremes, or to each other's."""
    path = folder / "train.rows"
    data = path.read_bytes()
    table = np.load(io.BytesIO(data)).copy()
    name = rng.choice(table.dtype.names or ())
    row = rng.randrange(len(table))
    old = int(table[name][row])
    value = rng.choice([*EXTREMES, -1, -2, old + 1, old - 1, -old, int(table[name][0])])
    table[name][row] = np.array(value % (1 << 64), np.uint64).astype(table.dtype[name])
    path.write_bytes(data[: len(data) - table.nbytes] + table.tobytes())
    return f"train.rows[{name!r}][{row}]"


def edit_names(rng: Random, folder: Path) -> str:
    """Text of the same length in the keys and paths, with what leads elsewhere."""
    path = folder / "train.names"
    data = bytearray(path.read_bytes())
    new = rng.choice([b"../", b"/", b"\0", b"\0\0", b"+", b"=", b"=../x", b"@9:", b"@-1:", b"\xff"])
    at = rng.randrange(len(data))
    data[at : at + len(new)] = new[: len(data) - at]
    path.write_bytes(data)
    return f"train.names[{at}]"
