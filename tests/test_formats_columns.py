"""hdf5 and npy: the columns themselves, h5dump, compression, files without a date."""

from __future__ import annotations

import subprocess
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_data import npy

from shardkit.errors import FormatError, StorageError
from shardkit.formats import get_format
from shardkit.formats import hdf5 as hdf5_format
from shardkit.formats.columns import lay_out
from shardkit.formats.format import Extents
from shardkit.samples.encoding import BYTES, Encoding
from shardkit.samples.sample import Value

h5py: Any = pytest.importorskip("h5py")
STEM = "train-00000"
Columns = dict[str, list[Value | None]]


def write(
    name: str, folder: Path, columns: Columns, compression: int | None = None
) -> dict[str, Extents]:
    keys = [b"k%d" % i for i in range(len(next(iter(columns.values()))))]
    return get_format(name).write(folder, STEM, keys, dict(sorted(columns.items())), compression)


def pictures(num: int = 3) -> Columns:
    return {
        "cls": [b"%d" % i for i in range(num)],
        "jpg": [b"J" * (10 * i) for i in range(num)],
    }


# --- columns ------------------------------------------------------------------------------


def test_tokens_are_ragged_whatever_their_lengths() -> None:
    for docs in ([3], [2, 2], [0], [1, 0, 4]):
        values: list[Value | None] = [npy(np.arange(n, dtype="<u2")) for n in docs]
        assert lay_out("tokens", values).extents.encoding == Encoding("ragged", "<u2", (-1,))
    assert lay_out("tokens", [npy(np.zeros((2, 2), "<u2"))]).extents.encoding is BYTES
    assert lay_out("tokens", [b"1 2 3"]).extents.encoding is BYTES


def test_more_axes_than_hdf5_has_stay_bytes() -> None:
    assert lay_out("npy", [npy(np.ones((1,) * 31))]).extents.encoding.kind == "array"
    assert lay_out("npy", [npy(np.ones((1,) * 32))]).extents.encoding is BYTES


# --- hdf5 ---------------------------------------------------------------------------------


def test_nothing_in_the_file_depends_on_the_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write("hdf5", tmp_path / name, pictures())
        if name == "a":
            time.sleep(1.1)  # HDF5's times have seconds
    first, second = ((tmp_path / name / f"{STEM}.h5").read_bytes() for name in ("a", "b"))
    assert first == second


@pytest.mark.needs_program("h5dump", "hdf5-tools")
def test_h5dump_reads_everything(tmp_path: Path) -> None:
    """Debian's is of HDF5 1.10, which cannot read objects of newer kinds."""
    columns: Columns = {
        **pictures(),
        "a.npy": [npy(np.full((2, 2), i, "<c8")) for i in range(3)],
        "b.npy": [npy(np.full(200, i, ">f4")) for i in range(3)],
        "c.npy": [npy(np.full(i, True)) for i in range(3)],
        "d.npy": [npy(np.full(i, i, "<f2")) for i in range(3)],
        "txt": [b"text", None, b""],
    }
    write("hdf5", tmp_path, columns, 9)
    path = str(tmp_path / f"{STEM}.h5")
    done = subprocess.run(["h5dump", path], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    with h5py.File(path, "r") as file:
        assert all(f'DATASET "{name}"' in done.stdout for name in file)
    said = subprocess.check_output(["h5dump", "-pH", "-d", "jpg", path], text=True)
    assert "CONTIGUOUS" in said
    said = subprocess.check_output(["h5dump", "-d", "cls", path], text=True)
    assert "(0): 0, 1, 2\n" in said
    said = subprocess.check_output(
        ["h5dump", "-d", "b.npy", "-s", "2,0", "-c", "1,3", path], text=True
    )
    assert "(2,0): 2, 2, 2\n" in said


def test_compressed_rows_are_chunks_of_zlib(tmp_path: Path) -> None:
    arrays = [np.full((8, 100), i, "<i4") for i in range(20)]
    values: list[Value | None] = [npy(a) for a in arrays]
    values[3] = None
    extents = write("hdf5", tmp_path, {"npy": values, "x.npy": [npy(np.zeros(3))] * 20}, 6)
    found = extents["npy"]
    assert found.encoding == Encoding("array", "<i4", (8, 100), "zlib")
    assert extents["x.npy"].encoding.codec == ""
    data = (tmp_path / f"{STEM}.h5").read_bytes()
    for i, (start, size) in enumerate(zip(found.start.tolist(), found.size.tolist(), strict=True)):
        if i == 3:
            assert size == -1
        else:
            assert zlib.decompress(data[start : start + size]) == arrays[i].tobytes()
    with h5py.File(tmp_path / f"{STEM}.h5", "r") as f:
        assert f["npy"].chunks == (1, 8, 100)
        assert (f["npy"].compression, f["npy"].compression_opts) == ("gzip", 6)
        assert np.array_equal(f["npy"][5], arrays[5])
        assert not f["npy"][3].any()
        assert f["npy.present"][:].tolist() == [1, 1, 1, 0] + [1] * 16


def test_higher_levels_make_smaller_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values: list[Value | None] = [npy(rng.integers(0, 4, 5000).astype("<i4")) for _ in range(5)]
    sizes = []
    for level in (None, 1, 9):
        write("hdf5", tmp_path, {"npy": values}, level)
        sizes.append((tmp_path / f"{STEM}.h5").stat().st_size)
    assert sizes[0] > 4 * sizes[1] > 4 * sizes[2]


def test_only_arrays_are_compressed(tmp_path: Path) -> None:
    ragged = [npy(np.zeros(n)) for n in (100, 200)]
    extents = write("hdf5", tmp_path, {"cls": [b"1", b"2"], "npy": list(ragged)}, 9)
    assert {e.encoding.codec for e in extents.values()} == {""}


def test_a_lost_chunk_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hdf5_format._create

    class Forgetful:
        def __init__(self, *args: Any) -> None:
            self.made = real(*args)

        def write_direct_chunk(self, where: tuple[int, ...], data: bytes) -> None:
            if where[0]:
                self.made.write_direct_chunk(where, data)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.made, name)

    monkeypatch.setattr(hdf5_format, "_create", Forgetful)
    with pytest.raises(FormatError, match="HDF5 lost chunks of npy"):
        write("hdf5", tmp_path, {"npy": [npy(np.zeros(100))] * 3}, 1)


def test_what_hdf5_calls_a_runtime_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Can't decrement id ref count (file write failed)")

    monkeypatch.setattr(hdf5_format, "_reserve", fail)
    with pytest.raises(StorageError, match="HDF5 failed: Can't decrement id ref count"):
        write("hdf5", tmp_path, pictures())
