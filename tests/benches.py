"""Short benches, and what they measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import make_images

import shardkit
from shardkit.measure.bench import cases

Report = dict[str, Any]


@pytest.fixture(name="_quick")
def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches a worker are enough to see that all works."""
    monkeypatch.setattr(cases, "LEAST_EACH", 2)
    monkeypatch.setattr(cases, "pieces", lambda wanted, workers: 2 * workers)


quick = pytest.mark.usefixtures("_quick")


@pytest.fixture(name="images")
def make_folder(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images")


def bench(*targets: Path, **options: Any) -> Report:
    given = {"workers": [0], "batch_size": 8, "rounds": 2, **options}
    found = shardkit.bench(*targets, **given)
    return dict(json.loads(json.dumps(found.to_json(), allow_nan=False)))


def packed(source: Path, name: str = "dataset", to: str = "npy", **options: Any) -> Path:
    dest = source.parent / name
    given = {"shard_size": "3kB", "workers": 0, "progress": False, **options}
    shardkit.pack(source, dest, to=to, **given)
    return dest
