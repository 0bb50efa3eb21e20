"""What was seen of the machine and of its GPUs, as names and text."""

from __future__ import annotations

from shardkit.measure.doctor.evidence import GpuEvidence, SystemEvidence, TraceFacts, Utilisation
from shardkit.measure.doctor.report import facts
from shardkit.measure.report.words import amount, percent
from shardkit.system.byte_sizes import format_bytes

PASSES = 0.9
"""From this accelerator utilisation on, a loader passes in MLPerf Storage."""

UTILISATION_WARNING = "which only says that some kernel ran"


def machine(system: SystemEvidence) -> dict[str, str]:
    """The machine during the run: what was seen, by name."""
    ends = dict.fromkeys(map(percent, sorted(system.per_core)))
    each = f", each {' to '.join([*ends][:: max(len(ends) - 1, 1)])}" if ends else ""
    found: dict[str, str | None] = {
        "cores": f"{system.cores}, of which {amount(system.cores_busy)} were busy{each}; "
        f"the script used {amount(system.script_cores)}",
        "CPU quota": _quota(system.throttled),
        "pressure": _shares(system.pressure, "some task waited for"),
        "disk": f"{format_bytes(system.disk_read_bytes_per_s)}/s in "
        f"{amount(system.disk_reads_per_s)} reads/s; "
        f"{amount(system.major_faults_per_s)} page faults/s had to read from it",
        "memory": f"{format_bytes(system.memory_available)} were free at the least",
        "/dev/shm": _shared_memory(system),
    }
    return {key: text for key, text in found.items() if text is not None}


def _quota(throttled: float | None) -> str | None:
    if throttled is None:
        return None
    if throttled == 0:
        return "it never stopped the script"
    return f"it stopped the script {percent(throttled)} of the time"


def _shares(shares: dict[str, float], before: str) -> str | None:
    """The larger ones first."""
    if not shares:
        return None
    order = sorted(shares, key=lambda key: -shares[key])
    return f"{before} {', '.join(f'{facts.name(key)} {percent(shares[key])}' for key in order)}"


def _shared_memory(system: SystemEvidence) -> str | None:
    used, free = system.shm_bytes, system.shm_free
    seen = [
        None if used is None else f"{format_bytes(used)} used at most",
        None if free is None else f"{format_bytes(free)} free at the least",
    ]
    return ", ".join(one for one in seen if one) or None


def gpu_in_words(gpu: GpuEvidence) -> str:
    """One GPU."""
    held = _shares({key: one for key, one in gpu.throttle.items() if one}, "; held back by") or ""
    pcie = f"{format_bytes(gpu.pcie_rx_bytes_per_s)}/s in, "
    return (
        f"utilisation {percent(gpu.utilisation)} ({UTILISATION_WARNING}), "
        f"{amount(gpu.sm_mhz)} of {amount(gpu.max_sm_mhz)} MHz, "
        f"{amount(gpu.power_w)} of {amount(gpu.power_limit_w)} W, "
        f"memory {format_bytes(gpu.memory_used)} of {format_bytes(gpu.memory_total)}, "
        f"PCIe {pcie}{format_bytes(gpu.pcie_tx_bytes_per_s)}/s out{held}"
    )


def trace_in_words(trace: TraceFacts) -> str:
    """What the trace says; of a GPU only where there was one."""
    steps = "1 step" if trace.steps == 1 else f"{trace.steps} steps"
    start = f"{steps} in {amount(trace.seconds)} s, {amount(trace.ops_per_step)} operators a step"
    if not trace.steps:
        start = f"{amount(trace.seconds)} s, in which no step was whole"
    if not trace.has_gpu:
        return start
    return (
        f"{start}; the GPU was idle {percent(trace.gpu_idle)} of the time, "
        f"{amount(trace.kernels_per_s)} kernels/s of {amount(1e6 * trace.kernel_s)} µs, "
        f"only copying {percent(trace.copy_exposed)}, "
        f"Tensor Cores in {percent(trace.tensor_core)} of the kernels' time, "
        f"NCCL {percent(trace.collective)}"
    )


def utilisation(seen: Utilisation) -> dict[str, str]:
    """How much of the device is used, by name."""
    found: dict[str, str] = {}
    if seen.accelerator is not None:
        passes = "passes" if seen.accelerator >= PASSES else "does not pass"
        found["accelerator"] = (
            f"it works {percent(seen.accelerator)} of the time that it would with loading free "
            f"({passes} in MLPerf Storage)"
        )
    if seen.flops_per_s is not None:
        found["arithmetic"] = f"{flops(seen.flops_per_s)}{_of_peak(seen)}"
    if seen.reference is not None:
        share = "" if seen.of_reference is None else f"{percent(seen.of_reference)} of "
        found["reference"] = f"{share}the {amount(seen.reference)} a second that you gave"
    return found


def _of_peak(seen: Utilisation) -> str:
    if seen.mfu is None:
        return ""
    of = "" if seen.peak is None else f" of {flops(seen.peak)}"
    source = "" if seen.source is None else f" ({facts.name(seen.source)})"
    return f", an MFU of {percent(seen.mfu)}{of}{source}"


def flops(per_s: float) -> str:
    """Floating-point operations a second."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if abs(per_s) >= size:
            return f"{amount(per_s / size)} {unit}FLOP/s"
    return f"{amount(per_s / 1e6)} MFLOP/s"
