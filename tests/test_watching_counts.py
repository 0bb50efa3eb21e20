"""The operations of one step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from shardkit.watching.records import Records, read_records
from shardkit.watching.tools import Counter


def test_operations_of_a_step_and_their_dtype(tmp_path: Path) -> None:
    model = nn.Linear(8, 4).to(torch.bfloat16)
    batch = torch.ones(2, 8, dtype=torch.bfloat16)
    records = Records(str(tmp_path))
    counter = Counter(records, {"cuda"})
    assert counter.start()
    model(batch).sum().backward()
    counter.stop()
    records.close()
    ((event,),) = read_records(tmp_path).values()
    assert event["dtype"] == "bfloat16" and 3 < event["ops"] < 40
    assert event["flags"] == ["cuda"]


def test_what_was_compiled_is_not_looked_into(tmp_path: Path) -> None:
    assert not Counter(Records(str(tmp_path)), {"compile"}).start()
