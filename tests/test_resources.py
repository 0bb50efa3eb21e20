"""What a process may use: made-up /proc and /sys trees of machines and containers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import write
from hypothesis import given
from hypothesis import strategies as st

from shardkit.measure.machine import advice, is_simd, system
from shardkit.system.resources import Allowance, allowance, read_allowance, shm_free

GIB = 1 << 30

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "34 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def machine(root: Path, mounts: str, groups: str) -> Path:
    """A machine of 64 GiB, 48 of them free, and a process with three open files."""
    write(root / "proc/self/mountinfo", mounts)
    write(root / "proc/self/cgroup", groups)
    write(root / "proc/meminfo", f"MemTotal: {64 << 20} kB\nMemAvailable:   {48 << 20} kB\n")
    write(root / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\n\nprocessor\t: 1\n")
    for number in range(3):
        write(root / f"proc/self/fd/{number}", "")
    return root


def read(root: Path, cores: int = 16) -> Allowance:
    return read_allowance(root, cores, 1024, 8 * GIB)


def test_a_machine_without_limits(tmp_path: Path) -> None:
    found = read(machine(tmp_path, V2, "0::/user.slice/session-2.scope\n"))
    assert found == Allowance("Some CPU", 16, None, 48 * GIB, 8 * GIB, 1021)
    assert found.cpus == 16


def test_nothing_to_read(tmp_path: Path) -> None:
    found = read_allowance(tmp_path, 3, None, None)
    assert (found.cpus, found.cpu_quota, found.shm_bytes, found.open_files) == (3, None, None, None)
    assert found.memory_bytes > 0 and found.cpu


@pytest.mark.parametrize(
    ("quota", "cpu_quota", "cpus"),
    [("max 100000", None, 16), ("200000 100000", 2.0, 2), ("250000 100000", 2.5, 3),
     ("50000 100000", 0.5, 1), ("3200000 100000", 32.0, 16), ("30000", 0.3, 1), ("", None, 16)],
)  # fmt: skip
def test_a_quota_of_version_2(
    tmp_path: Path, quota: str, cpu_quota: float | None, cpus: int
) -> None:
    root = machine(tmp_path, V2, "0::/\n")
    write(root / "sys/fs/cgroup/cpu.max", quota + "\n")
    found = read(root)
    assert (found.cpu_quota, found.cpus) == (cpu_quota, cpus)


def test_the_groups_around_count_too(tmp_path: Path) -> None:
    """Kubernetes sets the limit of a pod on the group around its containers."""
    root = machine(tmp_path, V2, "0::/kubepods/pod1/container\n")
    groups = root / "sys/fs/cgroup"
    write(groups / "kubepods/pod1/container/cpu.max", "max 100000")
    write(groups / "kubepods/pod1/cpu.max", "400000 100000")
    write(groups / "kubepods/cpu.max", "800000 100000")
    write(groups / "kubepods/pod1/memory.max", f"{4 * GIB}")
    write(groups / "kubepods/pod1/memory.current", f"{3 * GIB}")
    write(groups / "kubepods/pod1/memory.stat", f"anon 5\ninactive_file {2 * GIB}\n")
    found = read(root)
    assert found.cpu_quota == 4.0
    assert found.memory_bytes == 3 * GIB


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/inner", "/../elsewhere", "/other"])
def test_a_container_sees_a_part_of_version_1(tmp_path: Path, path: str) -> None:
    """The mount shows the group's own folder as its root; what is outside it cannot be seen."""
    groups = f"4:memory:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:/x\n0::/\n"
    root = machine(tmp_path, V1.format(top="/docker/abc"), groups)
    folder = root / "sys/fs/cgroup"
    write(folder / "cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    write(folder / "cpu,cpuacct/cpu.cfs_period_us", "50000\n")
    write(folder / "cpu,cpuacct/inner/cpu.cfs_quota_us", "-1\n")
    write(folder / "memory/memory.limit_in_bytes", f"{2 * GIB}\n")
    write(folder / "memory/memory.usage_in_bytes", f"{GIB}\n")
    write(folder / "memory/memory.stat", "cache 3\ntotal_inactive_file 1024\n")
    found = read(root)
    assert found.cpu_quota == 3.0
    assert found.memory_bytes == GIB + 1024


def test_no_limit_in_version_1(tmp_path: Path) -> None:
    root = machine(tmp_path, V1.format(top="/"), "4:memory:/\n3:cpu,cpuacct:/\n")
    write(root / "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(root / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    found = read(root)
    assert found.cpu_quota is None
    assert found.memory_bytes == 48 * GIB


def test_more_used_than_allowed(tmp_path: Path) -> None:
    root = machine(tmp_path, V2, "0::/\n")
    write(root / "sys/fs/cgroup/memory.max", "100")
    write(root / "sys/fs/cgroup/memory.current", "200")
    assert read(root).memory_bytes == 0
    assert read_allowance(root, 1, 2, None).open_files == 0


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_nonsense_sets_no_limit(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = machine(tmp_path_factory.mktemp("nonsense"), V2 + text, f"0::/\n{text}")
    for name in ("cpu.max", "memory.max", "memory.current", "memory.stat"):
        write(root / "sys/fs/cgroup" / name, text)
    found = read(root)
    assert found.cpus >= 1
    assert found.memory_bytes >= 0


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux")
def test_this_machine() -> None:
    found = allowance()
    assert 1 <= found.cpus <= found.cores == len(os.sched_getaffinity(0))
    assert found.memory_bytes > 0
    assert found.shm_bytes is None or found.shm_bytes <= (shm_free() or 0) * 2 + GIB


# --- what info --system advises -----------------------------------------------------------

SIMD, PLAIN = ("pillow-simd", "12.1.1.post0"), ("pillow", "13.0.0")
JPEGS = ["simplejpeg 1.9.0"]


@pytest.mark.parametrize(
    ("backends", "found", "why_not", "processor", "starts"),
    [
        (JPEGS, SIMD, "", "x86_64", []),
        (JPEGS, PLAIN, "", "aarch64", []),
        (JPEGS, PLAIN, "", "x86_64", ["pip uninstall pillow, then CC='cc -mavx2' pip install"]),
        (JPEGS, None, "", "x86_64", ["pip install 'shardkit[simd]'"]),
        (JPEGS, None, "", "aarch64", ["pip install 'shardkit[pillow]'"]),
        (["pillow 13.0.0"], SIMD, "", "AMD64", ["pip install simplejpeg"]),
        (JPEGS, SIMD, "no compiler", "x86_64", ["the compiled kernel, which is the fastest: no c"]),
    ],
)
def test_advice(
    backends: list[str],
    found: tuple[str, str] | None,
    why_not: str,
    processor: str,
    starts: list[str],
) -> None:
    lines = advice(backends, found, why_not, processor)
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))


def test_the_simd_build() -> None:
    assert is_simd(SIMD) and not is_simd(PLAIN)


def test_what_reads_pictures_here() -> None:
    found = system()
    assert found["kernel"]["is_available"] == (found["kernel"]["why_not"] == "")
    assert found["pillow"] is not None and found["jpeg_backends"]
