"""The two ways to read files: mapped without descriptors, or copied, each byte once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CONTAINERS, make_pairs, nothing_left_open, pack_all, run_python, write
from token_data import documents, pack_tokens

import shardkit
import shardkit.storage.local_files
from shardkit.errors import ChecksumError, DataError
from shardkit.memory import buffers
from shardkit.memory.maps import READ_BYTES, map_file, mapped
from shardkit.shards.stored import ShardReader
from shardkit.storage.local_files import CopiedFiles, MappedFiles, must_copy
from shardkit.storage.opened import Opened
from shardkit.system.file_io import pread_full
from shardkit.system.file_systems import is_remote, type_of

NFS = 0x6969


def shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*-0*") if path.is_file())


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return pack_all(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """All files lie on another machine."""
    monkeypatch.setattr("shardkit.system.file_systems.type_of", lambda path: NFS)


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: values.tolist()
        if isinstance(values, np.ndarray)
        else [v if v is None or isinstance(v, str | dict) else bytes(v) for v in values]
        for name, values in batch.items()
    }


# --- maps ---------------------------------------------------------------------------------


def test_a_map_holds_no_descriptor_and_lives_as_long_as_a_slice(tmp_path: Path) -> None:
    data = os.urandom(10_000)
    path = write(tmp_path / "file", data)
    with nothing_left_open():
        view = map_file(path, len(data))
        part, array = view[5000:6000], np.frombuffer(view, "<u4")
        del view
    assert bytes(part) == data[5000:6000] and array.tobytes() == data
    assert part.readonly and not array.flags.writeable
    assert is_mapped(path)
    del part, array
    assert not is_mapped(path)


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_child_lets_go_of_its_own_maps(tmp_path: Path) -> None:
    path = write(tmp_path / "file", b"abc" * 9999)
    view: memoryview | None = map_file(path, 3 * 9999)
    child = os.fork()
    if child == 0:
        view = None
        os._exit(is_mapped(path))
    assert os.waitpid(child, 0)[1] == 0
    assert view is not None and bytes(view[:3]) == b"abc"


def test_what_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        mapped(1_000_000, 10)
    assert len(mapped(1_000_000, 0)) == 0


def test_an_address_is_that_of_a_map_which_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another thread opens the same file, and its map is closed again at once."""

    get = Opened.__getitem__

    def close_at_once(self: Opened[memoryview], number: int) -> memoryview:
        view = get(self, number)
        self.now.clear()
        get(self, number)
        self.now.clear()
        return view

    monkeypatch.setattr(Opened, "__getitem__", close_at_once)
    announced: list[np.ndarray[Any, Any]] = []
    write(tmp_path / "file", bytes(100_000))
    zero, start = np.zeros(1, np.int64), np.array([70_000])

    def will_need(addresses: np.ndarray[Any, Any], sizes: object) -> None:
        for line in Path("/proc/self/maps").read_text().splitlines():
            first, last = (int(n, 16) for n in line.split()[0].split("-"))
            if first <= addresses[0] < last and line.endswith("file"):
                announced.append(addresses)

    monkeypatch.setattr("shardkit.storage.local_files.will_need", will_need)
    MappedFiles(tmp_path, ["file"], [100_000]).announce(zero, start, start - 50_000)
    assert len(announced) == 1


FEW_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
import numpy as np
import shardkit
limit = len(os.listdir("/proc/self/fd")) + 12
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
for path in map(Path, sys.argv[2:]):
    assert len(list(path.glob("train-0*"))) > 2 * limit
    kept = []
    for verify in (False, True):
        ds = shardkit.open(path, decode=False, verify=verify)
        kept.append(ds.read(np.arange(len(ds))[::-1]))
    for name, values in kept[0].items():
        assert [v and bytes(v) for v in values] == [v and bytes(v) for v in kept[1][name]]
    assert shardkit.verify(path).ok
    shardkit.unpack(path, Path(sys.argv[1], path.name))
"""


def test_many_shards_and_few_descriptors(tmp_path: Path) -> None:
    for i in range(45):
        write(tmp_path / "in" / f"{i:03d}.txt", f"text {i}")
        write(tmp_path / "in" / f"{i:03d}.cls", f"{i}")
    made = [tmp_path / to for to in CONTAINERS]
    for path in made:
        shardkit.pack(tmp_path / "in", path, to=path.name, shard_size=1, corpus="paired", workers=0)
    (tmp_path / "back").mkdir()
    run_python(FEW_DESCRIPTORS, tmp_path / "back", *made)
    for path in made:
        assert len(list((tmp_path / "back" / path.name).iterdir())) == 90


# --- copies -------------------------------------------------------------------------------


def test_verified_bytes_are_those_returned(
    packed: dict[str, Path], container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes to a shard after the check changes nothing."""
    ds = shardkit.open(packed[container], verify=True)
    rows = [7, 3, 3, 50]
    expected = plain(shardkit.open(packed[container]).read(rows))
    check = ShardReader.refuse_damage
    kept = {path: path.read_bytes() for path in shards(packed[container])}

    def check_and_spoil(*args: Any) -> None:
        check(*args)
        for path, data in kept.items():
            with path.open("r+b") as file:
                file.write(bytes(len(data)))

    monkeypatch.setattr(ShardReader, "refuse_damage", check_and_spoil)
    try:
        assert plain(ds.read(rows)) == expected
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_verified_bytes_are_read_once(
    packed: dict[str, Path], container: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = shardkit.open(packed[container], verify=True)
    num_bytes: list[int] = []

    def counted(fd: int, buffer: memoryview, offset: int) -> int:
        num_bytes.append(pread_full(fd, buffer, offset))
        return num_bytes[-1]

    monkeypatch.setattr(shardkit.storage.local_files, "pread_full", counted)
    batch = ds.reader.gather(np.arange(0, 55, 2))
    wanted = sum(int(ds.reader.places(batch, name)[1].sum()) for name in ds.fields)
    ds.read(np.arange(0, 55, 2))
    assert sum(num_bytes) == wanted
    for path in shards(packed[container]):
        assert not is_mapped(path)


def test_verified_arrays_are_gathered_from_the_copy(container: str, tmp_path: Path) -> None:
    for i in range(30):
        np.save(write(tmp_path / "in" / f"{i:02d}.npy", b""), np.full((4, 3), i, "<f4"))
    shardkit.pack(tmp_path / "in", tmp_path / "out", to=container, shard_size="300B", workers=0)
    ds = shardkit.open(tmp_path / "out", verify=True)
    found = ds.read([4, 29, 4, 0])["npy"]
    assert isinstance(found, np.ndarray) and found.shape == (4, 4, 3) and found.flags.writeable
    assert found[:, 0, 0].tolist() == [4, 29, 4, 0]
    found[:] = 9
    assert np.asarray(ds.read([4])["npy"]).max() == 4


def test_absent_and_empty_values_are_copied(container: str, tmp_path: Path) -> None:
    shardkit.pack(make_pairs(tmp_path / "in"), tmp_path / "out", to=container, workers=0)
    ds = shardkit.open(tmp_path / "out", decode=False)
    checked = shardkit.open(tmp_path / "out", decode=False, verify=True)
    rows = [*range(len(ds)), 3, 3]
    assert plain(checked.read(rows)) == plain(ds.read(rows))
    assert list(checked) == list(ds)
    assert plain(checked.read([])) == plain(ds.read([]))
    assert checked.find(ds.keys()[3]) == 3


CUT_SHORT = """
import os, sys
from pathlib import Path
import shardkit
for path in map(Path, sys.argv[1:]):
    ds = shardkit.open(path, verify=True)
    ds.read([0])
    for shard in path.glob("train-0*"):
        os.truncate(shard, 0)
    try:
        ds.read([0])
    except shardkit.errors.DataError as error:
        print(error)
"""


def test_a_shard_that_is_cut_short_is_an_error(packed: dict[str, Path], tmp_path: Path) -> None:
    for to, path in packed.items():
        shutil.copytree(path, tmp_path / to)
    lines = run_python(CUT_SHORT, *(tmp_path / to for to in CONTAINERS)).splitlines()
    assert len(lines) == len(CONTAINERS)
    for line, to in zip(lines, CONTAINERS, strict=True):
        assert f"{tmp_path / to}/train-00000." in line
        assert "was cut short while it was open: expected" in line and "got 0" in line


def descriptors(folder: Path) -> list[str]:
    """What this process has open there."""
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return [link for link in links if link.startswith(str(folder))]


def test_copies_keep_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shardkit.storage.local_files, "MOST_OPEN", 5)
    names = [str(i) for i in range(20)]
    for name in names:
        write(tmp_path / name, name.encode() * 3)
    numbers = np.arange(20)
    with nothing_left_open():
        both = [CopiedFiles(tmp_path, names, [3 * len(name) for name in names]) for _ in range(2)]
        for files in [*both, *both]:
            found = files.read(numbers, numbers * 0 + 1, numbers * 0 + 2).slices()
            assert [bytes(value) for value in found] == [(name * 3)[1:3].encode() for name in names]
            assert len(descriptors(tmp_path)) <= 5
        del files, both


def test_neighbours_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = os.urandom(100)
    write(tmp_path / "a", data), write(tmp_path / "b", data)
    calls: list[int] = []
    monkeypatch.setattr(
        shardkit.storage.local_files,
        "pread_full",
        lambda fd, out, at: calls.append(len(out)) or pread_full(fd, out, at),
    )
    files = CopiedFiles(tmp_path, ["a", "b"], [100, 100])
    numbers = np.array([0, 0, 0, 1, 1, 0])
    starts, sizes = np.array([10, 20, 20, 20, 25, 99]), np.array([10, 0, 5, 5, 5, 1])
    found = files.read(numbers, starts, sizes).slices()
    assert [bytes(v) for v in found] == [
        data[s : s + n] for s, n in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    assert calls == [15, 10, 1]
    assert all(value.readonly for value in found)
    assert len({*found, map_file(tmp_path / "a", 100)[10:20]}) == 5, "told apart by their bytes"


def test_copies_in_use_are_not_written_over(tmp_path: Path) -> None:
    """Where a thread takes the memory of batches again, those that somebody holds stay."""
    size = 400_000
    data = [bytes([number]) * size for number in range(9)]
    write(tmp_path / "a", b"".join(data))
    files = CopiedFiles(tmp_path, ["a"], [9 * size])

    def read(numbers: list[int]) -> list[memoryview]:
        starts = np.array(numbers) * size
        return files.read(starts * 0, starts, starts * 0 + size).slices()

    with buffers.keeping():
        last = read([3, 1, 2])[2]
        for numbers in ([4, 5, 6], [7, 8, 0], [1, 1, 1]):
            assert [bytes(v) for v in read(numbers)] == [data[n] for n in numbers]
        assert bytes(last) == data[2]


def test_more_than_any_memory_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", b"abc")
    with pytest.raises(MemoryError):
        CopiedFiles(tmp_path, ["a"], [3]).read(*np.full((3, 64), 1 << 59) * [[0], [0], [1]])


def test_converted_tars_are_checked(tmp_path: Path) -> None:
    """They keep the kind of what they were made from, which had no checksums."""
    make_pairs(tmp_path / "in")
    tar = ["tar", "cf", tmp_path / "x.tar", "--sort=name", "-C", tmp_path / "in", "."]
    subprocess.run(tar, check=True)
    shardkit.convert(tmp_path / "x.tar", tmp_path / "out", to="npy", workers=0)
    shard = next((tmp_path / "out").glob("train-*.jpg.npy"))
    data = bytearray(shard.read_bytes())
    data[-40] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ChecksumError, match="differ from those packed"):
        shardkit.unpack(tmp_path / "out", tmp_path / "back")


# --- other machines -----------------------------------------------------------------------


def test_types_are_those_that_stat_tells(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/proc"), Path("/dev/shm"), Path("/")):
        told = subprocess.run(["stat", "-f", "-c", "%t", path], capture_output=True, check=True)
        assert type_of(path) == int(told.stdout, 16) != 0
    assert type_of(tmp_path / "gone") == 0
    assert type_of(Path("/proc")) == 0x9FA0


@pytest.mark.parametrize(("kind", "expected"), [(0xEF53, False), (NFS, True), (0x65735546, True)])
def test_is_remote(kind: int, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4, NFS, FUSE."""
    assert not is_remote(Path("/proc"))
    monkeypatch.setattr("shardkit.system.file_systems.type_of", lambda path: kind)
    assert is_remote(Path("/anywhere")) == expected


def test_shards_behind_links_are_looked_at_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of others' tars lies in a cache of its own."""
    monkeypatch.setattr(
        "shardkit.system.file_systems.type_of", lambda path: NFS * (path.name == "a.tar")
    )
    assert must_copy(tmp_path, ["a.tar", "b.tar"])
    assert not must_copy(tmp_path, ["b.tar"])
    assert not must_copy(tmp_path, [])


def test_remote_files_are_not_mapped(far: None, container: str, tmp_path: Path) -> None:
    shardkit.pack(make_pairs(tmp_path / "in"), tmp_path / "out", to=container, workers=0)
    ds = shardkit.open(tmp_path / "out")
    ds.advise(range(len(ds)))
    batch, key = ds.read(range(len(ds))), ds.keys()[2]
    assert ds.find(key) == 2
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert READ_BYTES > 1 << 20
    for path in (tmp_path / "out").iterdir():
        if path.name.startswith("train"):
            os.truncate(path, 0)
    assert [bytes(v) for v in batch["jpg"] if v is not None]
    assert ds.keys()[2] == key
    with pytest.raises(DataError, match="was cut short while it was open"):
        ds.read([0])


@pytest.mark.parametrize("to", ["npy", "webdataset"])
def test_remote_tokens(far: None, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = documents([5, 0, 40, 17, 3, 60])
    folder = pack_tokens(tmp_path, docs, to, shard_size="150B")
    ds = shardkit.TokenDataset(folder, seq_len=9)
    flat = np.concatenate(docs).tolist()
    for row, sample in enumerate(ds[row] for row in range(len(ds))):
        assert sample["inputs"].tolist() == flat[9 * row : 9 * row + 9]
    ds.advise([0, 1])
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    for path in shards(folder):
        os.truncate(path, 0)
    with pytest.raises(DataError, match="was cut short while it was open"):
        ds[0]
