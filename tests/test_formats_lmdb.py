"""LMDB: the places read off its pages, against the library's own; limits; damage."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import struct
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardkit.errors import FormatError, StorageError
from shardkit.formats import lmdb as lmdb_format
from shardkit.formats.format import Extents, Listed
from shardkit.formats.lmdb import LmdbFormat
from shardkit.formats.lmdb_pages import META, read_leaves
from shardkit.samples.sample import Value
from shardkit.storage.local_files import Folder

lmdb: Any = pytest.importorskip("lmdb")
STEM = "train-00000"
PAGE = min(mmap.PAGESIZE, 32768)


def write(folder: Path, columns: dict[str, list[Value | None]]) -> dict[str, Extents]:
    keys = [b"k%d" % i for i in range(len(next(iter(columns.values()))))]
    return LmdbFormat().write(folder, STEM, keys, dict(sorted(columns.items())), None)


def library_places(path: Path) -> list[tuple[int, int]]:
    """(start, size) of every value in order of key: its buffer's address less the map's."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        with env.begin(buffers=True) as txn:
            found = []
            for _, value in txn.cursor():
                address = np.frombuffer(value, np.uint8).ctypes.data if len(value) else 0
                found.append((address, len(value)))
        base = map_address(path)
        return [(address - base if size else -1, size) for address, size in found]


def leaves_in(path: Path) -> Listed:
    return read_leaves(Folder(path.parent), path.name)


def map_address(path: Path) -> int:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            return int(line.split("-")[0], 16)
    raise AssertionError("the map is gone")


def check(folder: Path, columns: dict[str, list[Value | None]]) -> None:
    extents = write(folder, columns)
    path = folder / f"{STEM}.lmdb"
    leaves = leaves_in(path)
    expected = library_places(path)
    assert leaves.size.tolist() == [size for _, size in expected]
    mine = zip(leaves.start.tolist(), leaves.size.tolist(), strict=True)
    assert [(start if size else -1, size) for start, size in mine] == expected
    data = np.memmap(path, np.uint8, "r")
    for field, values in columns.items():
        found = extents[field]
        for value, start, size in zip(
            values, found.start.tolist(), found.size.tolist(), strict=True
        ):
            assert (None if size < 0 else data[start : start + size].tobytes()) == value


SHAPES: dict[str, Any] = {
    "tiny": [b"%d" % (i % 10) for i in range(3000)],
    "one": [b"v"],
    "one empty": [b""],
    "empty": [b""] * 500,
    "none": [],
    "1 kB": [bytes([i % 256]) * (900 + i % 200) for i in range(3000)],
    "overflow": [bytes([i % 256]) * (5000 + 777 * i) for i in range(40)],
    "one large": [b"x" * 3_000_000],
    "border": [b"b" * n for n in range(1980, 2060)],
    "mixed": [bytes([i % 256]) * (i * 7919 % 13000) for i in range(1500)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_places_are_the_librarys(tmp_path: Path, shape: str) -> None:
    values = SHAPES[shape]
    check(tmp_path, {"jpg": values, "cls": [b"%d" % i for i in range(len(values))]})


def test_many_tiny_values(tmp_path: Path) -> None:
    """200,000 entries: three levels of branch pages (long names make them), many transactions."""
    name = "n" * 64
    extents = write(tmp_path, {name: [b"%d" % i for i in range(100_000)]})
    path = tmp_path / f"{STEM}.lmdb"
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env:
        assert env.stat()["depth"] >= 4
        assert env.info()["last_txnid"] > 10
    leaves = leaves_in(path)
    expected = library_places(path)
    assert list(zip(leaves.start.tolist(), leaves.size.tolist(), strict=True)) == expected
    ends = extents[name].start + extents[name].size
    assert int(ends.max()) <= path.stat().st_size


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.none() | st.integers(0, 2500) | st.sampled_from([4079, 4080, 4081, 9000]), max_size=200
    ),
    st.sampled_from([4 << 10, 64 << 10, 2 << 20]),
)
def test_any_sizes_in_any_transactions(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int | None], txn_bytes: int
) -> None:
    values: list[Value | None] = [
        None if n is None else bytes([i % 256]) * n for i, n in enumerate(sizes)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lmdb_format, "TXN_BYTES", txn_bytes)
        check(tmp_path_factory.mktemp("any"), {"jpg": values})


# --- the file -----------------------------------------------------------------------------


def test_format_0_9_and_no_lock_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library would choose for new files."""
    monkeypatch.setenv("LMDB_DEFAULT_LIB_VERSION", "1")
    write(tmp_path, {"jpg": [b"x"]})
    assert [p.name for p in tmp_path.iterdir()] == [f"{STEM}.lmdb"]
    meta = np.frombuffer((tmp_path / f"{STEM}.lmdb").read_bytes(), META, 1)[0]
    assert (hex(meta["magic"]), meta["version"]) == ("0xbeefc0de", 1)
    assert (tmp_path / f"{STEM}.lmdb").stat().st_mode & 0o111 == 0


@pytest.mark.needs_program("mdb_dump", "lmdb-utils")
def test_mdb_dump_reads_it(tmp_path: Path) -> None:
    write(tmp_path, {"txt": [b"hello", b""]})
    said = subprocess.check_output(
        ["mdb_dump", "-n", "-p", str(tmp_path / f"{STEM}.lmdb")], text=True
    )
    assert " 00000000.__key__\n k0\n 00000000.txt\n hello\n 00000001.__key__\n k1\n" in said


# --- decisions ----------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 1, 60, 700, 1000, 1350, 2010, 2020, 2030, 4081])
def test_map_size_suffices(tmp_path: Path, nbytes: int) -> None:
    """Sizes that waste most of a page are where an estimate would fall short."""
    num = 4000
    extents = write(tmp_path, {"a": [b"x" * nbytes] * num, "b": [b""] * num})
    assert len(extents["a"].start) == num


# --- refusals -----------------------------------------------------------------------------


def test_a_value_over_4_gib(tmp_path: Path) -> None:
    """Refused by its size alone: not a byte of it is touched."""
    sparse = tmp_path / "sparse"
    with sparse.open("w+b") as file:
        file.truncate(2**32)
        with (
            mmap.mmap(file.fileno(), 0) as big,
            memoryview(big) as view,
            pytest.raises(FormatError) as caught,
        ):
            write(tmp_path, {"bin": [b"small", view]})
    assert "sample 1 has a value of 4294967296 bytes, LMDB holds at most 4294967295" in str(
        caught.value
    )
    assert "choose another format" in str(caught.value)
    assert list(tmp_path.iterdir()) == [sparse]


def test_too_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_format, "MAX_ROWS", 10)
    write(tmp_path, {"cls": [b"1"] * 10})
    with pytest.raises(FormatError, match="11 samples, an lmdb shard holds 10"):
        write(tmp_path, {"cls": [b"1"] * 11})


def test_a_library_that_writes_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The finished file is compared with what it was to hold, not believed."""
    real = lmdb_format._items
    monkeypatch.setattr(lmdb_format, "_items", lambda *args: real(*args)[:-1])
    with pytest.raises(FormatError, match="LMDB wrote 5 values, not the 6 it was given"):
        write(tmp_path, {"jpg": [b"x"] * 3})


@pytest.mark.parametrize("code", [5, None])
def test_a_write_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    """LMDB calls it an I/O error, lmdb 1.4 in words alone; the system says what it was."""

    def fail(*_: object, **__: object) -> None:
        error = lmdb.Error("mdb_txn_commit: Input/output error")
        if code is not None:
            error.code = code
        raise error

    monkeypatch.setattr(lmdb, "open", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        write(tmp_path, {"jpg": [b"x"]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(StorageError, match="raise `ulimit -f` and run it again"):
            write(tmp_path, {"jpg": [b"x"]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "open", mock.Mock(side_effect=full))
    with pytest.raises(StorageError, match="the disk is full; free some space"):
        write(tmp_path, {"jpg": [b"x"]})


# --- damaged and hostile files ------------------------------------------------------------


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write(tmp_path, {"jpg": [b"x" * 300] * 400 + [b"y" * 9000]})
    return tmp_path / f"{STEM}.lmdb"


def put(path: Path, offset: int, form: str, *values: int) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, offset, *values)
    path.write_bytes(data)


def in_both_metas(path: Path, field: str, form: str, value: int) -> None:
    at = META.fields[field][1]  # type: ignore[index]
    put(path, at, form, value)
    put(path, PAGE + at, form, value)


@pytest.mark.parametrize(
    ("field", "form", "value", "reason"),
    [
        ("magic", "<I", 0, "no LMDB 0.9 file"),
        ("version", "<I", 3, "no LMDB 0.9 file"),
        ("page_bytes", "<I", 1000, "LMDB pages of 1000 bytes"),
        ("page_bytes", "<I", 0, "LMDB pages of 0 bytes"),
        ("depth", "<H", 60000, "too deep"),
        ("depth", "<H", 1, "none of kind 2"),
        ("flags", "<H", 4, "duplicates"),
        ("root", "<Q", 10**9, "outside the file"),
        ("root", "<Q", 2**64 - 2, "outside the file"),
        ("root", "<Q", 0, "none of kind 1"),
    ],
)
def test_a_bad_meta_page(good: Path, field: str, form: str, value: int, reason: str) -> None:
    in_both_metas(good, field, form, value)
    with pytest.raises(FormatError, match=reason):
        leaves_in(good)


def test_a_leaf_page_of_too_many_nodes(good: Path) -> None:
    data = good.read_bytes()
    leaf = next(at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 2)
    put(good, leaf + 12, "<H", 65535)
    with pytest.raises(FormatError, match="holds no nodes, or too many"):
        leaves_in(good)


def test_a_child_page_outside_the_file(good: Path) -> None:
    data = good.read_bytes()
    branch = next(at for at in range(2 * PAGE, len(data), PAGE) if data[at + 10] == 1)
    node = branch + struct.unpack_from("<H", data, branch + 16)[0]
    put(good, node + 2, "<H", 65535)
    with pytest.raises(FormatError, match="outside the file"):
        leaves_in(good)


def test_cut_files(good: Path) -> None:
    data = good.read_bytes()
    for size in (0, 100, PAGE, 2 * PAGE, 3 * PAGE, len(data) - PAGE):
        good.write_bytes(data[:size])
        with pytest.raises(FormatError):
            leaves_in(good)


def test_fuzzed_files_end_in_an_answer_or_a_refusal(good: Path) -> None:
    rng = np.random.default_rng(3)
    data = np.frombuffer(good.read_bytes(), np.uint8)
    interesting = np.flatnonzero(data)
    for _ in range(150):
        bad = data.copy()
        bad[rng.choice(interesting, 4)] = rng.integers(0, 256, 4)
        good.write_bytes(bad.tobytes())
        try:
            leaves = leaves_in(good)
        except FormatError:
            continue
        assert not len(leaves.size) or int((leaves.start + leaves.size).max()) <= len(data)
