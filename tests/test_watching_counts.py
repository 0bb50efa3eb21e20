"""The operations of one step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from shardkit.watching.event_log import Records, read_records
from shardkit.watching.session import Counter


def test_operations_of_a_step_and_their_dtype(tmp_path: Path) -> None:
    """A product of (64, 512) and (512, 1024) forward, and two of that size backward."""
    model = nn.Linear(512, 1024).to(torch.bfloat16)
    batch = torch.ones(64, 512, dtype=torch.bfloat16, requires_grad=True)
    records = Records(str(tmp_path))
    counter = Counter(records, {"cuda"})
    assert counter.start()
    model(batch).sum().backward()
    counter.stop()
    records.flush()
    records.forget()
    ((event,),) = read_records(tmp_path).values()
    assert event["flops"] == 3 * 2 * 64 * 512 * 1024
    assert event["dtype"] == "bfloat16" and 3 < event["ops"] < 40
    assert event["flags"] == ["cuda"]


def test_what_was_compiled_is_not_looked_into(tmp_path: Path) -> None:
    assert not Counter(Records(str(tmp_path)), {"compile"}).start()
