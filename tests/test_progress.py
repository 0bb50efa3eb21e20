"""The bar of a pack: its total comes early, and what was done before is done from the start."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from conftest import make_images, write

import shardkit
from shardkit.errors import SampleError
from shardkit.system.progress import Progress


def test_what_was_done_before_is_no_part_of_the_rate() -> None:
    with Progress("packing", show=True) as progress:
        bar = progress._bar
        progress.expect(1000)
        progress.skip(900)
        time.sleep(0.2)
        progress.add(10, 10)
        bar.refresh()
        assert (bar.n, bar.initial, bar.total) == (910, 900, 1000)
        assert bar.format_dict["n"] == 910 and (bar.format_dict["rate"] or 0) < 60
        assert progress.num_samples == 10


class Seen(Progress):
    """Notes what it is told."""

    def __init__(self, what: str, show: bool | None = None) -> None:
        super().__init__(what, False)
        told.append(("begin", 0))

    def expect(self, num_samples: int) -> None:
        told.append(("expect", num_samples))

    def skip(self, num_samples: int) -> None:
        told.append(("skip", num_samples))

    def add(self, num_samples: int, num_bytes: int) -> None:
        told.append(("add", num_samples))


told: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _seen(monkeypatch: pytest.MonkeyPatch) -> None:
    told.clear()
    monkeypatch.setattr("shardkit.packing.run.Progress", Seen)


@pytest.mark.parametrize("workers", [1, 2])
def test_resumed_shards_count_from_the_start(workers: int, tmp_path: Path) -> None:
    source, dest = make_images(tmp_path / "source"), tmp_path / "dest"
    bad = write(source / "class9" / "bad.jpg", "no picture")
    options = {"to": "npy", "shard_size": "3kB", "workers": workers}
    with pytest.raises(SampleError):
        shardkit.pack(source, dest, **options)
    told.clear()
    result = shardkit.pack(source, dest, on_error="skip", max_rejects=1, **options)
    skipped = [number for what, number in told if what == "skip"]
    kinds = [what for what, _ in told]
    assert len(skipped) == result.resumed_shards > 0
    assert "add" not in kinds[: kinds.index("expect")] and kinds.index("skip") == 1
    added = sum(number for what, number in told if what == "add")
    assert sum(skipped) + added == 37 and ("expect", 37) in told
    assert bad.exists()


def test_several_workers_know_the_total_early(tmp_path: Path) -> None:
    """All is listed while the first shards are packed, not when the last is handed out."""
    source = make_images(tmp_path / "source", per_class=40)
    shardkit.pack(source, tmp_path / "d", to="npy", shard_size="3kB", workers=2)
    before = told[: told.index(("expect", 120))]
    assert sum(number for what, number in before if what == "add") < 60
