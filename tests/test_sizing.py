"""What a dataset comes to on paper is what one comes to that is packed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts" / "tools"))

import simulate_cluster  # type: ignore[import-not-found]
import sizing  # type: ignore[import-not-found]


def test_the_index_is_as_large_as_was_said(tmp_path: Path) -> None:
    measured = sizing.measure(tmp_path, small=100, large=400)
    found = sizing.packed(tmp_path / "another", 700, 20_000)
    shards = sum(name.endswith(".tar") for name in found)
    rows = sum(found[f"train.{end}"] for end in ("rows", "names"))
    told = measured.fixed_bytes + shards * measured.shard_bytes
    assert shards > 3
    assert 700 * measured.row_bytes == pytest.approx(rows, rel=0.02)
    assert told == pytest.approx(found["shardkit.json"], rel=0.05)


def test_more_than_may_be_is_too_much() -> None:
    measured = sizing.Measured(100, 80, 1000)
    for size in sizing.SIZES.values():
        most = sizing.limit_samples(size, measured)
        for factor, fits in ((0.99, True), (1.01, False)):
            paper = sizing.Paper(int(most * factor), size, measured)
            assert (paper.manifest_bytes <= sizing.MAX_INDEX_BYTES) == fits


def test_a_cluster_is_simulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is arithmetic is right, whatever was measured."""
    options = ["--count", "20000", "--within", str(tmp_path), "--samples", "1e8", "--nodes", "10"]
    monkeypatch.setattr(sys, "argv", ["simulate_cluster.py", *options, "--opens", "10000"])
    simulate_cluster.main()
    said = capsys.readouterr().out
    assert "| open each file once | 2.78 h |" in said
    assert "| each of as many parts lists all of them | 27.8 h |" in said
    assert "| read all bytes, and write them | 29.3 min |" in said
    assert len(re.findall(r"[0-9.]+ µs", said)) == 3
