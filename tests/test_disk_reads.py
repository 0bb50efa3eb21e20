"""What was read from a device: whose counters, of which file systems."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shardkit.system import file_systems
from shardkit.system.file_systems import Mount, counter, is_in_memory, mount_of, parse_mounts
from shardkit.system.page_cache import cache_state, evict

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:5 / /dev rw shared:2 - devtmpfs devtmpfs rw
24 23 0:20 / /dev/shm rw - tmpfs tmpfs rw
30 22 8:17 /sub /mnt/a\\040disk rw master:1 shared:4 - xfs /dev/sdb1 rw
31 22 254:0 /home /srv/bound rw - ext4 /dev/vda rw
32 22 0:44 / /nfs rw - nfs4 server:/export rw
33 32 0:45 / /nfs rw - overlay overlay rw,lowerdir=/l
34 22 0:46 / /fuse rw - fuse.sshfs host:/ rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "at"),
    [
        ("/home/x", "ext4", "254:0"),
        ("/dev/shm/x/y", "tmpfs", "0:20"),
        ("/dev/shmx", "devtmpfs", "0:5"),
        ("/dev/shm", "tmpfs", "0:20"),
        ("/mnt/a disk/x", "xfs", "8:17"),
        ("/mnt/a diskette", "ext4", "254:0"),
        ("/srv/bound/x", "ext4", "254:0"),
        ("/nfs/x", "overlay", "0:45"),
        ("/fuse/x", "fuse.sshfs", "0:46"),
        ("/", "ext4", "254:0"),
    ],
)
def test_the_mount_of_a_path(path: str, kind: str, at: str) -> None:
    found = mount_of(path, parse_mounts(MOUNTS))
    assert found is not None
    assert (found.kind, found.device) == (kind, at)


def test_nonsense_among_mounts_is_passed_over() -> None:
    assert parse_mounts("\n- \nx y z - ext4\n1 2 3:4 / /a rw - ext4 d rw") == [
        Mount("/a", "ext4", "3:4", "d", "/", "rw")
    ]
    assert mount_of("/a", []) is None


@pytest.mark.parametrize(
    ("path", "counts", "in_memory"),
    [
        ("/home", True, False),
        ("/nfs", True, False),
        ("/dev/shm", False, True),
        ("/fuse", False, False),
    ],
)
def test_which_file_systems_count(
    path: str, counts: bool, in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = mount_of(path, parse_mounts(MOUNTS))
    monkeypatch.setattr(file_systems, "mount_at", lambda path: found)
    assert (counter(Path(path)) is not None) == counts
    assert is_in_memory(Path(path)) == in_memory


def test_without_mountinfo_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "mount_at", lambda path: None)
    assert counter(Path("/")) is None
    assert not is_in_memory(Path("/"))


def test_without_an_account_of_processes_the_device_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if counter(tmp_path) is None:
        pytest.skip("no device below the temporary folder")

    def refuse() -> int:
        raise PermissionError

    monkeypatch.setattr(file_systems, "read_by_process", refuse)
    count = counter(tmp_path)
    if count is None:
        pytest.skip("the block device has no statistics")
    before = count()
    cold_file(tmp_path).read_bytes()
    assert count() - before >= SIZE


SIZE = 4 << 20


def cold_file(folder: Path) -> Path:
    """A file that is not in the page cache; skips where that cannot be."""
    path = folder / "data"
    path.write_bytes(os.urandom(SIZE))
    if cache_state(evict(path)) != "cold":
        pytest.skip("this file system keeps what is written in memory")
    return path


def test_what_comes_from_the_device_is_counted_once(tmp_path: Path) -> None:
    path, count = cold_file(tmp_path), counter(tmp_path)
    if count is None:
        pytest.skip("no device below the temporary folder")
    before = count()
    path.read_bytes()
    cold = count()
    path.read_bytes()
    assert SIZE <= cold - before < 1.05 * SIZE
    assert count() == cold


@pytest.mark.parametrize("reader", ["thread", "process"])
def test_threads_and_ended_processes_count(tmp_path: Path, reader: str) -> None:
    path, count = cold_file(tmp_path), counter(tmp_path)
    if count is None:
        pytest.skip("no device below the temporary folder")
    before = count()
    if reader == "thread":
        thread = threading.Thread(target=path.read_bytes)
        thread.start()
        thread.join()
    else:
        command = "import sys; open(sys.argv[1], 'rb').read()"
        subprocess.run([sys.executable, "-c", command, path], check=True)
    assert count() - before >= SIZE
