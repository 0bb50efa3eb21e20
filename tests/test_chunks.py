"""Huge values: whole whatever the size of chunks, and no longer in memory once passed."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import xxhash
from conftest import write
from hypothesis import given
from hypothesis import strategies as st

from shardkit.formats.writev import write_all
from shardkit.memory import chunks
from shardkit.memory.chunks import in_chunks
from shardkit.memory.maps import mapped
from shardkit.samples.sample import sample_checksums


@given(st.binary(max_size=50), st.integers(1, 60))
def test_in_chunks(value: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", size)
        for one in (value, memoryview(value)):
            made = [bytes(chunk) for chunk in in_chunks(one)]
            assert b"".join(made) == value
            assert all(len(chunk) <= size for chunk in made)


def test_checksums_and_writes_do_not_depend_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [bytes(range(256)) * 40, b"", b"x", None, memoryview(b"y" * 999)]
    whole = sample_checksums({"txt": values}, 5)
    for module in ("samples.sample", "formats.writev", "memory.chunks"):
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
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
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
