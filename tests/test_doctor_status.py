"""The line that says how far a run of the doctor is, on a simulated clock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardkit.measure.doctor import script
from shardkit.measure.doctor.script import StatusLine


def test_how_far_a_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, when a stage begins, and every ten seconds."""
    now, told = [100.0], []
    monkeypatch.setattr(script.time, "monotonic", lambda: now[0])
    line = StatusLine(tmp_path, told.append, every_s=10)

    def after(seconds: float, stage: str = "") -> list[str]:
        now[0] += seconds
        line.look(stage)
        said = [text.removeprefix("shardkit doctor: ") for text in told]
        told.clear()
        return said

    assert after(0) == ["0 s: no training loop was seen yet"]
    assert after(9) == [] and after(1) == ["10 s: no training loop was seen yet"]
    (tmp_path / "7.begun").touch()
    steps = [{"is": "step"}] * 5
    events = [*steps, {"is": "session", "steps": 1200}, *steps[:3]]
    (tmp_path / "7.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    assert after(1) == ["11 s: 3 of 1,200 steps were looked at"] and after(5) == []
    assert after(1, "a profile is taken") == ["17 s: a profile is taken"]
