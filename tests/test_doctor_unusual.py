"""Scripts that do unusual things with their loader behave under the doctor as they do without."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import write
from test_doctor import QUICK, watch

pytestmark = pytest.mark.usefixtures("lean_torch")

HEAD = """
import time, torch
import numpy as np
from torch.utils.data import DataLoader, Dataset, IterableDataset, BatchSampler, RandomSampler

class Numbers(Dataset):
    def __init__(self, size=160): self.size = size
    def __len__(self): return self.size
    def __getitem__(self, i): return {"x": torch.ones(8) * (i % 4), "labels": i % 4}

torch.set_num_threads(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)

def step(batch):
    loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"])
    optimizer.zero_grad(); loss.backward(); optimizer.step(); time.sleep(0.001)
"""

SCRIPTS = {
    "an iterator that outlives an epoch": """
class Forever:
    def __init__(self, sampler): self.sampler = sampler
    def __iter__(self):
        while True: yield from iter(self.sampler)

class Infinite(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
        self.iterator = super().__iter__()
    def __len__(self): return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)): yield next(self.iterator)

loader, counts = Infinite(Numbers(), 4, num_workers=1), []
for epoch in range(4):
    counts.append(0)
    for batch in loader: step(batch); counts[-1] += 1
print(counts)
""",
    "an iterable, and a schedule of so many steps": """
class Stream(IterableDataset):
    def __len__(self): return 160
    def __iter__(self): return (Numbers()[i] for i in range(160))

loader = DataLoader(Stream(), 4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4 * 40)
counts = []
for epoch in range(4):
    counts.append(0)
    for batch in loader: step(batch); schedule.step(); counts[-1] += 1
print(counts)
""",
    "a batch that is changed in place": """
most = 0
for epoch in range(4):
    for batch in DataLoader(Numbers(), 4):
        batch["x"].mul_(10).add_(1)
        most = max(most, batch["x"].max().item())
        step(batch)
print(most)
""",
    "an epoch that is left in the counted step": """
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
for epoch in range(3):
    for i, batch in enumerate(DataLoader(Numbers(), 4)):
        step(batch)
        if i == 3: break
    del batch
print(len(_get_current_dispatch_mode_stack()))
""",
    "two loaders at once": """
class Slow(Numbers):
    def __getitem__(self, i):
        time.sleep(0.003)
        return super().__getitem__(i)

count = 0
for epoch in range(4):
    for batch, other in zip(DataLoader(Numbers(), 4), DataLoader(Slow(), 4)):
        step(batch); count += 1
print(count)
""",
    "validation within the epoch": """
train, valid = DataLoader(Numbers(), 4), DataLoader(Numbers(32), 4)
for epoch in range(3):
    for number, batch in enumerate(train):
        step(batch)
        if number % 10 == 9: print(sum(int(one["labels"].sum()) for one in valid))
""",
    "a profiler of its own": """
import warnings
from torch.profiler import profile, schedule
warnings.simplefilter("ignore")
seen = []
def ready(prof): seen.append(prof.step_num)
with profile(schedule=schedule(wait=3, warmup=2, active=20), on_trace_ready=ready) as prof:
    for epoch in range(4):
        for batch in DataLoader(Numbers(), 4): step(batch); prof.step()
print(seen)
""",
}


USUAL = {
    "an iterator that outlives an epoch": "[40, 40, 40, 40]\n",
    "an iterable, and a schedule of so many steps": "[40, 40, 40, 40]\n",
    "a batch that is changed in place": "31.0\n",
    "an epoch that is left in the counted step": "0\n",
    "two loaders at once": "160\n",
    "validation within the epoch": "48\n" * 12,
    "a profiler of its own": "[25, 50, 75, 100, 125, 150, 160]\n",
}
"""What each says without the doctor. To run them for it, too, took three seconds of CPU each, for
torch to be imported."""

QUICK_ONES = ("a batch that is changed in place", "an iterable, and a schedule of so many steps")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK_ONES else pytest.mark.thorough)
        for name in SCRIPTS
    ],
)
def test_a_script_does_what_it_does_without(name: str, tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", HEAD + SCRIPTS[name])
    found = watch([sys.executable, script], tmp_path, replace(QUICK, traces="yes"))
    assert (tmp_path / "out").read_text() == USUAL[name]
    assert found.exit_code == 0
    if "left in the counted" not in name:
        assert found.evidence.ranks
    if "changed in place" in name:
        assert any("change them in place" in note for note in found.evidence.notes)
    if name == "validation within the epoch":  # which is a loop of its own
        assert found.evidence.ranks[0].loader.num_batches == 40


def test_waiting_for_a_loader_beside_the_own_is_waiting(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", HEAD + SCRIPTS["two loaders at once"])
    (rank,) = watch([sys.executable, script], tmp_path, QUICK).evidence.ranks
    assert rank.step.wait > 0.012 and rank.rates.replay is not None


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "loop"),
    [
        ("an iterable", "for batch in DataLoader(Waiting(), 4): step(batch)"),
        ("a generator", "import shardkit\nfor batch in shardkit.watch(batches()): step(batch)"),
    ],
)
def test_a_batch_that_is_made_is_no_replayed_one(name: str, loop: str, tmp_path: Path) -> None:
    """Else a loop that waits for its batches would be as fast with loading free."""
    made = """
class Waiting(IterableDataset):
    def __iter__(self):
        for i in range(800): time.sleep(0.005); yield Numbers()[0]

def batches(): yield from DataLoader(Waiting(), 4)

"""
    script = write(tmp_path / "train.py", HEAD + made + loop)
    evidence = watch([sys.executable, script], tmp_path, QUICK).evidence
    (rank,) = evidence.ranks
    assert rank.rates.replay is None and rank.step.wait >= 0.004
