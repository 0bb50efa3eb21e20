"""The machine and a script's processes, watched: made-up /proc trees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from conftest import write

from shardkit.measure.doctor.monitor import Monitor, Snapshot, Tally, cores_busy, throttled
from shardkit.system import counters
from shardkit.system.counters import CoreTime, Throttling
from shardkit.system.processes import TICKS_PER_S, Usage, usage_of
from shardkit.system.resources import control_groups

# --- a tally of processes that come and go ------------------------------------------------


def tally_of(*looks: dict[int, tuple[int, float]]) -> float:
    """Of looks at processes: id -> parent and seconds."""
    tally = Tally()
    for seen in looks:
        tally.add({pid: Usage(parent, 500, cpu_s) for pid, (parent, cpu_s) in seen.items()})
    return tally.total


def test_no_process_is_forgotten_or_counted_twice() -> None:
    assert tally_of({7: (1, 1.0), 8: (1, 2.0)}, {7: (1, 1.5), 8: (1, 2.5)}) == 4.0
    assert tally_of({7: (1, 3.0)}, {}) == 3.0, "its parent is none of ours"
    assert tally_of({7: (1, 1.0), 8: (7, 2.0)}, {7: (1, 3.7)}) == 3.7, "its parent has it"
    assert tally_of({7: (1, 1.0), 8: (7, 2.0)}, {}) == 3.0
    family = {7: (1, 1.0), 8: (7, 2.0), 9: (8, 4.0)}
    assert tally_of(family, {7: (1, 7.2)}) == 7.2, "a grandchild's time comes by way of its parent"


def test_an_id_that_is_used_again() -> None:
    tally = Tally()
    tally.add({7: Usage(1, 500, 3.0)})
    tally.add({7: Usage(1, 900, 1.0)})
    assert tally.total == 4.0


# --- what the kernel counts ---------------------------------------------------------------

STAT = "7 (a) b (c) S 3 7 7 0 -1 4194304 101 0 5 2 150 50 30 20 20 0 4 0 4242 1 390 0\n"


@pytest.mark.parametrize("text", ["", "7 (x) S 1", "7 (x) S " + "y " * 30, "\0"])
def test_a_process_of_any_name(tmp_path: Path, text: str) -> None:
    assert usage_of(7, tmp_path) is None
    write(tmp_path / "proc/7/stat", text)
    assert usage_of(7, tmp_path) is None
    write(tmp_path / "proc/7/stat", STAT)
    assert usage_of(7, tmp_path) == Usage(3, 4242, 250 / TICKS_PER_S)


def test_times_of_cores(tmp_path: Path) -> None:
    lines = ["cpu 9 9 9 9", "cpu0 10 1 5 100 20 2 3 4 10 0", "cpu11 1 1 1 1 1", "intr 5", "cpux 1"]
    write(tmp_path / "proc/stat", "\n".join(lines))
    assert counters.core_times(tmp_path) == {0: CoreTime(25, 145), 11: CoreTime(3, 5)}


V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


def test_throttling_of_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/mountinfo", V2)
    write(tmp_path / "proc/self/cgroup", "0::/pod/one\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "cpu.stat", "usage_usec 5\n")
    write(groups / "pod/cpu.stat", "usage_usec 5\nnr_periods 20\nnr_throttled 0\n")
    write(groups / "pod/one/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_usec 1500000\n")
    assert counters.throttling(control_groups(tmp_path)) == {
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
    found = counters.throttling(control_groups(tmp_path))
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


# --- a monitor ----------------------------------------------------------------------------

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
CHILDREN = (
    "import subprocess, sys\nfor _ in range(2):\n    subprocess.run([sys.executable, '-S', '-c',"
)
CHILDREN += " 'import time\\nwhile time.process_time() < 0.15: pass'])\nprint(flush=True)\ninput()"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("code", [BURN, CHILDREN], ids=["itself", "children between two looks"])
def test_a_process_that_burns_a_core(code: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            with Monitor(lambda: {process.pid}, every_s=30) as monitor:
                assert process.stdout is not None and process.stdout.readline() == b"\n"
            found = monitor.result()
        finally:
            process.kill()
    assert 0.25 <= found.script_cores * found.seconds < 2, "cut down to whole ticks"
    assert found.cores >= 1


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    before = threading.active_count()
    with Monitor(lambda: {1, os.getpid()}, every_s=0.01, root=tmp_path) as monitor:
        time.sleep(0.05)
    found = monitor.result()
    assert (found.script_cores, found.cores_busy, found.throttled) == (0, 0, None)
    assert found.seconds >= 0.05 and threading.active_count() == before
