"""The machine and a script's processes, watched: real processes, and made-up /proc trees."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import write

from shardkit.measure.doctor.machine.monitor import Extremes, Monitor, Snapshot, evidence
from shardkit.measure.doctor.machine.tally import Tally, Used
from shardkit.system import counters
from shardkit.system.counters import CoreTime, DiskReads, Throttling
from shardkit.system.file_systems import is_in_memory
from shardkit.system.page_cache import evict
from shardkit.system.processes import Usage, ticks_since_boot, usage_of
from shardkit.system.resources import control_groups

linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")


# --- a tally of processes that come and go ------------------------------------------------


def use(
    cpu_s: float, read: int | None = 0, *, parent: int = 1, reaped: float = 0, started: int = 500
) -> Usage:
    """A look at a process that began after the tally, at tick 100."""
    return Usage(parent, started, cpu_s, reaped, major_faults=0, read_bytes=read)


def tally_of(*looks: dict[int, Usage]) -> Tally:
    tally = Tally(since=100)
    for seen in looks:
        tally.add(seen)
    return tally


def test_processes_add_up() -> None:
    tally = tally_of({7: use(1, 10), 8: use(2, 20)}, {7: use(1.5, 15), 8: use(2.5, 20)})
    assert tally.total == Used(4.0, 35, 0)


def test_what_an_older_process_used_before_does_not_count() -> None:
    tally = tally_of({7: use(100, 1000, started=50)}, {7: use(101, 1010, started=50)})
    assert tally.total == Used(1, 10, 0)


def test_an_ended_process_keeps_what_it_had_used() -> None:
    """Its parent is none of ours: nobody has its figures now."""
    assert tally_of({7: use(1, 10)}, {7: use(3, 30)}, {}).total == Used(3, 30, 0)


def test_a_parent_that_waited_has_all_that_its_child_used() -> None:
    """Also what the child did after it was last seen, and that counts once."""
    first = {7: use(1, 10), 8: use(2, 20, parent=7, started=600)}
    then = {7: use(1 + 2.7, 10 + 29, reaped=2.7)}
    assert tally_of(first, then).total == Used(3.7, 39, 0)


def test_a_parent_that_did_not_wait_has_nothing() -> None:
    """With SIGCHLD ignored the kernel throws the figures away."""
    first = {7: use(1, 10), 8: use(2, 20, parent=7, started=600)}
    assert tally_of(first, {7: use(1.5, 12)}).total == Used(3.5, 32, 0)


def test_parent_and_child_that_end_between_two_looks() -> None:
    first = {7: use(1, 10), 8: use(2, 20, parent=7, started=600)}
    assert tally_of(first, {}).total == Used(3, 30, 0)


def test_a_grandchild_is_its_grandparents_if_its_parent_waited_for_it() -> None:
    first = {
        7: use(1, 10),
        8: use(2, 20, parent=7, started=600),
        9: use(4, 40, parent=8, started=700),
    }
    waited = {7: use(1 + 6.2, 10 + 60, reaped=6.2)}
    left = {7: use(1 + 2.2, 10 + 20, reaped=2.2)}
    assert tally_of(first, waited).total == Used(7.2, 70, 0)
    assert tally_of(first, left).total == pytest.approx(Used(7.2, 70, 0))


def test_a_childs_time_before_the_tally_does_not_count_when_its_parent_has_it() -> None:
    first = {7: use(50, 500, started=10), 8: use(90, 900, parent=7, started=20)}
    then = {7: use(51 + 92, 500 + 930, reaped=92, started=10)}
    assert tally_of(first, then).total == Used(3, 30, 0)


def test_an_id_that_is_used_again() -> None:
    tally = tally_of({7: use(3, 30, started=500)}, {7: use(1, 10, started=900)})
    assert tally.total == Used(4, 40, 0)


def test_children_are_looked_at_before_their_parents() -> None:
    tally = tally_of({7: use(1, started=500), 9: use(1, parent=7, started=600)})
    assert tally.youngest_first({12, 7}) == [12, 9, 7]


def test_reads_that_cannot_be_seen() -> None:
    assert not tally_of({7: use(1, None)}).sees_reads
    assert tally_of({7: use(1, None)}, {8: use(1, 5)}).sees_reads


# --- one process --------------------------------------------------------------------------

STAT = "7 (a) b (c) {state} 3 7 7 0 -1 4194304 101 0 5 2 150 50 30 20 20 0 4 0 4242 1 390 0\n"


def test_a_process_of_any_name(tmp_path: Path) -> None:
    write(tmp_path / "proc/7/stat", STAT.format(state="S"))
    write(tmp_path / "proc/7/io", "rchar: 9\nread_bytes: 8192\nwrite_bytes: 1\n")
    found = usage_of(7, tmp_path)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert found == Usage(3, 4242, 250 * tick, 50 * tick, major_faults=7, read_bytes=8192)


@pytest.mark.parametrize("text", ["", "7 (x) S 1", "7 (x) S " + "y " * 30, "\0"])
def test_no_process(tmp_path: Path, text: str) -> None:
    assert usage_of(7, tmp_path) is None
    write(tmp_path / "proc/7/stat", text)
    assert usage_of(7, tmp_path) is None


@pytest.mark.parametrize("text", [None, "", "rchar: 5\n", "rchar: 1\nread_bytes: none\n"])
def test_a_kernel_that_does_not_say_what_a_process_read(tmp_path: Path, text: str | None) -> None:
    write(tmp_path / "proc/7/stat", STAT.format(state="R"))
    if text is not None:
        write(tmp_path / "proc/7/io", text)
    found = usage_of(7, tmp_path)
    assert found is not None and found.read_bytes is None


# --- what the kernel counts of the machine ------------------------------------------------


def test_times_of_cores(tmp_path: Path) -> None:
    lines = ["cpu 9 9 9 9", "cpu0 10 1 5 100 20 2 3 4 10 0", "cpu11 1 1 1 1 1", "intr 5", "cpux 1"]
    write(tmp_path / "proc/stat", "\n".join(lines))
    found = counters.core_times(tmp_path)
    assert found == {0: CoreTime(25, 145), 11: CoreTime(3, 5)}


def test_pressure_of_those_that_there_are(tmp_path: Path) -> None:
    write(
        tmp_path / "proc/pressure/io",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0 total=7\n",
    )
    write(tmp_path / "proc/pressure/memory", "nonsense\n")
    assert counters.pressure(tmp_path) == {"io": 2.5}


def test_only_real_disks_are_counted(tmp_path: Path) -> None:
    """A partition, and a volume on it, would count each read twice."""
    line = "{major} 0 {name} 100 0 2000 5 0 0 0 0 0 0 0\n"
    names = ["sda", "sda1", "dm-0", "loop0", "zram0", "cciss/c0d0"]
    write(tmp_path / "proc/diskstats", "".join(line.format(major=8, name=n) for n in names))
    for name in ("sda", "cciss!c0d0"):
        write(tmp_path / "sys/block" / name / "device/model", "x")
    assert counters.disk_reads(tmp_path) == DiskReads(200, 2 * 2000 * 512)


V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"


def test_throttling_of_version_2(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/mountinfo", V2)
    write(tmp_path / "proc/self/cgroup", "0::/pod/one\n")
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "cpu.stat", "usage_usec 5\n")
    write(groups / "pod/cpu.stat", "usage_usec 5\nnr_periods 20\nnr_throttled 0\n")
    write(groups / "pod/one/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_usec 1500000\n")
    found = counters.throttling(control_groups(tmp_path))
    assert found == {
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


# --- two readings -------------------------------------------------------------------------


def snapshot(at: float, **changes: Any) -> Snapshot:
    plain: dict[str, Any] = {"cores": {}, "pressure": {}, "throttling": {}, "disks": None}
    return Snapshot(at, **{**plain, **changes})


def between(first: Snapshot, last: Snapshot, sees_reads: bool = True) -> Any:
    used = Used(6.0, 8000, 40)
    return evidence(first, last, used, sees_reads, Extremes(), cores=2, gpus=())


def test_means_between_two_readings() -> None:
    first = snapshot(
        100.0,
        cores={0: CoreTime(500, 1000), 3: CoreTime(0, 1000), 4: CoreTime(0, 0)},
        pressure={"cpu": 1.0, "io": 5.0},
        disks=DiskReads(10, 5000),
    )
    last = snapshot(
        104.0,
        cores={0: CoreTime(900, 1400), 3: CoreTime(100, 1400)},
        pressure={"cpu": 3.0, "memory": 1.0},
        disks=DiskReads(50, 405000),
    )
    found = between(first, last)
    assert found.seconds == 4 and found.script_cores == 1.5
    assert found.per_core == (1.0, 0.25) and found.cores_busy == 1.25
    assert found.pressure == {"cpu": 0.5}
    assert found.disk_read_bytes_per_s == 2000 and found.disk_reads_per_s == 10
    assert found.major_faults_per_s == 10 and found.throttled is None
    assert between(first, last, sees_reads=False).disk_read_bytes_per_s == 100_000


def test_a_kernel_that_says_nothing() -> None:
    found = between(snapshot(1), snapshot(1))
    assert (found.per_core, found.pressure, found.throttled) == ((), {}, None)
    assert found.disk_reads_per_s == 0 and found.shm_bytes is None and found.shm_free is None


@pytest.mark.parametrize(
    ("periods", "throttled", "seconds", "share"),
    [(100, 0, 0.0, 0.0), (100, 90, 1.0, 0.1), (100, 20, 60.0, 0.2), (0, 0, 0.0, 0.0)],
    ids=["never", "late in each period", "all 60 cores in some", "no quota"],
)
def test_the_share_that_a_quota_stopped(
    periods: int, throttled: int, seconds: float, share: float
) -> None:
    group, other = Path("/a"), Path("/b")
    first = snapshot(0, throttling={group: Throttling(5, 5, 5.0), other: Throttling(0, 0, 0.0)})
    last = snapshot(
        10,
        throttling={group: Throttling(5 + periods, 5 + throttled, 5.0 + seconds), Path("/c"): None},
    )
    assert between(first, last).throttled == pytest.approx(share)


def test_extremes() -> None:
    found = Extremes()
    for memory, shm in ((50, (3, 9)), (40, None), (60, (5, 7))):
        found.add(memory, shm)
    assert found == Extremes(memory_available=40, shm_bytes=5, shm_free=7)


# --- real processes -----------------------------------------------------------------------

BURN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
PARENT = """
import subprocess, sys
for _ in range({times}):
    subprocess.run([sys.executable, "-S", "-c", {code!r}], check=True)
"""


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, ended at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def cpu_of(pid: int) -> float:
    found = usage_of(pid)
    return 0.0 if found is None else found.cpu_s


@linux
def test_a_process_that_burns_a_core() -> None:
    """It says itself how much it has burnt, since other programs take cores from it, too."""
    with running(
        "input()\n" + BURN.format(seconds=0.6) + "print(time.process_time())\ninput()"
    ) as p:
        with Monitor(lambda: {p.pid}, every_s=0.05) as monitor:
            before = cpu_of(p.pid)
            p.stdin.write("\n")
            p.stdin.flush()
            burnt = float(p.stdout.readline())
        found = monitor.result()
    assert found.script_cores * found.seconds == pytest.approx(burnt - before, abs=0.1)
    assert found.cores_busy >= found.script_cores * 0.8
    assert found.memory_available > 0 and len(found.per_core) == len(os.sched_getaffinity(0))
    assert monitor.result() == found


@linux
def test_children_that_live_between_two_looks() -> None:
    """Worker processes that each epoch starts anew: none is ever seen, all are counted."""
    code = PARENT.format(times=3, code=BURN.format(seconds=0.1))
    code += "print('burnt', flush=True)\ninput()"
    with running(code) as process, Monitor(lambda: {process.pid}, every_s=30) as monitor:
        assert process.stdout.readline() == "burnt\n"
        burnt = cpu_of(process.pid)
    found = monitor.result()
    assert burnt >= 0.25  # cut down to whole ticks
    assert found.script_cores * found.seconds == pytest.approx(burnt, abs=0.1)


@linux
def test_a_process_that_exits_midway_keeps_what_it_had_used() -> None:
    """Also when nobody that is watched has waited for it."""
    code = BURN.format(seconds=0.2) + "print('burnt', flush=True)\ninput()"
    pids, burnt = set(), 0.0
    with Monitor(lambda: set(pids), every_s=0.02) as monitor:
        for _ in range(2):
            with running(code) as process:
                pids.add(process.pid)
                assert process.stdout.readline() == "burnt\n"
                burnt += cpu_of(process.pid)
                used = monitor.result()
            assert usage_of(process.pid) is None
    found = monitor.result()
    assert burnt >= 0.35  # cut down to whole ticks
    assert found.script_cores * found.seconds == pytest.approx(burnt, abs=0.1)
    assert used.script_cores * used.seconds <= found.script_cores * found.seconds + 0.001


READ = """
import sys
input()
with open({path!r}, "rb", buffering=0) as file:
    while file.read(1 << 20):
        pass
print("read", flush=True)
input()
"""


@linux
def test_what_is_read_from_a_disk(tmp_path: Path) -> None:
    path = write(tmp_path / "file", os.urandom(4 << 20))
    if is_in_memory(path) or evict(path) != 0.0:
        pytest.skip("files here are always in memory")
    with running(READ.format(path=str(path))) as process:
        pids = {process.pid}
        with Monitor(lambda: pids, every_s=0.05) as monitor:
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "read\n"
    found = monitor.result()
    read = found.disk_read_bytes_per_s * found.seconds
    assert (4 << 20) - 1 < read <= 5 << 20, "a rate times its seconds, which rounds"
    assert found.disk_reads_per_s > 0


def least_seconds(work: Callable[[], object]) -> float:
    costs = []
    for _ in range(20):
        begin = time.thread_time()
        work()
        costs.append(time.thread_time() - begin)
    return min(costs)


@linux
def test_looking_costs_little() -> None:
    """Less than to read five small files of each process. 2.3 to 3.6 were measured: 1.5 to 2.3 ms
    for 20 of them, which is less than half a percent of a core at two looks a second."""
    with ExitStack() as stack:
        pids = {stack.enter_context(running("input()")).pid for _ in range(20)}
        monitor = stack.enter_context(Monitor(lambda: pids, every_s=30))
        one_file_each = least_seconds(
            lambda: [Path(f"/proc/{pid}/stat").read_bytes() for pid in pids]
        )
        assert least_seconds(monitor._look) < 5 * one_file_each


def test_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    with Monitor(lambda: {1, os.getpid()}, every_s=0.01, root=tmp_path) as monitor:
        time.sleep(0.05)
    found = monitor.result()
    assert (found.script_cores, found.per_core, found.pressure) == (0, (), {})
    assert found.shm_bytes is None and found.throttled is None and found.seconds >= 0.05


def test_the_thread_ends_with_the_block() -> None:
    def fail() -> None:
        with Monitor(set, every_s=30):
            assert threading.active_count() == before + 1
            raise KeyError

    before = threading.active_count()
    with pytest.raises(KeyError):
        fail()
    assert threading.active_count() == before


def test_the_clock_of_processes() -> None:
    with running("input()") as process:
        found = usage_of(process.pid)
        assert found is None or abs(ticks_since_boot() - found.started) < 60 * 100
