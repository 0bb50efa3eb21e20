"""Small files in a bucket are packed as the same files of this machine."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import cast

import pytest
from conftest import make_images, tree
from dying import end_of, forked
from keepers import kill_keepers
from s3_server import S3, s3, s3_endpoint  # noqa: F401

import shardkit
from shardkit.errors import CorpusError, DestinationError, StorageError, UsageError
from shardkit.remote import connection


@pytest.fixture(autouse=True)
def _quickly(forked_keepers: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pack(source: Path | str, dest: Path) -> object:
    return shardkit.pack(source, dest, to="webdataset", workers=0, progress=False)


@pytest.fixture
def source(tmp_path: Path, s3: S3) -> Path:  # noqa: F811
    """A folder, and the same in the bucket below raw/."""
    folder = make_images(tmp_path / "raw")
    odd = next(folder.rglob("*.jpg"))
    (odd.parent / "a b%20c+ü.jpg").write_bytes(odd.read_bytes())
    for path in folder.rglob("*"):
        if path.is_file():
            s3.put(f"raw/{path.relative_to(folder)}", path.read_bytes())
    s3.put(f"raw/{odd.parent.relative_to(folder)}/", b"")  # as consoles make for a folder
    s3.put("raw/", b"")
    return folder


@pytest.mark.parametrize("kind", ["", "503", "reset"])
def test_equal_to_packing_the_local_tree(source: Path, s3: S3, tmp_path: Path, kind: str) -> None:  # noqa: F811
    s3.faults.kind, s3.faults.rate = kind, 0.1
    pack(source, tmp_path / "here")
    pack(f"{s3.url}/raw", tmp_path / "there")
    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    assert not (tmp_path / "there.spool").exists()
    pack(source.as_uri(), tmp_path / "file")
    assert tree(tmp_path / "here") == tree(tmp_path / "file")


def test_an_object_replaced_or_gone_is_an_error_and_what_is_there_stays(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
) -> None:
    key = next(key for key in s3.objects("raw/") if key.endswith(".jpg") and " " not in key)
    data, done = s3.get(key), []

    def hook(method: str, path: str) -> None:
        if path.endswith(key) and not done:
            done.append(path)
            s3.put(key, data + b"more")

    s3.faults.hook = hook
    with pytest.raises(StorageError, match="was replaced since it was listed") as caught:
        pack(f"{s3.url}/raw", tmp_path / "there")
    assert key in str(caught.value)
    assert not (tmp_path / "there").exists()
    s3.put(key, data)
    pack(f"{s3.url}/raw", tmp_path / "there")
    pack(source, tmp_path / "here")
    assert tree(tmp_path / "here") == tree(tmp_path / "there")


def test_what_cannot_be_packed_is_one_clear_line(s3: S3, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(CorpusError, match="there is no object below s3://"):
        pack(f"{s3.url}/raw", tmp_path / "there")
    s3.put("raw/a", b"1")
    s3.put("raw/a/b.txt", b"2")
    with pytest.raises(CorpusError, match="is an object, and the folder of others"):
        pack(f"{s3.url}/raw", tmp_path / "there")
    with pytest.raises(UsageError, match="does not list"):
        pack("https://host/raw", tmp_path / "there")


@pytest.mark.parametrize("odd", ["..", "%2e%2E", "..%2fx", "a/../..", ".", "a//b", "%00"])
def test_a_url_with_parts_that_name_no_folder_touches_nothing(odd: str, tmp_path: Path) -> None:
    """What is fetched for it would lie beside the spool, where all that is not listed goes."""
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="which names no folder"):
        pack(f"s3://bucket/raw/{odd}", tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("key", ["a//b.jpg", "tab\there.jpg", "n" * 300, "../up.jpg"])
def test_a_key_that_cannot_be_a_path_is_an_error_at_once(s3: S3, tmp_path: Path, key: str) -> None:  # noqa: F811
    s3.put(f"raw/{key}", b"1")
    began = time.monotonic()
    with pytest.raises((CorpusError, StorageError), match=r"path segment|which no file|a path"):
        pack(f"{s3.url}/raw", tmp_path / "there")
    assert time.monotonic() - began < 20


def test_a_source_that_is_called_as_the_lock(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    for path in source.rglob("*.jpg"):
        s3.put(f".held/{path.parent.name}/{path.name}", path.read_bytes())
    pack(f"{s3.url}/.held", tmp_path / "there")
    assert shardkit.verify(tmp_path / "there", against=source).ok


def test_a_destination_that_is_taken_is_said_before_anything_is_fetched(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
) -> None:
    shardkit.pack(source, f"{s3.url}/there", to="npy", workers=0, progress=False)
    s3.requests.clear()
    with pytest.raises(DestinationError, match="already holds a dataset"):
        shardkit.pack(f"{s3.url}/raw", f"{s3.url}/there", to="npy", workers=0, progress=False)
    assert not [path for _, path in s3.requests if "/raw" in path]
    assert not [*(tmp_path / "cache" / "shardkit" / "staging").glob("*.spool")]


def test_from_bucket_to_bucket(source: Path, s3: S3, tmp_path: Path) -> None:  # noqa: F811
    pack(source, tmp_path / "here")
    shardkit.pack(f"{s3.url}/raw", f"{s3.url}/there", to="webdataset", workers=0, progress=False)
    there = {key.removeprefix("there/"): s3.get(key) for key in s3.objects("there/")}
    assert there == {
        path.name: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()
    }
    assert not [*(tmp_path / "cache" / "shardkit" / "staging").glob("*.spool")]


@pytest.mark.thorough
@pytest.mark.parametrize("whom", ["packer", "keeper", "both"])
def test_killed_while_it_fetches_the_same_call_goes_on(
    source: Path,
    s3: S3,  # noqa: F811
    tmp_path: Path,
    whom: str,
) -> None:
    pack(source, tmp_path / "here")
    seen: list[str] = []

    def slow(method: str, path: str) -> None:
        seen.append(path)
        time.sleep(0.2)

    s3.faults.hook = slow
    child = forked(lambda: pack(f"{s3.url}/raw", tmp_path / "there"))
    end = time.monotonic() + 20
    while len(seen) < 6 and time.monotonic() < end:
        time.sleep(0.01)
    if whom != "packer":
        assert kill_keepers(tmp_path / "cache")
    if whom != "keeper":
        os.kill(cast(int, child.pid), signal.SIGKILL)
    end_of(child)
    s3.faults.hook = None
    pack(f"{s3.url}/raw", tmp_path / "there")
    assert tree(tmp_path / "here") == tree(tmp_path / "there")
    assert not (tmp_path / "there.spool").exists()
