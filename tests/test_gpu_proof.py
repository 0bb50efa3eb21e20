"""gpu_proof.py, rehearsed on the CPU: all but the calls of CUDA themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / "scripts" / "tools"
PROGRAM = TOOLS / "gpu_proof.py"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(TOOLS))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield import_module("gpu_figures")
    torch.set_num_threads(threads)


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return import_module("gpu_proof")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(str(TOOLS))
        made: tuple[Path, Path] = import_module("gpu_proof").make_data(
            tmp_path_factory.mktemp("gpu"), is_quick=True
        )
        return made


def setting(figures: ModuleType, data: tuple[Path, Path]) -> Any:
    return figures.Setting(*data, torch.device("cpu"), seconds=0.01, is_quick=True)


# --- figures ------------------------------------------------------------------------------

ROWS = {
    "wait": ["the step alone", "raw pictures", "JPEGs"],
    "bus": ["float32", "uint8", "uint8, normalised there"],
    "prefetcher": ["to(device)", "pin_memory, non_blocking", "CudaPrefetcher"],
    "decode": ["shardkit decodes crops, then copies"],
    "launches": ["the step alone", "2 threads", "2 processes"],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_figure_has_its_rows(
    figures: ModuleType,
    data: tuple[Path, Path],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures.Setting, "workers", 2)
    rows, lacking = figures.FIGURES[name](setting(figures, data))
    assert [row.name for row in rows if row.name != "DALI, mixed"] == ROWS[name]
    assert all(row.samples_per_s > 0 for row in rows)
    assert [row.ratio is None for row in rows] == [True, *[False] * (len(rows) - 1)]
    if name == "wait":
        assert [row.note.partition(" ")[0] for row in rows] == ["bfloat16,", "waits", "waits"]
    if name == "decode":
        assert (
            lacking["nvJPEG, whole pictures, then resized"]
            == "it needs torchvision and a CUDA device"
        )
        assert len(rows) + len(lacking) == 3


def test_a_trace_without_copies_is_no_figure(
    figures: ModuleType, data: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures.Setting, "workers", 2)
    with pytest.raises(figures.LackingError, match="0 copies to the device"):
        figures.FIGURES["overlap"](setting(figures, data))


def test_copies_of_a_trace_are_told_from_kernels(figures: ModuleType) -> None:
    def event(name: str, start: float, end: float, kind: str = "CUDA") -> SimpleNamespace:
        span = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(name=name, device_type=SimpleNamespace(name=kind), time_range=span)

    events = [
        event("Memcpy HtoD (Pinned -> Device)", 0, 4),
        event("Memcpy DtoH (Device -> Pageable)", 0, 4),
        event("Memset (Device)", 0, 4),
        event("cudaLaunchKernel", 0, 4, "CPU"),
        event("sm90_gemm", 1, 3),
    ]
    traced = SimpleNamespace(events=lambda: events)
    assert figures.copied_meanwhile(traced) == pytest.approx(0.5)


def test_share_of_copies_beside_kernels(figures: ModuleType) -> None:
    covered = sys.modules["gpu_setting"].covered
    assert covered([(0, 4), (10, 12)], [(1, 3), (2, 5), (11, 20)]) == pytest.approx(4 / 6)
    assert covered([(0, 4)], []) == 0
    assert covered([], [(0, 4)]) == 0


def test_the_model_is_resnet_50(figures: ModuleType) -> None:
    with torch.device("meta"):
        model = sys.modules["gpu_model"].resnet()
    assert sum(each.numel() for each in model.parameters()) == 25_557_032  # torchvision's


def test_an_epoch_is_longer_than_anything_timed(
    figures: ModuleType, data: tuple[Path, Path]
) -> None:
    made = setting(figures, data)
    rows = made.loader(made.jpegs, workers=0).dataset
    assert len(rows) >= 1_000_000
    assert rows.read([0, 24, 48])["jpg"] == [bytes(rows.dataset[0]["jpg"])] * 3


# --- the program --------------------------------------------------------------------------


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *map(str, args)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_a_rehearsal_writes_figures_tests_and_reasons(tmp_path: Path) -> None:
    write_test = "import pytest\n@pytest.mark.gpu\ndef test_one(): pass\ndef test_two(): pass\n"
    (tmp_path / "test_it.py").write_text(write_test)
    options = ["--device", "cpu", "--quick", "--out", tmp_path / "out", "--tests", tmp_path]
    done = run(*options, "--only", "bus", "decode")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert found["tests"]["passed"]
    assert found["tests"]["summary"].startswith("1 passed, 1 deselected")
    assert [row["name"] for row in found["figures"]["bus"]["rows"]] == ROWS["bus"]
    page = (tmp_path / "out" / "gpu.md").read_text()
    assert f"- Ran: {found['date']}\n- GPU: CPU (a rehearsal)\n" in page
    assert "\n| uint8 | " in page
    assert "\n- nvJPEG, whole pictures, then resized was not measured: it needs torch" in page


def test_without_a_gpu_nothing_is_run_or_written(
    proof: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_proof.py", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match="sees no GPU: nothing was run, nothing is written"):
        proof.main()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--device=cpu", "--quick", "--only=bus"])
def test_a_part_does_not_go_to_the_page(
    proof: ModuleType,
    option: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_proof.py", option])
    with pytest.raises(SystemExit, match="2"):
        proof.main()
    assert "is for a whole run on a GPU" in capsys.readouterr().err


def test_both_programs_name_the_same_figures(proof: ModuleType, figures: ModuleType) -> None:
    assert list(proof.FIGURES) == list(figures.FIGURES)


def options(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"device": "cpu", "quick": True, "figure_s": 60.0} | changed)


def test_a_figure_that_takes_too_long_is_named(proof: ModuleType, data: tuple[Path, Path]) -> None:
    clock = proof.Clock(time.monotonic() + 60)
    found = proof.run_figure("bus", data, options(figure_s=1.0), clock)
    assert found == {"failed": "ended at its limit of 1 s"}


def test_a_figure_that_fails_is_named(proof: ModuleType, tmp_path: Path) -> None:
    clock = proof.Clock(time.monotonic() + 60)
    nowhere = tmp_path / "none", tmp_path / "none"
    found = proof.run_figure("decode", nowhere, options(), clock)
    assert "DatasetMissingError" in found["failed"]
    assert "Failed: " in "\n".join(proof.section("decode", found))


def test_nothing_outlives_its_limit(proof: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    code = f"""
import os, pathlib, time
if os.fork() == 0:
    pathlib.Path({str(path)!r}).write_text(str(os.getpid()))
time.sleep(60)
"""
    with pytest.raises(proof.TimeLimitError, match="ended at its limit of 3 s"):
        proof.run(["-c", code], 3.0)
    started = time.monotonic()
    while Path("/proc", path.read_text(), "cwd").exists():  # killed, but not yet gone
        assert time.monotonic() < started + 10
        time.sleep(0.01)


def test_tests_that_fail_are_no_proof(proof: ModuleType, tmp_path: Path) -> None:
    write_test = "import pytest\n@pytest.mark.gpu\ndef test_one(): raise SystemError\n"
    (tmp_path / "test_it.py").write_text(write_test)
    clock = proof.Clock(time.monotonic() + 60)
    assert proof.run_tests([str(tmp_path)], clock) | {"summary": ""} == {
        "passed": False,
        "summary": "",
    }


def test_the_tests_that_are_run(proof: ModuleType) -> None:
    names = {Path(path).name for path in proof.marked()}
    assert {"test_prefetch.py", "test_images_nvjpeg.py"} <= names


def test_the_last_part_has_what_is_left_of_the_time(proof: ModuleType) -> None:
    clock = proof.Clock(time.monotonic() + 30)
    assert clock.limit(10) == 10
    assert 29 < clock.limit(60) <= 30
    assert proof.Clock(0.0).limit(60) == 1
    assert proof.TOTAL_S + 1 * len(proof.FIGURES) < 8 * 60
