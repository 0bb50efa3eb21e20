"""The machine and a script's processes, watched: made-up /proc trees."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import write

from shardkit.measure.doctor.script import (
    Script,
    Snapshot,
    cores_busy,
    snapshot,
    throttled,
    used,
)
from shardkit.system import resources
from shardkit.system.resources import (
    TICKS_PER_S,
    CoreTime,
    Throttling,
    Usage,
    control_groups,
    usage_of,
)

# --- what the kernel counts ---------------------------------------------------------------

STAT = "7 (a) b (c) S 3 7 7 0 -1 4194304 101 0 5 2 150 50 30 20 20 0 4 0 4242 1 390 0\n"


@pytest.mark.parametrize("text", ["", "7 (x) S 1", "7 (x) S " + "y " * 30, "\0"])
def test_a_process_of_any_name(tmp_path: Path, text: str) -> None:
    assert usage_of(7, tmp_path) is None
    write(tmp_path / "proc/7/stat", text)
    assert usage_of(7, tmp_path) is None
    write(tmp_path / "proc/7/stat", STAT)
    assert usage_of(7, tmp_path) == Usage(4242, 250 / TICKS_PER_S)


def test_times_of_cores(tmp_path: Path) -> None:
    lines = ["cpu 9 9 9 9", "cpu0 10 1 5 100 20 2 3 4 10 0", "cpu11 1 1 1 1 1", "intr 5", "cpux 1"]
    write(tmp_path / "proc/stat", "\n".join(lines))
    assert resources.core_times(tmp_path) == {0: CoreTime(25, 145), 11: CoreTime(3, 5)}


V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


def test_throttling_of_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/mountinfo", V2)
    write(tmp_path / "proc/self/cgroup", "0::/pod/one\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "cpu.stat", "usage_usec 5\n")
    write(groups / "pod/cpu.stat", "usage_usec 5\nnr_periods 20\nnr_throttled 0\n")
    write(groups / "pod/one/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_usec 1500000\n")
    assert resources.throttling(control_groups(tmp_path)) == {
        groups / "pod/one": Throttling(10, 4, 1.5),
        groups / "pod": Throttling(20, 0, 0.0),
    }


def test_throttling_of_version_1(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/mountinfo", V1)
    write(tmp_path / "proc/self/cgroup", "1:cpu:/\n")
    write(
        tmp_path / "sys/fs/cgroup/cpu/cpu.stat",
        "nr_periods 10\nnr_throttled 4\nthrottled_time 1500000000\n",
    )
    found = resources.throttling(control_groups(tmp_path))
    assert [*found.values()] == [Throttling(10, 4, 1.5)]


def test_cores_that_were_busy() -> None:
    first = Snapshot(1, {0: CoreTime(500, 1000), 3: CoreTime(0, 1000), 4: CoreTime(0, 0)}, {})
    last = Snapshot(5, {0: CoreTime(900, 1400), 3: CoreTime(100, 1400)}, {})
    assert cores_busy(first, last) == 1.25
    assert cores_busy(first, first) == 0 and throttled(first, first) is None


@pytest.mark.parametrize(
    ("periods", "stopped", "seconds", "share"),
    [(100, 0, 0.0, 0.0), (100, 90, 1.0, 0.1), (100, 20, 60.0, 0.2), (0, 0, 0.0, 0.0)],
    ids=["never", "late in each period", "all 60 cores in some", "no quota"],
)
def test_the_share_that_a_quota_stopped(
    periods: int, stopped: int, seconds: float, share: float
) -> None:
    group, other = Path("/a"), Path("/b")
    first = Snapshot(0, {}, {group: Throttling(5, 5, 5.0), other: Throttling(0, 0, 0.0)})
    last = Snapshot(10, {}, {group: Throttling(5 + periods, 5 + stopped, 5.0 + seconds)})
    assert throttled(first, last) == pytest.approx(share)


# --- what a script used -------------------------------------------------------------------

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\n"
CHILDREN = (
    "import subprocess, sys\nfor _ in range(2):\n    subprocess.run([sys.executable, '-S', '-c',"
)
CHILDREN += " 'import time\\nwhile time.process_time() < 0.15: pass'])\nprint(flush=True)\n"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("code", [f"{BURN}input()", BURN, f"{CHILDREN}input()", CHILDREN])
def test_a_script_that_burns_a_core(code: str, tmp_path: Path) -> None:
    """Itself or by children that have ended; while it lives, and when it has ended."""
    first = snapshot()
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        script = Script(process, tmp_path)
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            while "input" not in code and not script.has_ended():
                time.sleep(0.01)
            found = used(first, script.processes())
        finally:
            process.kill()
    assert script.has_ended()
    assert 0.25 <= found.script_cores * found.seconds < 2, "cut down to whole ticks"
    assert found.cores >= 1


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    found = used(snapshot(tmp_path), {1, os.getpid()}, tmp_path)
    assert (found.script_cores, found.cores_busy, found.throttled) == (0, 0, None)
