"""Datasets behind a URL give the batches of the same dataset on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_images
from range_server import FAULTS, serving

import shardkit
from shardkit.remote import connection, storage


@pytest.mark.parametrize("kind", ["", *FAULTS])
def test_batches_are_the_same_whatever_fails_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.2)
    monkeypatch.setattr(storage, "RETRY_S", 10.0)
    source = make_images(tmp_path / "source")
    shardkit.pack(source, tmp_path / "at" / "ds", to="webdataset", workers=0, progress=False)
    local = shardkit.open(tmp_path / "at" / "ds", decode=False)
    with serving(tmp_path / "at") as server:
        server.faults.kind, server.faults.first = kind, 1 if kind else 0
        remote = shardkit.open(f"{server.url}/ds", decode=False, cache_dir=tmp_path / "cache")
        assert [remote[row] for row in range(len(local))] == [local[r] for r in range(len(local))]
        assert server.failed == bool(kind)
