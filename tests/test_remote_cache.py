"""The cache over time: what earlier keepers left counts, is shown, and can be removed."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from keepers import cache, keepers, kill_keepers  # noqa: F401
from range_server import RangeServer, serving
from remote_sets import make_set, open_set, plain

import shardkit
from shardkit.errors import StorageError
from shardkit.operations.cache import cache as contents
from shardkit.operations.cache import clear_cache
from shardkit.remote import connection
from shardkit.remote.cached_storage import Remote
from shardkit.remote.eviction import kept_bytes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_set(folder, "arrays", "npy")
    return make_set(folder, "arrays", "webdataset").parent


@pytest.fixture
def server(made: Path) -> Iterator[RangeServer]:
    with serving(made) as server:
        yield server


def read_all(url: str, cache: Path, **options: object) -> list[object]:  # noqa: F811
    dataset = open_set(url, "arrays", cache_dir=cache, **options)
    return plain([dataset.read(range(at, at + 4)) for at in range(0, len(dataset), 4)])


def blocks_bytes(cache: Path) -> int:  # noqa: F811
    return sum(path.stat().st_blocks * 512 for path in cache.glob("*/*-0*"))


def test_what_an_earlier_server_left_counts_and_goes_first(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
) -> None:
    """Else a cache would grow by each dataset that was ever read."""
    first, second = (f"{server.url}/arrays-{name}" for name in ("npy", "webdataset"))
    read_all(first, cache)
    kill_keepers(cache)
    one = blocks_bytes(cache)
    assert one > 1_000_000
    expected = read_all(str(made / "arrays-webdataset"), None)  # type: ignore[arg-type]
    assert read_all(second, cache, cache_bytes=one) == expected
    assert blocks_bytes(cache) <= one * 1.01
    there = {shown.url: shown.kept_bytes for shown in contents(cache).datasets}
    assert there[first] == 0
    assert there[second] > 0


def test_a_reader_of_an_earlier_keeper_does_not_see_what_goes(
    server: RangeServer,
    cache: Path,  # noqa: F811
) -> None:
    first, second = (f"{server.url}/arrays-{name}" for name in ("npy", "webdataset"))
    dataset = open_set(first, "arrays", cache_dir=cache)
    rows = range(len(dataset))
    expected = plain([dataset.read(rows)])
    kill_keepers(cache)
    read_all(second, cache, cache_bytes=blocks_bytes(cache))
    assert plain([dataset.read(rows)]) == expected


def test_a_reader_of_an_earlier_keeper_that_read_a_part(
    server: RangeServer,
    cache: Path,  # noqa: F811
) -> None:
    """Files that it has mapped were removed since; nothing of others is taken for their data."""
    first, second = (f"{server.url}/arrays-{name}" for name in ("npy", "webdataset"))
    dataset = open_set(first, "arrays", cache_dir=cache)
    dataset.read(range(0, len(dataset), 9))
    kill_keepers(cache)
    read_all(second, cache, cache_bytes=blocks_bytes(cache) // 2)
    local = open_set(server.root / "arrays-npy", "arrays")
    assert plain([dataset.read([0, 9])]) == plain([local.read([0, 9])])
    with pytest.raises(StorageError, match="was deleted while it was read from"):
        plain(dataset.read([row]) for row in range(len(local)))


@pytest.mark.parametrize("forked_keepers", [None])  # this one is started as a user's is
def test_a_keeper_uses_memory_again(
    server: RangeServer,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless whoever starts it says how."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "3")
    dataset = open_set(f"{server.url}/arrays-npy", "arrays", cache_dir=cache)
    (keeper,) = keepers(cache)
    environment = Path("/proc", str(keeper), "environ").read_bytes().split(b"\0")
    assert {b"MALLOC_ARENA_MAX=3", b"MALLOC_TRIM_THRESHOLD_=134217728"} <= set(environment)
    assert len(dataset)


@pytest.mark.parametrize("what", ["shardkit.json", "*"])
def test_a_dataset_that_somebody_deleted_in_the_cache(
    server: RangeServer,
    cache: Path,  # noqa: F811
    made: Path,
    what: str,
) -> None:
    """Its keeper would tell of new files what was true of those; so another begins anew."""
    url = f"{server.url}/arrays-npy"
    rows = range(20)
    first = open_set(url, "arrays", cache_dir=cache)
    expected = plain([first.read(rows)])
    before = keepers(cache)
    for path in cache.glob(f"*/{what}"):
        path.unlink()
    second = open_set(url, "arrays", cache_dir=cache)
    assert keepers(cache) != before
    assert plain([second.read(rows)]) == expected
    everything = range(len(second))
    local = open_set(str(made / "arrays-npy"), "arrays")
    assert plain([second.read(everything)]) == plain([local.read(everything)])


def test_who_opens_with_less_has_less(server: RangeServer, cache: Path) -> None:  # noqa: F811
    """Without a request that would need room."""
    url = f"{server.url}/arrays-npy"
    read_all(url, cache)
    shardkit.open(url, cache_dir=cache, cache_bytes="600kB")
    assert blocks_bytes(cache) <= 600_000


def test_an_idle_reader_keeps_no_other_from_reading(server: RangeServer, cache: Path) -> None:  # noqa: F811
    url = f"{server.url}/arrays-npy"
    dataset = open_set(url, "arrays", cache_dir=cache, cache_bytes="1600kB")
    idle = threading.Thread(target=lambda: (dataset.read([0, 20, 40]), is_over.wait(60)))
    is_over = threading.Event()
    idle.start()
    try:
        local = open_set(server.root / "arrays-npy", "arrays")
        for rows in ([5, 25, 45], [59, 10, 30]):
            assert plain([dataset.read(rows)]) == plain([local.read(rows)])
    finally:
        is_over.set()
        idle.join()


def test_readers_that_share_a_small_cache_take_turns(
    server: RangeServer,
    cache: Path,  # noqa: F811
) -> None:
    """A batch of each alone has space, and those of all together do not."""
    dataset = open_set(f"{server.url}/arrays-npy", "arrays", cache_dir=cache, cache_bytes="1100kB")
    local = open_set(server.root / "arrays-npy", "arrays")
    batches = [[row, row + 20, row + 40] for row in range(18)] * 3
    with ThreadPoolExecutor(6) as readers:
        found = [*readers.map(lambda rows: plain([dataset.read(rows)]), batches)]
    assert found == [plain([local.read(rows)]) for rows in batches]


@pytest.mark.parametrize("is_new", [True, False])
def test_verify_sees_what_is_gone_though_an_earlier_keeper_had_it(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
) -> None:
    monkeypatch.setenv("SHARDKIT_CACHE_DIR", str(cache))
    shutil.copytree(server.root / "arrays-npy", tmp_path / "at" / "ds")
    with serving(tmp_path / "at") as mine:
        read_all(f"{mine.url}/ds", cache)
        if is_new:
            connection._connections.__init__()  # type: ignore[misc]
            kill_keepers(cache)
        assert shardkit.verify(f"{mine.url}/ds", progress=False).ok
        for name in ("train.rows", next((tmp_path / "at" / "ds").glob("train-0*")).name):
            path = tmp_path / "at" / "ds" / name
            data = path.read_bytes()
            path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            connection._connections.__init__()  # type: ignore[misc]
            kill_keepers(cache)
            assert not shardkit.verify(f"{mine.url}/ds", progress=False).ok
            path.write_bytes(data)


def test_copies_at_two_urls_do_not_depend_on_each_other(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    shutil.copytree(server.root / "arrays-npy", tmp_path / "at" / "copy")
    url = f"{server.url}/arrays-npy"
    dataset = open_set(url, "arrays", cache_dir=cache)
    with serving(tmp_path / "at") as other:
        open_set(f"{other.url}/copy", "arrays", cache_dir=cache)
    local = open_set(server.root / "arrays-npy", "arrays")
    assert plain([dataset.read([7])]) == plain([local.read([7])])
    assert {one.url for one in contents(cache).datasets} == {url, f"{other.url}/copy"}


def test_shards_of_a_field_that_looks_like_a_number(tmp_path: Path) -> None:
    (tmp_path / "train-00000.a-00001.x.npy").write_bytes(bytes(5000))
    assert [*kept_bytes(tmp_path)] == ["train"]


def test_it_is_shown_and_removed(server: RangeServer, cache: Path, run: Run) -> None:  # noqa: F811
    first, second = (f"{server.url}/arrays-{name}" for name in ("npy", "webdataset"))
    shown = run("cache", "--cache-dir", cache)
    assert (shown.code, "0 datasets" in shown.out) == (0, True)
    assert not cache.exists()
    expected = read_all(first, cache)
    read_all(second, cache)
    shown = run("cache", "--cache-dir", cache)
    assert shown.code == 0
    assert "2 datasets" in shown.out
    assert first in shown.out
    assert "webdataset" in shown.out
    kill_keepers(cache)
    assert run("cache", second, "--clear", "--cache-dir", cache).code == 0
    assert [one.url for one in contents(cache).datasets] == [first]
    assert read_all(first, cache) == expected
    wrong = run("cache", second, "--clear", "--cache-dir", cache)
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert run("cache", first, "--cache-dir", cache).code == 2


def test_what_others_call_likewise_is_theirs(
    server: RangeServer,
    cache: Path,  # noqa: F811
    tmp_path: Path,
    made: Path,
) -> None:
    """A folder, a link and a file whose names are 32 digits, in a folder that is a cache, too."""
    theirs, elsewhere = cache / ("0123456789abcdef" * 2), tmp_path / "elsewhere"
    theirs.mkdir(parents=True)
    elsewhere.mkdir()
    for folder in (theirs, elsewhere):
        (folder / "train-00000.tar").write_bytes(bytes(1_000_000))
    (elsewhere / "origin").write_text("of a cache that was moved")
    (cache / ("f" * 32)).symlink_to(elsewhere)
    (cache / ("a" * 32)).write_text("a file")
    before = {path: path.read_bytes() for path in [*theirs.iterdir(), *elsewhere.iterdir()]}
    one = sum(path.stat().st_size for path in (made / "arrays-npy").glob("*-0*"))
    url = f"{server.url}/arrays-npy"
    read_all(url, cache, cache_bytes=one // 2)
    assert [one.url for one in contents(cache).datasets] == [url]
    clear_cache(cache_dir=cache)
    assert {path: path.read_bytes() for path in before} == before
    assert (cache / ("a" * 32)).read_text() == "a file"


def test_a_file_of_the_index_that_goes_before_it_is_mapped(
    server: RangeServer,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process verifies the dataset, or clears the cache, at that moment."""
    url, told, ask = f"{server.url}/arrays-npy", [], Remote.ask

    def ask_and_lose(remote: Remote, do: str, *numbers: Any, **said: Any) -> Any:
        answer = ask(remote, do, *numbers, **said)
        told.append(said)
        if len(told) < 4 and do == "index file":
            ask(remote, "forget")
        return answer

    monkeypatch.setattr(Remote, "ask", ask_and_lose)
    expected = read_all(str(server.root / "arrays-npy"), None)  # type: ignore[arg-type]
    assert read_all(url, cache) == expected
    assert [said["file"] for said in told[:4]] == ["train.rows"] * 4


def test_files_that_go_while_it_looks(
    server: RangeServer,
    cache: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (f"{server.url}/arrays-{name}" for name in ("npy", "webdataset"))
    read_all(first, cache)
    read_all(second, cache)
    there = {shown.url: shown for shown in contents(cache).datasets}
    part, gone = (cache / there[url].name for url in (first, second))
    part = part / "train.rows.part"
    part.symlink_to("nowhere")  # as one that is listed, and is not there any more

    def look(folder: Path) -> dict[str, int]:
        try:
            return kept_bytes(folder)
        finally:
            part.unlink(missing_ok=True) if len(looked) == 3 else looked.append(folder)
            if folder == gone:
                shutil.rmtree(folder)

    looked: list[Path] = []
    monkeypatch.setattr("shardkit.operations.cache.kept_bytes", look)
    assert contents(cache).datasets == [there[first]]
    assert len(looked) == 3


def test_who_reads_what_is_removed_goes_on(server: RangeServer, cache: Path) -> None:  # noqa: F811
    url = f"{server.url}/arrays-npy"
    dataset = open_set(url, "arrays", cache_dir=cache)
    loader = shardkit.Loader(dataset, 4, seed=1, workers=2)
    expected = plain(shardkit.Loader(open_set(server.root / "arrays-npy", "arrays"), 4, seed=1))
    found = []
    for number, batch in enumerate(loader):
        found += plain([batch])
        if number % 4 == 1:
            clear_cache(cache_dir=cache)
    assert found == expected
    del loader, dataset
