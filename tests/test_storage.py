"""Files: reads and writes that go on where a call of the system ended, huge values, locks."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from conftest import nothing_left_open, write
from hypothesis import given
from hypothesis import strategies as st

from shardkit.commit.locks import Lock
from shardkit.errors import StorageError
from shardkit.formats.writev import IOV_MAX, Buffer, write_all
from shardkit.inputs.tables.tabular import ClosedFile
from shardkit.memory import maps
from shardkit.memory.maps import in_chunks, mapped
from shardkit.operations.unpack import _in_order
from shardkit.samples.checksums import sample_checksums
from shardkit.system.file_io import pread, pread_full, write_full

# --- one call is not enough ---------------------------------------------------------------


def test_reads_go_on_where_a_call_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Linux ends one after 0x7ffff000 bytes."""
    read, read_into = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, min(size, 7), at))
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: read_into(fd, [to[0][:7]], at))
    data = os.urandom(100)
    path = write(tmp_path / "file", data)
    with path.open("rb") as file:
        assert pread(file.fileno(), 50, 25) == data[25:75]
        assert pread(file.fileno(), 50, 75) == data[75:]
        out = memoryview(bytearray(50))
        assert pread_full(file.fileno(), out, 25) == 50 and bytes(out) == data[25:75]
        assert pread_full(file.fileno(), out, 75) == 25
    table = ClosedFile(path)
    assert table.read(30) == data[:30] and table.read() == data[30:] and table.read(5) == b""
    with path.open("rb") as file:
        pieces = [*_in_order(file.fileno(), np.array([40, 60]), np.array([1, 0]))]
    assert pieces == [data[40:], data[:40]]


# --- locks --------------------------------------------------------------------------------


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        nothing_left_open(),
        pytest.raises(StorageError, match=r"lock cannot be locked.*No locks available; choose"),
    ):
        Lock(tmp_path / "work" / "lock")


def test_a_lock_that_cannot_be_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    with nothing_left_open(), pytest.raises(OSError, match="No space"):
        Lock(tmp_path / "work" / "lock")


# --- gathered writes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[], [0], [0, 0, 5], [3, 0, 4], [1] * (3 * IOV_MAX + 1), [1 << 20]]
)
@pytest.mark.parametrize("at_most", [None, 1, 7, 100_000])
def test_all_bytes_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], at_most: int | None
) -> None:
    buffers: list[Buffer] = [bytes([i % 251]) * n for i, n in enumerate(sizes)]
    buffers[1::2] = [memoryview(b) for b in buffers[1::2]]
    if at_most is not None:
        at_most = max(at_most, sum(sizes) // 1000)
        monkeypatch.setattr(os, "pwritev", short_writer(at_most))
    with (tmp_path / "f").open("wb") as out:
        out.write(b"head")
        out.flush()
        end = write_all(out.fileno(), iter(buffers), 4)
    assert end == 4 + sum(sizes)
    assert (tmp_path / "f").read_bytes() == b"head" + b"".join(buffers)


def short_writer(at_most: int):  # type: ignore[no-untyped-def]
    def pwritev(fd: int, buffers: list[Buffer], offset: int) -> int:
        assert len(buffers) <= IOV_MAX
        assert offset < 10_000_000, "it goes on for ever"
        return os.pwrite(fd, b"".join(buffers)[:at_most], offset)

    return pwritev


def test_where_the_file_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda fd, buffers: os.write(fd, b"".join(buffers)[:3]))
    with (tmp_path / "f").open("wb") as out:
        assert write_full(out.fileno(), [b"", b"0123", memoryview(b"456789")]) == 10
        assert write_full(out.fileno(), [b""]) == write_full(out.fileno(), []) == 0
        assert write_full(out.fileno(), [b"ab"]) == 2
    assert (tmp_path / "f").read_bytes() == b"0123456789ab"


def test_a_system_that_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "writev", lambda fd, buffers: 0)
    with (tmp_path / "f").open("wb") as out, pytest.raises(OSError, match="writes nothing"):
        write_full(out.fileno(), [b"a"])


def test_limit_of_this_system() -> None:
    assert os.sysconf("SC_IOV_MAX") >= IOV_MAX


# --- huge values --------------------------------------------------------------------------


@given(st.binary(max_size=50), st.integers(1, 60))
def test_in_chunks(value: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maps, "CHUNK_BYTES", size)
        for one in (value, memoryview(value)):
            made = [bytes(chunk) for chunk in in_chunks(one)]
            assert b"".join(made) == value
            assert all(len(chunk) <= size for chunk in made)


def test_checksums_and_writes_do_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [bytes(range(256)) * 40, b"", b"x", None, memoryview(b"y" * 999)]
    whole = sample_checksums({"txt": values}, 5)
    for module in ("samples.checksums", "formats.writev", "memory.maps"):
        monkeypatch.setattr(f"shardkit.{module}.CHUNK_BYTES", 100)
    assert sample_checksums({"txt": values}, 5).tolist() == whole.tolist()
    present = [value for value in values if value is not None]
    with (tmp_path / "out").open("wb") as out:
        assert write_all(out.fileno(), present, 3) == 3 + sum(map(len, present))
    assert (tmp_path / "out").read_bytes()[3:] == b"".join(map(bytes, present))


def resident_bytes(path: Path) -> int:
    """Of a file that this process has mapped."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(str(path)))
    rss = next(line for line in lines[at:] if line.startswith("Rss:"))
    return int(rss.split()[1]) << 10


@pytest.mark.parametrize("how", ["by Python", "without a descriptor"])
def test_what_was_passed_is_let_go_of(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    monkeypatch.setattr(maps, "CHUNK_BYTES", size)
    data = bytes(range(256)) * (16 * size // 256)
    path = write(tmp_path / "large", data)
    with path.open("rb") as file:
        if how == "by Python":
            value = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        else:
            value = mapped(file.fileno(), len(data))[:]
    digest, most = xxhash.xxh3_64(), 0
    for chunk in in_chunks(value):
        digest.update(chunk)
        most = max(most, resident_bytes(path))
    assert digest.digest() == xxhash.xxh3_64_digest(data)
    assert size <= most <= 4 * size, "the kernel maps some pages around those that are touched"
