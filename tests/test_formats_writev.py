"""Gathered writes, also where the system takes only part of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardkit.formats.writev import IOV_MAX, Buffer, write_all
from shardkit.system.full_writes import write_full


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
