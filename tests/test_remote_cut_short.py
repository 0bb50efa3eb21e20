"""With verify=True a file that is cut short while it is open is an error, and no end by SIGBUS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keepers import cache  # noqa: F401
from range_server import RangeServer, serving
from remote_sets import make_set, open_set, plain

import shardkit
from shardkit.errors import ShardkitError
from shardkit.operations import split_check


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_set(tmp_path_factory.mktemp("made"), "arrays", "webdataset")


@pytest.fixture
def server(made: Path) -> Iterator[RangeServer]:
    with serving(made.parent) as server:
        yield server


def how_it_ends(work: Callable[[], object]) -> str:
    """What a child process raises, if it is one of our errors, or how else it ends."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            said = "no error"
        except ShardkitError as error:
            said = str(error)
        except Exception as error:  # noqa: BLE001  it is compared
            said = repr(error)
        os.write(writable, said.encode())
        os._exit(0)
    os.close(writable)
    with open(readable) as file:
        said = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return said if status == 0 else f"signal {-status}"


def read_cut_short(place: str, folder: Path, name: str, **options: object) -> None:
    dataset = open_set(place, "arrays", verify=True, **options)
    expected = plain([dataset.read(range(60))])
    path = next(folder.rglob(name))
    os.truncate(path, 0)
    if plain([dataset.read(range(60))]) != expected:
        raise AssertionError("other samples")
    dataset.keys([3])


@pytest.mark.parametrize(
    ("name", "expected"),
    [("*-00001*", "was cut short"), ("*.rows", "no error")],
)
def test_in_the_cache(
    server: RangeServer,
    cache: Path,  # noqa: F811
    name: str,
    expected: str,
) -> None:
    url = f"{server.url}/arrays-webdataset"
    said = how_it_ends(lambda: read_cut_short(url, cache, name, cache_dir=cache))
    assert expected in said
    if expected != "no error":
        assert f"delete {next(cache.glob('*/origin')).parent}" in said


def test_what_was_zeroed_in_the_cache(server: RangeServer, cache: Path) -> None:  # noqa: F811
    url = f"{server.url}/arrays-webdataset"
    dataset = open_set(url, "arrays", cache_dir=cache, verify=True)
    dataset.read(range(60))
    path = next(cache.rglob("*-00001*"))
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)
    with pytest.raises(ShardkitError, match="differ from those packed"):
        dataset.read(range(60))


@pytest.mark.parametrize(
    ("name", "expected"), [("*-00001*", "was cut short"), ("*.rows", "no error")]
)
def test_in_a_folder(made: Path, tmp_path: Path, name: str, expected: str) -> None:
    folder = shutil.copytree(made, tmp_path / "ds")
    assert expected in how_it_ends(lambda: read_cut_short(str(folder), folder, name))


@pytest.mark.parametrize("is_remote", [True, False])
def test_while_it_is_verified(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_remote: bool,
) -> None:
    folder = cache if is_remote else shutil.copytree(made, tmp_path / "ds")
    shard = split_check.SplitCheck.shard
    monkeypatch.setenv("SHARDKIT_CACHE_DIR", str(cache))

    def shard_cut_short(self: split_check.SplitCheck, number: int) -> None:
        if number == 1:
            for name in ("*-00000*", "*.rows", "*.names", "*.find"):
                os.truncate(next(folder.rglob(name)), 0)
        shard(self, number)

    def verify() -> None:
        monkeypatch.setattr(split_check.SplitCheck, "shard", shard_cut_short)
        place = f"{server.url}/arrays-webdataset" if is_remote else folder
        raise AssertionError(shardkit.verify(place, progress=False).problems)

    assert "signal" not in how_it_ends(verify)
