"""A cache is used only where nobody else can have put anything, and no link in it is followed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Run
from keepers import cache, kill_keepers  # noqa: F401
from range_server import RangeServer, serving
from remote_sets import make_set, open_set, plain

from shardkit.errors import StorageError
from shardkit.remote import connection
from shardkit.remote.connection import LOCK, LOG, SOCKET

ANOTHER = 65534


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_set(folder, "arrays", "npy")
    return make_set(folder, "arrays", "webdataset", rows=20).parent


@pytest.fixture
def server(made: Path) -> Iterator[RangeServer]:
    with serving(made) as server:
        yield server


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a path another user's, or, without the right to do so, this process another user's."""
    if os.geteuid() == 0:
        os.chown(path, ANOTHER, -1, follow_symlinks=False)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)


def read(server: RangeServer, cache: Path, name: str = "npy", **options: object) -> list[object]:  # noqa: F811
    dataset = open_set(f"{server.url}/arrays-{name}", "arrays", cache_dir=cache, **options)
    return plain([dataset.read(range(len(dataset)))])


def refused(server: RangeServer, cache: Path) -> str:  # noqa: F811
    with pytest.raises(StorageError) as error:
        read(server, cache)
    assert "\n" not in str(error.value)
    assert "SHARDKIT_CACHE_DIR" in str(error.value)
    return str(error.value)


def end_keepers(cache: Path) -> None:  # noqa: F811
    connection._connections.__init__()  # type: ignore[misc]
    kill_keepers(cache)


def test_the_folder_of_another_user(
    server: RangeServer,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache.mkdir()
    give_away(cache, monkeypatch)
    said = refused(server, cache)
    assert f"the cache {cache} belongs to user" in said
    assert f"({ANOTHER})" in said
    assert not [*cache.iterdir()]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to(
    server: RangeServer,
    cache: Path,  # noqa: F811
    mode: int,
) -> None:
    cache.mkdir()
    cache.chmod(mode)
    assert f"(mode {mode:04o})" in refused(server, cache)
    assert not [*cache.iterdir()]
    cache.chmod(0o755)
    assert read(server, cache)


def test_a_link_of_another_user_on_the_way(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it names may be a folder of this user's, in which nothing is to be made. One's own link
    is fine."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    assert read(server, tmp_path / "link" / "own")
    end_keepers(tmp_path)
    give_away(tmp_path / "link", monkeypatch)
    if os.geteuid() == ANOTHER:
        monkeypatch.setattr(os, "geteuid", lambda: ANOTHER + 1)
    assert f"{tmp_path / 'link'} is a link" in refused(server, tmp_path / "link" / "cache")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["own"]


def test_what_is_made_is_for_this_user_alone(server: RangeServer, cache: Path) -> None:  # noqa: F811
    before = os.umask(0)
    try:
        assert read(server, cache)
        made = [cache, *cache.rglob("*")]
    finally:
        os.umask(before)
    assert {LOCK, LOG, SOCKET} < {path.name for path in made}
    assert not [path for path in made if path.lstat().st_mode & 0o077]


LINKED = ("train.stamps", "train.rows", "train.sums", "shardkit.json.part", "*-0*")


@pytest.mark.parametrize(
    ("kind", "name"), [*(("link", name) for name in LINKED), ("fifo", "train.stamps")]
)
def test_a_file_that_is_a_link(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    name: str,
    kind: str,
) -> None:
    """As in a cache that was unpacked from somebody's archive."""
    assert read(server, cache)
    end_keepers(cache)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    place = next(folder.glob(name), folder / name)
    mine = tmp_path / "mine"
    mine.write_bytes(os.urandom(place.stat().st_size if place.exists() else 1000))
    before = mine.read_bytes()
    place.unlink(missing_ok=True)
    place.symlink_to(mine) if kind == "link" else os.mkfifo(place)
    assert f"{place} in the cache is a link, or no regular file" in refused(server, cache)
    assert mine.read_bytes() == before


def test_a_dataset_that_is_a_link(server: RangeServer, cache: Path, tmp_path: Path) -> None:  # noqa: F811
    assert read(server, cache)
    end_keepers(cache)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    folder.rename(tmp_path / "mine")
    folder.symlink_to(tmp_path / "mine")
    before = {path: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert f"{folder} is a link" in refused(server, cache)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", ["train.stamps", "*-0*"])
def test_links_in_what_an_earlier_keeper_left(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    run: Run,
    name: str,
) -> None:
    """It is emptied when room is needed, or when the cache is cleared."""
    assert read(server, cache)
    end_keepers(cache)
    (folder,) = (path for path in cache.iterdir() if path.is_dir())
    place = max(folder.glob(name))
    mine = tmp_path / "mine"
    place.rename(mine)
    place.symlink_to(mine)
    before = mine.read_bytes(), mine.stat().st_blocks
    for _ in range(2):
        try:
            read(server, cache, "webdataset", cache_bytes=1_300_000)
        except StorageError as error:
            assert "is a link" in str(error)  # noqa: PT017
    end_keepers(cache)
    run("cache", "--clear", "--cache-dir", cache)
    assert (mine.read_bytes(), mine.stat().st_blocks) == before
