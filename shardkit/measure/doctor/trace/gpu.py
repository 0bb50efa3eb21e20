"""What ran on the GPUs of a trace, and when nothing did. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from shardkit.measure.doctor.trace.file import ON_GPU, Event
from shardkit.measure.doctor.trace.intervals import Interval, length, overlap, union

_TENSOR_CORE = (
    # torch-tb-profiler's list (tb_plugin/torch_tb_profiler/profiler/tensor_core.py of
    # pytorch/kineto), which is PyProf's (pyprof/prof/tc.py of NVIDIA/PyProf). 884, 1688, 16816 and
    # 8816 are the shapes of Tensor Core instructions of Volta, Turing and Ampere.
    *("h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "c1688"),
    *("dgrad_1x1_stride_2x2", "first_layer_wgrad_kernel", "conv1x1", "conv2d_c1_k1"),
    *("direct_group", "xmma_"),
    # CUTLASS: "tensorop indicates that the kernel makes use of NVIDIA Tensor Cores (as opposed to
    # simt)", media/docs/profiler.md.
    *("tensorop", "wgmma"),
    # cuBLAS on Hopper and Blackwell.
    "nvjet",
    # FlashAttention, which is for half precision only, and cuDNN's own attention.
    *("flash_fwd", "flash_bwd", "cudnn_generated_fort_native_sdpa"),
)
"""Parts of the names of kernels that use Tensor Cores. Triton's kernels do not say it: those that
torch.compile makes count as not using them."""

_NO_TENSOR_CORE = ("ffma", "simt")
"""Names with these are products without Tensor Cores, whatever else they say:
``sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x256x8_stage3_warpsize2x4x1_ffma_...`` is cuBLAS's
for float32 without TF32, on Hopper too."""


@cache
def uses_tensor_cores(kernel: str) -> bool:
    """Whether a kernel's name says that it computes on Tensor Cores."""
    name = kernel.lower()
    if any(part in name for part in _NO_TENSOR_CORE):
        return False
    return any(part in name for part in _TENSOR_CORE)


@cache
def is_collective(kernel: str) -> bool:
    """Whether it is NCCL's or RCCL's: ``ncclDevKernel_AllReduce_...``, ``ncclKernel_...``."""
    return kernel.startswith(("nccl", "rccl"))


@dataclass(frozen=True)
class GpuFacts:
    """The figures of GPUs in TraceFacts, which explains them; 0 where there is no GPU.

    Shares of time are means over the GPUs, all from the first thing on any of them to the last.
    Kernels a second are those of all GPUs together: one process launches them.
    """

    has_gpu: bool = False
    idle: float = 0.0
    kernels_per_s: float = 0.0
    kernel_s: float = 0.0
    copy_exposed: float = 0.0
    tensor_core: float = 0.0
    collective: float = 0.0


@dataclass
class _Gpu:
    """One GPU's intervals: of computing, of copies from or to elsewhere, and of NCCL."""

    work: list[Interval]
    copies: list[Interval]
    collectives: list[Interval]


def gpu_facts(events: Iterable[Event]) -> GpuFacts:
    """What ran on the GPUs, of whatever a trace holds."""
    mine = [event for event in events if event.category in ON_GPU]
    if not mine:
        return GpuFacts()
    seconds = max(event.end for event in mine) - min(event.start for event in mine)
    kernels = [event for event in mine if event.category == "kernel"]
    gpus = _by_gpu(mine).values()
    total = seconds * len(gpus)
    return GpuFacts(
        has_gpu=True,
        idle=_share(total - sum(_busy(gpu) for gpu in gpus), total),
        kernels_per_s=_share(len(kernels), seconds),
        kernel_s=_share(sum(kernel.seconds for kernel in kernels), len(kernels)),
        copy_exposed=_share(sum(_exposed(gpu) for gpu in gpus), total),
        tensor_core=_tensor_core(kernels),
        collective=_share(sum(length(union(gpu.collectives)) for gpu in gpus), total),
    )


def _by_gpu(events: Iterable[Event]) -> dict[str | int, _Gpu]:
    gpus: dict[str | int, _Gpu] = {}
    for event in events:
        gpu = gpus.setdefault(event.owner, _Gpu([], [], []))
        interval = (event.start, event.end)
        (gpu.copies if _is_copy(event) else gpu.work).append(interval)
        if event.category == "kernel" and is_collective(event.name):
            gpu.collectives.append(interval)
    return gpus


def _is_copy(event: Event) -> bool:
    """Between the GPU and elsewhere. Within its own memory (``Memcpy DtoD``, what ``clone()`` does)
    it is work like a kernel's."""
    return event.category == "gpu_memcpy" and "DtoD" not in event.name


def _busy(gpu: _Gpu) -> float:
    return length(union((*gpu.work, *gpu.copies)))


def _exposed(gpu: _Gpu) -> float:
    copies = union(gpu.copies)
    return length(copies) - overlap(copies, union(gpu.work))


def _tensor_core(kernels: Sequence[Event]) -> float:
    """Of the kernels that compute: those of NCCL spin while they wait for the other ranks, so that
    their time says nothing of the arithmetic."""
    computing = [kernel for kernel in kernels if not is_collective(kernel.name)]
    used = sum(kernel.seconds for kernel in computing if uses_tensor_cores(kernel.name))
    return _share(used, sum(kernel.seconds for kernel in computing))


def _share(part: float, whole: float) -> float:
    """0 of nothing, and never less than 0, which rounding makes of the difference of equals."""
    return max(0.0, part / whole) if whole > 0 else 0.0
