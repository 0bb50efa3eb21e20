"""Datasets written behind a URL: the bytes of the local ones, whole or not there at all."""

from __future__ import annotations

import json
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, make_images, settle, thorough, tree, write
from dying import end_of, forked
from keepers import keepers
from s3_server import S3, kill, s3, s3_endpoint  # noqa: F401

import shardkit
from shardkit.errors import DestinationError, StorageError
from shardkit.packing import remote_destination
from shardkit.remote import bucket_transfers, cached_storage, connection
from shardkit.system.paths import file_size


@pytest.fixture(autouse=True)
def _quickly(forked_keepers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keepers end soon, and all that is kept lies below this test's folder."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setattr(cached_storage, "RETRY_S", 20.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pack(source: Path, dest: Path | str, to: str = "webdataset", **options: object) -> object:
    options = {"shard_size": "3kB", "workers": 0, "progress": False, **options}
    return shardkit.pack(source, dest, to=to, **options)  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


def objects(s3: S3, folder: str = "ds") -> dict[str, bytes]:  # noqa: F811
    return {key.removeprefix(f"{folder}/"): data for key, data in s3.objects(f"{folder}/").items()}


def empty(s3: S3) -> None:  # noqa: F811
    for key in s3.objects():
        s3.client.delete_object(Bucket=s3.bucket, Key=key)


def left_behind(tmp_path: Path) -> list[str]:
    """What is in the staging folder but the keeper's own files."""
    names = (path.name for path in (tmp_path / "cache" / "shardkit" / "staging").iterdir())
    return sorted(name for name in names if not name.startswith("keeper."))


def test_objects_are_the_files_of_a_local_pack(
    source: Path,
    s3: S3,  # noqa: F811
    container: str,
    tmp_path: Path,
) -> None:
    pack(source, tmp_path / "local", container)
    result = pack(source, f"{s3.url}/ds", container, workers=1)
    assert result.dest == f"{s3.url}/ds"  # type: ignore[attr-defined]
    assert objects(s3) == tree(tmp_path / "local")
    assert left_behind(tmp_path) == []
    local = shardkit.open(tmp_path / "local", decode=False)
    remote = shardkit.open(f"{s3.url}/ds", decode=False, cache_dir=tmp_path / "reads")
    assert [remote[row] for row in range(len(local))] == [local[r] for r in range(len(local))]


def test_convert_and_stage_write_to_a_url(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    pack(source, tmp_path / "local", "webdataset")
    shardkit.convert(tmp_path / "local", tmp_path / "other", to="npy", workers=0, progress=False)
    shardkit.convert(tmp_path / "local", f"{s3.url}/a b", to="npy", workers=0, progress=False)
    assert objects(s3, "a b") == tree(tmp_path / "other")
    result = shardkit.stage(tmp_path / "local", f"{s3.url}/deep/er", progress=False)
    assert objects(s3, "deep/er") == tree(tmp_path / "local")
    assert result.copied_bytes == result.num_bytes
    assert left_behind(tmp_path) == []


def test_a_local_url_is_written_as_others_are(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "local")
    pack(source, (tmp_path / "new" / "ds").as_uri())
    assert tree(tmp_path / "new" / "ds") == tree(tmp_path / "local")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["500", "503", "reset", "lost answer"])
def test_a_server_that_fails_now_and_then(source: Path, s3: S3, kind: str, tmp_path: Path) -> None:  # noqa: F811
    pack(source, tmp_path / "local")
    s3.faults.kind, s3.faults.rate = kind, 0.1
    pack(source, f"{s3.url}/ds")
    assert s3.failed[kind] > 0
    assert objects(s3) == tree(tmp_path / "local")


def large(folder: Path) -> Path:
    """A file that goes in parts."""
    data = np.random.default_rng(1).integers(0, 256, bucket_transfers.WHOLE_BYTES + 99, np.uint8)
    write(folder / "large.bin", data.tobytes())
    return folder


def test_large_files_go_in_parts_which_may_fail(s3: S3, tmp_path: Path) -> None:  # noqa: F811
    source = large(tmp_path / "large")
    pack(source, tmp_path / "local", corpus="files")
    s3.faults.kind, s3.faults.rate = "500", 0.1
    pack(source, f"{s3.url}/ds", corpus="files")
    assert objects(s3) == tree(tmp_path / "local")
    shard = s3.client.head_object(Bucket=s3.bucket, Key="ds/train-00000.tar")
    assert shard["ETag"].strip('"').endswith("-5")
    # Its ETag said that it was right: nothing of it was read back.
    assert ("GET", f"/{s3.bucket}/ds/train-00000.tar") not in s3.requests


# --- kills --------------------------------------------------------------------------------


def keeper_of(tmp_path: Path) -> int:
    """The keeper of the staging folder. It works there; who took its lock has ended long since."""
    (keeper,) = keepers(tmp_path / "cache" / "shardkit" / "staging")
    return keeper


@pytest.mark.parametrize("who", ["packer", *thorough("keeper", "both")])
@pytest.mark.parametrize("is_large", [*thorough(False), True])
def test_killed_in_mid_upload_the_same_call_goes_on(
    source: Path,
    s3: S3,  # noqa: F811
    who: str,
    is_large: bool,
    tmp_path: Path,
) -> None:
    options: dict[str, object] = {"corpus": "files"} if is_large else {}
    source = large(tmp_path / "large") if is_large else source
    pack(source, tmp_path / "local", **options)
    packer: list[int] = []
    keepers: list[int] = []
    left = count(-7, 1)

    def die(method: str, path: str) -> None:
        is_wanted = "partNumber=3" in path if is_large else method == "PUT" and not next(left)
        if not is_wanted or not packer:
            return
        process = packer.pop()
        if who != "packer":
            keepers.append(keeper_of(tmp_path))
            kill(keepers[0])
        if who != "keeper":
            kill(process)

    s3.faults.hook = die
    process = forked(lambda: pack(source, f"{s3.url}/ds", **options))
    packer.append(process.pid or 0)
    assert end_of(process) == (0 if who == "keeper" else -signal.SIGKILL)
    assert settle(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in keepers))
    assert bool(keepers) == (who != "packer")
    s3.faults.hook = None
    if who != "keeper":
        assert "shardkit.json" not in objects(s3)
        pack(source, f"{s3.url}/ds", **options)
    assert objects(s3) == tree(tmp_path / "local")
    assert left_behind(tmp_path) == []


@pytest.mark.thorough
def test_killed_at_any_request_the_same_call_goes_on(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
) -> None:
    """At the last ones above all: shardkit.json is there, and the claim not yet gone."""
    options = {"shard_size": "100kB"}
    pack(source, tmp_path / "local", **options)
    requests = count()
    s3.faults.hook = lambda method, path: next(requests) and None
    pack(source, f"{s3.url}/ds", **options)
    total = next(requests)
    for number in [*range(0, total - 6, 6), *range(total - 6, total)]:
        empty(s3)
        left, packer = count(-number, 1), list[int]()

        def die(method: str, path: str, left: Any = left, packer: list[int] = packer) -> None:
            if not next(left):
                while not packer:
                    time.sleep(0.01)
                kill(packer.pop())

        s3.faults.hook = die
        process = forked(lambda: pack(source, f"{s3.url}/ds", **options))
        packer.append(process.pid or 0)
        end_of(process)  # the last request but one is sent when the next may not be needed
        s3.faults.hook = None
        there = objects(s3)
        assert "shardkit.json" not in there or tree(tmp_path / "local").items() <= there.items()
        # One killed with nothing left to do is complete; to see that is to be asked for another.
        if left_behind(tmp_path) or "shardkit.json" not in there:
            pack(source, f"{s3.url}/ds", **options)
        assert objects(s3) == tree(tmp_path / "local"), number
        assert left_behind(tmp_path) == []


# --- who may ------------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_is_there_is_not_replaced_unasked(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    url = f"{s3.url}/ds"
    s3.put("ds/notes.txt", b"mine")
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match=r"holds files and is no shardkit dataset"):
            pack(source, url, overwrite=overwrite)
    s3.client.delete_object(Bucket=s3.bucket, Key="ds/notes.txt")
    pack(source, url)
    before = objects(s3)
    with pytest.raises(DestinationError, match=r"ds already holds a dataset; pass --overwrite"):
        pack(source, url, "npy")
    assert objects(s3) == before
    assert left_behind(tmp_path) == []
    s3.put("ds/notes.txt", b"mine")
    pack(source, url, "npy", overwrite=True)
    pack(source, tmp_path / "local", "npy")
    assert objects(s3) == {**tree(tmp_path / "local"), "notes.txt": b"mine"}
    for claim in ({"host": "a\x1b[2Jb", "began": "now"}, [3]):
        s3.put("ds/shardkit-claim.json", json.dumps(claim).encode())
        with pytest.raises(
            DestinationError, match=r"begun on ('a\\x1b\[2Jb' at 'now'|\? at \?); wait"
        ):
            pack(source, url, overwrite=True)


def test_of_two_at_once_one_goes_on(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    url = f"{s3.url}/ds"
    tried = []

    def other(method: str, path: str) -> None:
        if method == "PUT" and "train-00003" in path and not tried:
            tried.append(path)
            for staging in (None, tmp_path / "elsewhere"):
                with pytest.raises(DestinationError, match="is being written by another"):
                    pack(source, url, "npy", staging=staging)
            tried.append("refused")

    s3.faults.hook = other
    pack(source, url)
    assert tried[-1] == "refused"
    pack(source, tmp_path / "local")
    assert objects(s3) == tree(tmp_path / "local")


def test_who_has_lost_its_claim_says_so_and_publishes_nothing(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Somebody thought that it was gone, deleted all, and another began."""
    url, done = f"{s3.url}/ds", []

    def other(method: str, path: str) -> None:
        if method == "PUT" and "train-00003" in path and not done:
            done.append(path)
            empty(s3)
            pack(source, url, "npy", staging=tmp_path / "elsewhere")

    s3.faults.hook = other
    with pytest.raises(DestinationError, match="was taken over by another"):
        pack(source, url, staging_bytes=1)
    pack(source, tmp_path / "local", "npy")
    local = tree(tmp_path / "local")
    assert {name: objects(s3)[name] for name in local} == local


def stop(self: object, new: object) -> list[str]:
    """Instead of the last comparison: all is sent, and nothing published."""
    raise StorageError("stopped")


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["same machine", "stage"])
def test_what_an_attempt_has_sent_that_came_to_nothing_goes(
    source: Path,
    s3: S3,  # noqa: F811
    who: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No shardkit.json ever named it. What others laid beside it stays."""
    url, first, second = f"{s3.url}/ds", tmp_path / "first", tmp_path / "second"
    pack(source, first)
    pack(source, second, "webdataset" if who == "stage" else "npy", shard_size="100kB")
    with monkeypatch.context() as patched:
        patched.setattr(remote_destination.RemoteDestination, "_compare", stop)
        with pytest.raises(StorageError, match="stopped"):
            shardkit.stage(first, url, progress=False)
    others = {"README.md": b"mine", "coco.names": b"mine", "sub/train-00000.tar": b"mine"}
    for name, data in others.items():
        s3.put(f"ds/{name}", data)
    shardkit.stage(second, url, progress=False, overwrite=who == "same machine")
    assert objects(s3) == tree(second) | others


def test_a_url_that_cannot_be_written(source: Path, run: Run, s3: S3) -> None:  # noqa: F811
    got = run("pack", "pictures", "https://host/ds", "--to", "npy")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "https:// is only read" in got.err
    got = run("pack", "pictures", "out", "--to", "npy", "--staging", "x")
    assert (got.code, got.err.count("\n")) == (2, 1)
    assert "--staging-bytes are for what is uploaded" in got.err
    got = run("pack", "pictures", "s3://no-such-bucket/ds", "--to", "npy", "--workers", 0)
    assert (got.code, got.err.count("\n")) == (1, 1)
    assert "no-such-bucket" in got.err
    assert "testing-secret" not in got.err


def test_overwrite_after_a_kill_in_tidying_up_packs_anew(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
) -> None:
    url, packer = f"{s3.url}/ds", list[int]()

    def die(method: str, path: str) -> None:
        if method == "POST" and "delete" in path and packer:
            kill(packer.pop())

    s3.faults.hook = die
    process = forked(lambda: pack(source, url))
    packer.append(process.pid or 0)
    assert end_of(process) == -signal.SIGKILL
    pack(source, url, "npy", overwrite=True)
    pack(source, tmp_path / "local", "npy")
    assert objects(s3) == tree(tmp_path / "local")


# --- the bound ----------------------------------------------------------------------------


def test_what_waits_stays_within_the_bound(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    most = 0

    def look(method: str, path: str) -> None:
        nonlocal most
        staged = (tmp_path / "cache").rglob("new/*.tar")
        most = max(most, sum(file_size(path) for path in staged))

    s3.faults.hook, s3.faults.delay = look, 0.02
    result = pack(source, f"{s3.url}/ds", staging_bytes=20_000)
    assert 0 < most < 20_000 + 2 * 10_240
    assert result.dataset_bytes > 4 * most  # type: ignore[attr-defined]


def test_what_was_sent_and_is_gone_is_made_again(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"{s3.url}/ds"

    def fail(self: object, new: object) -> None:
        raise StorageError("here")

    with monkeypatch.context() as patched:
        patched.setattr(remote_destination.RemoteDestination, "_compare", fail)
        with pytest.raises(StorageError, match="here"):
            pack(source, url)
    s3.client.delete_object(Bucket=s3.bucket, Key="ds/train-00001.tar")
    s3.put("ds/train-00002.tar", b"another")
    result = pack(source, url)
    assert result.resumed_shards == result.num_shards - 2  # type: ignore[attr-defined]
    pack(source, tmp_path / "local")
    assert objects(s3) == tree(tmp_path / "local")


@pytest.mark.thorough
def test_two_that_start_together_make_no_mixture(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    """In the same moment, from two machines: each has a staging folder, and so a keeper, of its
    own."""
    local = {}
    for to in ("npy", "webdataset"):
        pack(source, tmp_path / to, to)
        local[to] = tree(tmp_path / to)
    s3.faults.delay = 0.02
    for number in range(3):
        url = f"{s3.url}/ds{number}"
        both = {
            to: forked(lambda to=to, url=url: pack(source, url, to, staging=tmp_path / f"of-{to}"))
            for to in local
        }
        ended = {to: end_of(process) for to, process in both.items()}
        won = [to for to, status in ended.items() if status == 0]
        assert len(won) == 1, ended
        assert objects(s3, f"ds{number}") == local[won[0]]
