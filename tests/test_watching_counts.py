"""The operations of one step: FLOPs by hand, the layout of pictures, what is in use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from shardkit.watching.counting import Counter
from shardkit.watching.records import Records, read_records


def counted(tmp_path: Path, step: object, flags: set[str]) -> dict[str, object]:
    records = Records(str(tmp_path))
    counter = Counter(records, flags)
    assert counter.start()
    step()  # type: ignore[operator]
    counter.stop()
    records.close()
    ((event,),) = read_records(tmp_path).values()
    return event


def test_flops_of_a_step_by_hand(tmp_path: Path) -> None:
    """A product of (64, 512) and (512, 1024) forward, and two of that size backward."""
    model = nn.Linear(512, 1024)
    batch = torch.ones(64, 512, requires_grad=True)
    event = counted(tmp_path, lambda: model(batch).sum().backward(), set())
    assert event["flops"] == pytest.approx(3 * 2 * 64 * 512 * 1024, rel=0.05)
    assert event["dtype"] == "float32"
    assert 5 < int(str(event["ops"])) < 40


@pytest.mark.parametrize("is_last", [False, True])
def test_the_layout_of_pictures(tmp_path: Path, is_last: bool) -> None:
    model, pictures, flags = nn.Conv2d(3, 4, 3), torch.ones(2, 3, 8, 8), set[str]()
    if is_last:
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    counted(tmp_path, lambda: model(pictures), flags)
    assert flags == ({"channels_last"} if is_last else set())


def test_what_was_compiled_is_not_looked_into(tmp_path: Path) -> None:
    assert not Counter(Records(str(tmp_path)), {"compile"}).start()
