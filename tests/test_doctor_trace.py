"""Traces of torch.profiler: their file, the GPU's time, the host's waits, the lines that wait."""

from __future__ import annotations

import ast
import gzip
import importlib
import json
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from shardkit.errors import DataError, FormatError, StorageError, UsageError
from shardkit.measure.doctor.trace.call_lines import call_lines
from shardkit.measure.doctor.trace.facts import facts, own_sources, read_trace
from shardkit.measure.doctor.trace.gpu import is_collective, uses_tensor_cores
from shardkit.measure.doctor.trace.host import host_facts
from shardkit.measure.doctor.trace.intervals import length, overlap, union

# --- traces by hand, after the format's documentation ---------------------------------------

MS = 1000
"""A trace counts microseconds."""

HOST, THREAD = 4242, 77
COMPUTE, COPYING = 7, 13  # streams
START = 4_508_926_188_990.0
"""Kineto counts from the quarter's beginning."""

Json = dict[str, Any]

near = partial(pytest.approx, rel=1e-4, abs=1e-7)
"""Seconds since that beginning are known to 1 ns."""


def span(cat: str, name: str, at: float, ms: float, **more: Any) -> Json:
    """A span of the host's thread, unless said otherwise, with times in milliseconds."""
    base: Json = {"ph": "X", "cat": cat, "name": name, "pid": HOST, "tid": THREAD}
    return base | {"ts": START + at * MS, "dur": ms * MS, "args": {}} | more


def on_gpu(
    cat: str, name: str, at: float, ms: float, gpu: int = 0, stream: int = COMPUTE, link: int = 0
) -> Json:
    args = {"device": gpu, "context": 1, "stream": stream, "correlation": link}
    return span(cat, name, at, ms, pid=gpu, tid=stream, args=args)


def kernel(at: float, ms: float, name: str = "elementwise_kernel", **more: Any) -> Json:
    return on_gpu("kernel", f"void at::native::{name}<4>(int)", at, ms, **more)


def copy(at: float, ms: float, kind: str = "HtoD (Pageable -> Device)", **more: Any) -> Json:
    return on_gpu("gpu_memcpy", f"Memcpy {kind}", at, ms, stream=COPYING, **more)


def cuda(name: str, at: float, ms: float, link: int = 0) -> Json:
    return span("cuda_runtime", name, at, ms, args={"cbid": 1, "correlation": link})


def op(name: str, at: float, ms: float) -> Json:
    return span("cpu_op", name, at, ms, args={"External id": 1, "Ev Idx": 1})


def python(name: str, at: float, ms: float) -> Json:
    return span("python_function", name, at, ms, args={"Python id": 1})


def steps(*marks: tuple[float, float]) -> list[Json]:
    """Marks as ``prof.step()`` makes them: for the host, and again for the GPU."""
    made = []
    for i, (at, ms) in enumerate(marks):
        made.append(span("user_annotation", f"ProfilerStep#{i + 2}", at, ms))
        made.append(on_gpu("gpu_user_annotation", f"ProfilerStep#{i + 2}", at, ms))
    return made


REST = [
    {"ph": "M", "name": "process_name", "ts": START, "pid": 0, "args": {"name": "python"}},
    {"ph": "s", "id": 3, "cat": "ac2g", "name": "ac2g", "ts": START, "pid": HOST, "tid": THREAD},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": START + 9e9},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "P",
     "ts": START, "dur": 9e9, "args": {"Op count": 0}},
]  # fmt: skip
"""What else is in a trace, and says nothing of the steps."""


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    """The facts of some events, by way of a file."""

    def made(*events: Json, sources: dict[str, str] | None = None) -> Any:
        whole = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA L4"}]}
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(whole | {"traceEvents": [*REST, *events]}))
        return facts(read_trace(path), sources)

    return made


# --- the GPU's time ---------------------------------------------------------------------------


def test_idle_is_what_no_stream_does(made: Callable[..., Any]) -> None:
    """10 ms: kernels in 0 to 4 and 3 to 5 of two streams, a memset in 9 to 10."""
    found = made(
        kernel(0, 4),
        kernel(3, 2, stream=COPYING),
        on_gpu("gpu_memset", "Memset (Device)", 9, 1),
    )
    assert found.has_gpu
    assert found.gpu_idle == near(0.4)
    assert found.kernels_per_s == near(200)
    assert found.kernel_s == near(3e-3)
    assert found.copy_exposed == 0


def test_idle_is_the_mean_of_the_gpus(made: Callable[..., Any]) -> None:
    """One is busy for 10 ms of 10, the other for 2. One process launches the kernels of both."""
    found = made(kernel(0, 5), kernel(5, 5), kernel(1, 2, gpu=1))
    assert found.gpu_idle == near(0.4)
    assert found.kernels_per_s == near(300)


def test_a_copy_bound_loop(made: Callable[..., Any]) -> None:
    """Each step copies for 6 ms, then computes for 4."""
    found = made(
        *(event for i in range(5) for event in (copy(10 * i, 6), kernel(10 * i + 6, 4))),
        *steps((0, 30), (30, 20)),
    )
    assert found.copy_exposed == near(0.6)
    assert found.gpu_idle == near(0)
    assert found.steps == 2
    assert found.seconds == near(0.05)


def test_copies_beside_kernels_are_not_exposed(made: Callable[..., Any]) -> None:
    """6 ms of copying, of which 5 beside kernels: those of 0 to 3 and 5 to 10."""
    found = made(kernel(0, 3), copy(2, 2), kernel(5, 5), copy(6, 4, "DtoH (Device -> Pinned)"))
    assert found.copy_exposed == near(0.1)
    assert found.gpu_idle == near(0.1)


def test_copies_beside_kernels_of_another_gpu_are_exposed(made: Callable[..., Any]) -> None:
    found = made(kernel(0, 10), copy(0, 10, gpu=1))
    assert found.copy_exposed == near(0.5)


def test_copies_within_the_gpu_are_work(made: Callable[..., Any]) -> None:
    found = made(copy(0, 5, "DtoD (Device -> Device)"), copy(0, 10, "HtoD (Pinned -> Device)"))
    assert found.copy_exposed == near(0.5)


def test_a_launch_bound_loop(made: Callable[..., Any]) -> None:
    """1,000 kernels of 2 us, one every 10 us."""
    found = made(*(kernel(0.01 * i, 0.002) for i in range(1000)))
    assert found.gpu_idle == near(0.8, rel=1e-2)
    assert found.kernels_per_s == near(100_000, rel=1e-2)
    assert found.kernel_s == near(2e-6, rel=1e-3, abs=0)


def test_tensor_cores_and_collectives(made: Callable[..., Any]) -> None:
    """NCCL's kernels spin while they wait, so that they do not count as time without Tensor Cores.
    Its 4 ms are of 12."""
    found = made(
        on_gpu("kernel", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn", 0, 6),
        kernel(6, 2),
        on_gpu("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", 8, 4, stream=COPYING),
    )
    assert found.tensor_core == near(0.75)
    assert found.collective == near(1 / 3)


@pytest.mark.parametrize(
    "name",
    [
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "turing_fp16_s1688gemm_fp16_128x64_sliced1x2_ldg8_f2f_tn",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn>",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tensor16x8x8_kernel",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_cublas",
        "nvjet_hsh_256x128_64x4_2x1_v_bz_TNN",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t>>",
    ],
)
def test_names_of_kernels_on_tensor_cores(name: str) -> None:
    assert uses_tensor_cores(name)


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_ffma_aligna4_kernel",
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
        "triton_poi_fused_add_relu_0",
    ],
)
def test_names_of_other_kernels(name: str) -> None:
    assert not uses_tensor_cores(name)
    assert not is_collective(name)


# --- the host: operators and waits ------------------------------------------------------------

SCRIPT = textwrap.dedent(
    """\
    import torch

    def train(model, loader):
        for batch in loader:
            batch = batch.to("cuda")
            loss = model(batch)
            total = loss.item()
            print(total)

    def twice(loss):
        first = loss.item()
        return first + loss.item()
    """
)


def item(at: float, wait: float) -> list[Json]:
    """``loss.item()``, which waits in its copy's stream."""
    return [
        python("<built-in method item of Tensor object at 0x7f944a6dadf0>", at, wait + 0.4),
        op("aten::item", at + 0.1, wait + 0.3),
        op("aten::_local_scalar_dense", at + 0.1, wait + 0.3),
        cuda("cudaMemcpyAsync", at + 0.2, 0.1, link=9),
        cuda("cudaStreamSynchronize", at + 0.3, wait),
    ]


def sync_bound() -> list[Json]:
    """Two steps of 10 ms, which wait 6 ms each in ``item()`` for kernels of 8 ms."""
    events = [python("train.py(3): train", -1, 30), *steps((0, 10), (10, 10))]
    for at in (0, 10):
        events += [
            op("aten::linear", at, 1),
            op("aten::t", at, 0.2),
            op("aten::addmm", at + 0.3, 0.5),
        ]
        events += [cuda("cudaLaunchKernel", at + 0.5, 0.01, link=at), kernel(at + 0.6, 8, link=at)]
        events += item(at + 3, 6)
        events += [copy(at + 8.6, 0.01, "DtoH (Device -> Pageable)", link=9)]
    return events


def test_a_sync_bound_loop(made: Callable[..., Any]) -> None:
    found = made(*sync_bound(), sources={"train.py": SCRIPT})
    (line,) = found.syncs
    assert (line.file, line.line, line.what, line.kind) == ("train.py", 7, "item()", "sync")
    assert line.calls == 1
    assert line.seconds == near(6.1e-3)  # with the copy, which waits if not pinned
    assert line.share == near(0.61)
    assert found.ops_per_step == 3  # t, addmm, _local_scalar_dense: the others call these


def test_without_the_source_the_function_is_named(made: Callable[..., Any]) -> None:
    (line,) = made(*sync_bound()).syncs
    assert (line.file, line.line, line.what) == ("train.py", 3, "item() in train")


def test_without_python_functions_the_call_is_named(made: Callable[..., Any]) -> None:
    events = [event for event in sync_bound() if event["cat"] != "python_function"]
    (line,) = made(*events, sources={"train.py": SCRIPT}).syncs
    assert (line.file, line.line, line.what) == ("", 0, "item() or its like")
    assert line.seconds == near(6.1e-3)


def test_one_of_several_lines(made: Callable[..., Any]) -> None:
    found = made(
        python("train.py(10): twice", 0, 10), *item(0, 1), *item(5, 2), kernel(0, 9),
        *steps((0, 10)), sources={"train.py": SCRIPT},
    )  # fmt: skip
    (line,) = found.syncs
    assert (line.line, line.what, line.calls) == (11, "item(), or in line 12", 2)
    assert line.seconds == near(3.2e-3)


def test_a_wait_for_a_copy_to_the_device(made: Callable[..., Any]) -> None:
    """Of memory that is not pinned: the time is in the copy, and the wait that follows is short."""
    found = made(
        python("train.py(3): train", 0, 20),
        python("<built-in method to of Tensor object at 0x7f9>", 0, 9),
        op("aten::to", 0, 9), op("aten::_to_copy", 0.1, 8.8), op("aten::copy_", 0.2, 8.6),
        cuda("cudaMemcpyAsync", 0.3, 8, link=5), cuda("cudaStreamSynchronize", 8.4, 0.2),
        copy(0.5, 7.5, link=5), kernel(10, 5), *steps((0, 20)),
        sources={"train.py": SCRIPT},
    )  # fmt: skip
    (line,) = found.syncs
    assert (line.line, line.what) == (5, "to(), a copy to the device")
    assert line.seconds == near(8.2e-3)


def test_library_code_is_not_the_scripts(made: Callable[..., Any]) -> None:
    """The line is that of the script's which called the library."""
    events = [python("train.py(3): train", 0, 20), python("<built-in function print>", 1, 8)]
    events += [python("torch/_tensor.py(568): __repr__", 1.1, 7.8), *item(2, 4)]
    (line,) = made(*events, kernel(0, 9), *steps((0, 20)), sources={"train.py": SCRIPT}).syncs
    assert (line.line, line.what) == (8, "print()")


def test_functions_of_the_doctor_are_looked_through(made: Callable[..., Any]) -> None:
    """It times ``item`` by a function in its place: the script's line still calls ``item``."""
    events = [python("train.py(3): train", 0, 20), kernel(0, 9), *steps((0, 20))]
    timed = python("shardkit/watching/calls.py(30): timed", 1, 8)
    (line,) = made(*events, timed, *item(2, 4), sources={"train.py": SCRIPT}).syncs
    assert (line.file, line.line, line.what) == ("train.py", 7, "item()")


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize",
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "hipStreamSynchronize",
        "hipMemcpy",
    ],
)
def test_calls_that_wait(name: str, made: Callable[..., Any]) -> None:
    """By themselves, as ``torch.cuda.synchronize()`` does it, and by the function's name."""
    events = [python("train.py(3): train", 0, 20), kernel(0, 18), *steps((0, 20))]
    (line,) = made(*events, cuda(name, 5, 5)).syncs
    assert (line.what, line.seconds) == (f"{name} in train", near(5e-3))
    call = python("torch/cuda/__init__.py(1200): synchronize", 4, 8)
    (line,) = made(*events, call, cuda(name, 5, 5)).syncs
    assert (line.what, line.seconds) == ("synchronize() in train", near(5e-3))


@pytest.mark.parametrize("first", [0, 1])
def test_of_operators_that_begin_at_once_the_longer_calls_the_other(
    first: int, made: Callable[..., Any]
) -> None:
    both = [op("aten::linear", 0, 5), op("aten::t", 0, 1)]
    found = made(both[first], both[1 - first], op("aten::addmm", 2, 1), *steps((0, 20)))
    assert found.ops_per_step == 2


@pytest.mark.parametrize(
    "frame", ["torch/optim/adam.py(347): adam", "torch/utils/data/sampler.py(160): __iter__"]
)
def test_without_a_gpu_counts_and_seeds_are_not_told_of(
    frame: str, made: Callable[..., Any]
) -> None:
    """They are on the CPU anyway. On a GPU what really waits is told of, whoever calls it."""
    events = [python("train.py(3): train", 0, 20), python(frame, 1, 9), *steps((0, 20))]
    assert made(*events, op("aten::_local_scalar_dense", 2, 1)).syncs == ()
    assert len(made(*events, *item(2, 3), kernel(0, 9)).syncs) == 1


def test_without_a_gpu_one_call_is_one_wait(made: Callable[..., Any]) -> None:
    """Also where an operator that would wait calls another one that would."""
    found = made(
        python("train.py(3): train", 0, 20),
        python("<method 'masked_select' of 'torch._C.TensorBase' objects>", 1, 8),
        op("aten::masked_select", 1.1, 7.8), op("aten::item", 2, 4),
        op("aten::_local_scalar_dense", 2.1, 3.8), *steps((0, 20)),
    )  # fmt: skip
    (line,) = found.syncs
    assert (line.what, line.calls) == ("masked_select() in train", 1)
    assert line.seconds == near(7.8e-3)


@pytest.mark.parametrize(
    "event",
    [
        cuda("cudaDeviceSynchronize", 25, 5),  # after the last step
        cuda("cudaStreamWaitEvent", 5, 5),  # the stream waits, not the host
        cuda("cudaLaunchKernel", 5, 5),
    ],
)
def test_what_is_no_wait_of_the_steps(event: Json, made: Callable[..., Any]) -> None:
    found = made(kernel(0, 20), op("aten::add", 1, 1), event, *steps((0, 20)))
    assert found.syncs == ()


def test_the_profilers_own_wait_is_not_the_loops(made: Callable[..., Any]) -> None:
    events = [python("torch/profiler/profiler.py(1227): step", 5, 9), kernel(0, 9)]
    wait = cuda("cudaDeviceSynchronize", 6, 5)
    assert made(*events, wait, *steps((0, 20))).syncs == ()
    assert len(made(*events[1:], wait, *steps((0, 20))).syncs) == 1


def test_an_annotation_that_outlives_its_function(made: Callable[..., Any]) -> None:
    """As ``record_function`` is in traces with Python functions: it begins in ``__enter__``."""
    events = [python("train.py(3): train", 0, 20), python("torch/profiler/x.py(9): step", 1, 1)]
    events += [span("user_annotation", "ProfilerStep#2", 1.5, 15), *item(5, 2), kernel(0, 9)]
    (line,) = made(*events, sources={"train.py": SCRIPT}).syncs
    assert line.line == 7


def test_steps_by_the_optimizers_marks(made: Callable[..., Any]) -> None:
    """Where nobody called ``prof.step()``; a loop with two optimizers steps each once."""
    marks = [
        span("user_annotation", f"Optimizer.step#{name}.step", at, 1)
        for at in (0, 10, 20)
        for name in ("Adam", "SGD")
    ]
    found = made(*marks, *(op("aten::add", i, 0.5) for i in range(30)))
    assert (found.steps, found.ops_per_step) == (3, 10)
    assert found.seconds == near(29.5e-3)


def test_a_trace_without_steps_has_no_figures_a_step(made: Callable[..., Any]) -> None:
    found = made(kernel(0, 9), op("aten::add", 0, 1), *item(1, 8))
    assert (found.steps, found.ops_per_step) == (0, 0)
    (line,) = found.syncs
    assert (line.seconds, line.calls) == (0, 0)
    assert line.share > 0.8


# --- lines ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "function", "called", "lines"),
    [
        (1, "train", "item", [4]),
        (4, "train", "item", [4]),  # where it stood when the trace began
        (1, "train", "print", [8]),
        (1, "train", "aten::item", [5]),
        (1, "train", "aten::is_nonzero", [6]),
        (1, "train", "nothing", []),
        (10, "inner", "item", [12]),
        (1, "other", "item", []),
        (16, "<module>", "item", [16]),
    ],
)
def test_lines_of_calls(line: int, function: str, called: str, lines: list[int]) -> None:
    source = textwrap.dedent(
        """\
        @decorated
        def train(loss):
            a = (loss
                 .item())
            b = float(loss)
            while loss > 3:
                pass
            print(a, b)

            @decorated
            def inner():
                return loss.item()

            return inner

        total.item()
        """
    )
    ast.parse(source)
    assert call_lines(source, line, function, called) == lines


def test_a_source_that_does_not_parse_has_no_lines() -> None:
    assert call_lines("print 'old'", 1, "<module>", "print") == []
    assert call_lines("a\0b", 1, "<module>", "print") == []


# --- intervals --------------------------------------------------------------------------------

INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
)


def covered(intervals: list[tuple[int, int]]) -> set[int]:
    """The unit times that some interval has, one by one."""
    return {moment for start, end in intervals for moment in range(start, end)}


@given(INTERVALS)
def test_union(intervals: list[tuple[int, int]]) -> None:
    merged = union(intervals)
    assert length(merged) == len(covered(intervals))
    assert covered([(int(a), int(b)) for a, b in merged]) == covered(intervals)
    assert all(a[1] < b[0] for a, b in pairwise(merged))


@given(INTERVALS, INTERVALS)
def test_overlap(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert overlap(union(one), union(other)) == len(covered(one) & covered(other))


# --- files ------------------------------------------------------------------------------------

WHOLE = json.dumps({"traceEvents": [op("aten::add", 0, 1)]})


def test_packed_traces_are_read(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.json", tmp_path / "b.json.gz"
    plain.write_text(WHOLE)
    packed.write_bytes(gzip.compress(WHOLE.encode()))
    assert read_trace(plain) == read_trace(packed)
    (event,) = read_trace(plain)
    assert (event.category, event.name, event.seconds) == ("cpu_op", "aten::add", 1e-3)


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([op("aten::add", 0, 1)]))
    assert len(read_trace(path)) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        WHOLE[:-20].encode(),
        gzip.compress(WHOLE.encode())[:-9],
        b"\x1f\x8b but no gzip",
        b"{}",
        b"7",
        b'{"traceEvents": 7}',
        b'{"traceEvents": []}',
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": "soon", "dur": 1}]}',
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": [], "dur": 1}]}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_what_is_no_trace(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.json") as caught:
        read_trace(path)
    assert isinstance(caught.value, DataError)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no trace .*a\.json"):
        read_trace(tmp_path / "a.json")
    with pytest.raises(StorageError, match="cannot read the trace"):
        read_trace(tmp_path)


def test_own_sources(tmp_path: Path) -> None:
    """Files below the folders, by the names that the trace has for them; no libraries."""
    for name in ("train.py", "lib/model.py", "torch/nn.py", "venv/site-packages/x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}")
    outside = tmp_path.parent / "outside.py"
    outside.write_text("")
    names = ["train.py", "lib/model.py", "torch/nn.py", "venv/site-packages/x.py", "gone.py"]
    names += [f"{tmp_path}/lib/model.py", str(outside), "../outside.py", "threading.py", "<string>"]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([python(f"{name}(3): f", 0, 1) for name in names]))
    found = own_sources(read_trace(path), [tmp_path])
    assert set(found) == {"train.py", "lib/model.py", f"{tmp_path}/lib/model.py"}
    assert found["lib/model.py"] == "# lib/model.py"


# --- traces that torch.profiler makes -----------------------------------------------------------

LOOP = textwrap.dedent(
    """\
    import sys

    import torch
    from torch.profiler import ProfilerActivity, profile, schedule


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(x)


    def log(loss):
        return float(loss.detach())


    def main(path, with_stack):
        net = Net()
        optimizer = torch.optim.Adam(net.parameters())
        loader = torch.utils.data.DataLoader(torch.ones(20, 8), batch_size=4, shuffle=True)
        plan = schedule(wait=1, warmup=1, active=3, repeat=1)
        cpu = [ProfilerActivity.CPU]
        with profile(activities=cpu, with_stack=with_stack, schedule=plan) as seen:
            for batch in loader:
                optimizer.zero_grad()
                loss = net(batch).square().mean()
                loss.backward()
                optimizer.step()
                total = loss.item()
                log(loss)
                seen.step()
        seen.export_chrome_trace(path)
    """
)


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A trace of three steps of that loop, in a module of its own."""

    def recorded(name: str, with_stack: bool) -> Path:
        (tmp_path / "a_loop.py").write_text(LOOP)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "a_loop", raising=False)
        importlib.import_module("a_loop").main(str(tmp_path / name), with_stack)
        return tmp_path / name

    return recorded


def test_a_trace_of_the_cpu(recorded: Callable[..., Path], tmp_path: Path) -> None:
    """The lines that would wait on a GPU are found; the optimizer's and the loader's own items,
    of tensors that are on the CPU anyway, are not told of."""
    events = read_trace(recorded("trace.json.gz", with_stack=True))
    found = facts(events, own_sources(events, [tmp_path]))
    assert (found.steps, found.has_gpu, found.gpu_idle) == (3, False, 0)
    lines = {(line.file, line.line, line.what, line.calls) for line in found.syncs}
    assert lines == {
        ("a_loop.py", 17, "item() or its like", 1),
        ("a_loop.py", 32, "item()", 1),
    }
    assert all(0 < line.seconds < found.seconds / 3 for line in found.syncs)


def is_operator(name: str) -> bool:
    return "::" in name and "autograd::" not in name


def test_operators_that_call_no_other(tmp_path: Path) -> None:
    """As the profiler's own tree of calls has them."""
    model = torch.nn.Linear(8, 8)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        model(torch.ones(4, 8)).square().mean().backward()
    path = tmp_path / "trace.json"
    seen.export_chrome_trace(str(path))
    operators = [event for event in seen.events() if is_operator(event.name)]
    leaves = [
        event
        for event in operators
        if not any(is_operator(child.name) for child in event.cpu_children)
    ]
    host = host_facts(read_trace(path), lambda file: True)
    assert host.num_ops == len(leaves) > 10


def test_without_python_functions(recorded: Callable[..., Path]) -> None:
    found = facts(read_trace(recorded("trace.json", with_stack=False)))
    assert found.steps == 3
    assert found.ops_per_step > 20
    assert {line.file for line in found.syncs} == {""}
