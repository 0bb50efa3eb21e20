"""What must not grow: opening a huge index, and memory while packing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import EACH_FORMAT, make_images, picture, run_python, write

SCRIPTS = Path(__file__).parents[1] / "scripts"

OPEN = """
import sys
import numpy as np
import shardkit
ds = shardkit.open(sys.argv[1])
rows = np.random.default_rng(0).integers(0, len(ds) // 4096, 64) * 4096
batch = ds.read(rows)
assert [len(v) for v in batch["jpg"]] == [1024] * 64
assert (batch["cls"] == rows % 1000).all()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(ds), int(peak.split()[1]) * 1024)
"""

PACK = """
import sys
import shardkit
shardkit.pack(sys.argv[1], sys.argv[2], to=sys.argv[3], shard_size=sys.argv[4], workers=0)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) * 1024)
"""


def test_an_index_of_100_million_rows_stays_on_disk(tmp_path: Path) -> None:
    script = [sys.executable, SCRIPTS / "tools" / "make_big_index.py", tmp_path / "big", "--sparse"]
    subprocess.run(script, check=True)
    length, peak = map(float, run_python(OPEN, tmp_path / "big").split())
    assert length == 100_000_000
    assert peak < 100e6


@pytest.mark.parametrize("container", EACH_FORMAT)
def test_packing_holds_one_shard_in_memory(container: str, tmp_path: Path) -> None:
    blob = picture(1) + bytes(200_000)
    for i in range(300):  # 60 MB
        write(tmp_path / "in" / f"c{i % 3}" / f"{i:04d}.jpg", blob + b"%d" % i)
    peak = int(run_python(PACK, tmp_path / "in", tmp_path / "out", container, "20MB"))
    assert peak < 20e6 + 100e6


def test_opening_does_not_open_shards(tmp_path: Path) -> None:
    import shardkit

    source = make_images(tmp_path / "in", per_class=100)
    shardkit.pack(source, tmp_path / "out", to="npy", shard_size="1kB", workers=0)
    index = json.loads((tmp_path / "out" / "shardkit.json").read_bytes())
    assert len(index["splits"]["train"]["shards"]) > 100
    for shard in (tmp_path / "out").glob("*.npy"):
        shard.rename(shard.with_suffix(".gone"))
    ds = shardkit.open(tmp_path / "out")
    assert len(ds) == 300 and ds.column("cls").sum() == 300
    with pytest.raises(
        shardkit.errors.ShardMissingError, match=r"train-00000\.\w+\.npy is missing"
    ):
        ds[0]
