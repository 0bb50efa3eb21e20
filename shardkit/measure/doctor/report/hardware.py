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
    found: dict[str, str | None] = {
        "cores": f"{system.cores}, of which {amount(system.cores_busy)} were busy; "
        f"the script used {amount(system.script_cores)}",
        "CPU quota": _quota(system.throttled),
        "memory": f"{format_bytes(system.memory_available)} were free at the least",
        "/dev/shm": None
        if system.shm_free is None
        else f"{format_bytes(system.shm_free)} free at the least",
    }
    return {key: text for key, text in found.items() if text is not None}


def _quota(throttled: float | None) -> str | None:
    if throttled is None:
        return None
    if throttled == 0:
        return "it never stopped the script"
    return f"it stopped the script {percent(throttled)} of the time"


def gpu_in_words(gpu: GpuEvidence) -> str:
    """One GPU."""
    reasons = sorted(gpu.throttle, key=lambda reason: -gpu.throttle[reason])
    held = ", ".join(f"{facts.name(reason)} {percent(gpu.throttle[reason])}" for reason in reasons)
    return (
        f"utilisation {percent(gpu.utilisation)} ({UTILISATION_WARNING}), "
        f"memory {format_bytes(gpu.memory_used)} of {format_bytes(gpu.memory_total)}"
        f"{f'; held back by {held}' * bool(held)}"
    )


def trace_in_words(trace: TraceFacts) -> str:
    """What the trace says of the GPU."""
    return (
        f"{amount(trace.seconds)} s; the GPU was idle {percent(trace.gpu_idle)} of the time, "
        f"{amount(trace.kernels_per_s)} kernels/s of {amount(1e6 * trace.kernel_s)} µs, "
        f"only copying {percent(trace.copy_exposed)}"
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
    return f", an MFU of {percent(seen.mfu)}{of}"


def flops(per_s: float) -> str:
    """Floating-point operations a second."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if abs(per_s) >= size:
            return f"{amount(per_s / size)} {unit}FLOP/s"
    return f"{amount(per_s / 1e6)} MFLOP/s"
