"""Datasets written behind a URL: the bytes of the local ones, whole or not there at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_images, tree
from s3_server import S3, s3, s3_endpoint  # noqa: F401

import shardkit
from shardkit.errors import DestinationError, StorageError, UsageError
from shardkit.packing import remote_destination
from shardkit.remote import connection, target, writing

CLAIM = "shardkit.claim"


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keepers end soon, and all that is kept lies below this test's folder."""
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setattr(target, "RETRY_S", 20.0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pack(source: Path, dest: Path | str, to: str = "webdataset", **options: object) -> object:
    options = {"shard_size": "3kB", "workers": 0, "progress": False, **options}
    return shardkit.pack(source, dest, to=to, **options)  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_images(tmp_path / "source")


def objects(s3: S3, folder: str = "ds") -> dict[str, bytes]:  # noqa: F811
    return {key.removeprefix(f"{folder}/"): data for key, data in s3.objects(f"{folder}/").items()}


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
