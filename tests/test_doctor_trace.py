"""Traces of torch.profiler: their file, and the GPU's time in it."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from shardkit.errors import FormatError, StorageError
from shardkit.measure.doctor.evidence import TraceFacts
from shardkit.measure.doctor.gpus import Event, covered, read_trace, trace_facts

near = partial(pytest.approx, rel=1e-4, abs=1e-7)


def kernel(at: float, ms: float, gpu: int = 0, category: str = "kernel") -> Event:
    """Something on a GPU, with times in milliseconds."""
    return Event(category, "elementwise_kernel", gpu, at / 1e3, (at + ms) / 1e3)


def copy(at: float, ms: float, kind: str = "HtoD (Pageable -> Device)", gpu: int = 0) -> Event:
    return kernel(at, ms, gpu, "gpu_memcpy")._replace(name=f"Memcpy {kind}")


def facts(*events: Event) -> TraceFacts:
    found = trace_facts(events)
    assert found is not None
    return found


def test_idle_is_what_no_stream_does() -> None:
    """10 ms: kernels in 0 to 4 and 3 to 5 of two streams, a memset in 9 to 10."""
    found = facts(kernel(0, 4), kernel(3, 2), kernel(9, 1, category="gpu_memset"))
    assert found.gpu_idle == near(0.4) and found.copy_exposed == 0
    assert found.kernels_per_s == near(200) and found.kernel_s == near(3e-3)


def test_idle_is_the_mean_of_the_gpus() -> None:
    """One is busy for 10 ms of 10, the other for 2. One process launches the kernels of both."""
    found = facts(kernel(0, 5), kernel(5, 5), kernel(1, 2, gpu=1))
    assert found.gpu_idle == near(0.4) and found.kernels_per_s == near(300)


def test_a_launch_bound_loop() -> None:
    """1,000 kernels of 2 us, one every 10 us."""
    found = facts(*(kernel(0.01 * i, 0.002) for i in range(1000)))
    assert found.gpu_idle == near(0.8, rel=1e-2) and found.kernel_s == near(2e-6, rel=1e-3, abs=0)


def test_copies_that_nothing_hides() -> None:
    """6 ms of copying, of which 5 beside kernels: those of 0 to 3 and 5 to 10. Kernels of another
    GPU hide nothing, and copies within the GPU are work."""
    found = facts(kernel(0, 3), copy(2, 2), kernel(5, 5), copy(6, 4, "DtoH (Device -> Pinned)"))
    assert found.copy_exposed == near(0.1) and found.gpu_idle == near(0.1)
    assert facts(kernel(0, 10), copy(0, 10, gpu=1)).copy_exposed == near(0.5)
    assert facts(copy(0, 5, "DtoD (Device -> Device)"), copy(0, 10)).copy_exposed == near(0.5)


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
)


@given(INTERVALS)
def test_what_goes_on_at_once_counts_once(intervals: list[tuple[int, int]]) -> None:
    events = [Event("kernel", "add", 0, start, end) for start, end in intervals]
    assert covered(events) == len({t for start, end in intervals for t in range(start, end)})


ENTRIES: list[dict[str, Any]] = [
    {"ph": "M", "name": "process_name", "ts": 1.0, "pid": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 5.0, "dur": 2, "pid": 9, "tid": 1},
    {"ph": "X", "cat": "kernel", "name": "add", "ts": 4e6, "dur": 500, "pid": 1, "args": {"x": 1}},
]
WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": ENTRIES})


def test_a_trace_is_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    plain.write_text(WHOLE)
    packed.write_bytes(gzip.compress(WHOLE.encode()))
    assert read_trace(plain) == read_trace(packed) == [Event("kernel", "add", 1, 4.0, 4.0005)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WHOLE[:-20].encode(),
        gzip.compress(WHOLE.encode())[:-9],
        b"\x1f\x8b but no gzip",
        b"7",
        b'{"traceEvents": 7}',
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "soon", "dur": 1}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_trace(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.json") as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_a_trace_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read the trace"):
        read_trace(tmp_path)


def test_a_trace_of_the_cpu_says_nothing_of_gpus(tmp_path: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        torch.ones(4, 8).square().mean()
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    assert trace_facts(read_trace(tmp_path / "trace.json")) is None
