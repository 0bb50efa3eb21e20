"""The verdict on training scripts that are each sick in one way, from what was recorded of them.

``check_doctor.py --record`` recorded them on two cores that did other work, too; on a quiet machine
``check_doctor.py`` runs them, and measures what a cure brings. A verdict here takes no time, and
does not depend on what the machine does.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from doctor_evidence import RECORDED, recorded

from shardkit.measure.doctor.diagnose import diagnose
from shardkit.measure.doctor.doctor_report import lines

SCRIPTS = Path(__file__).parent.parent / "scripts" / "benchmarks"
sys.path.append(str(SCRIPTS))

from check_doctor import EXPECTED, MORE, SICK, make_data  # noqa: E402
from check_doctor import diagnose as run_and_diagnose  # noqa: E402


def test_no_script_mentions_us() -> None:
    scripts = [path for path in SICK.glob("*.py") if path.stem not in ("make_data", "training")]
    assert {path.stem for path in scripts} == set(EXPECTED)
    assert not any("shardkit" in path.read_text() for path in scripts)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.json")))
def test_each_is_diagnosed(name: str) -> None:
    seen = recorded(name)
    said = diagnose(seen)
    assert {said.cause} == EXPECTED[name] and said.change
    assert said.rank == (2 if name == "straggler" else None)
    applied = said.apply
    if name == "restart_workers":
        assert applied == {"persistent_workers": True}
    if name == "too_few_workers":
        assert applied is not None and (applied["num_workers"] or 0) >= 1
    if name == "iterator_each_step":
        assert applied is None and "iterator_each_step.py:" in said.change
    assert not [line for line in lines(seen, said) if re.search(r"\d[eE][+-]?\d", line)]


@pytest.mark.thorough
@pytest.mark.usefixtures("lean_torch")
def test_several_ranks_are_one_report(tmp_path: Path) -> None:
    """The verdict is another matter: it needs a machine that does nothing else."""
    report = run_and_diagnose("straggler", make_data(tmp_path), *MORE["straggler"])
    assert [one["rank"] for one in report["evidence"]["ranks"]] == list(range(4))
    assert report["diagnosis"]["sentence"] and report["diagnosis"]["change"]
