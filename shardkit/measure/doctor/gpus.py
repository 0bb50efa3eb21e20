"""GPUs, by NVML, through NVIDIA's own package ``nvidia-ml-py``, whose module is ``pynvml``.

It has not run on a GPU yet. The tests have a stand-in for the module; version 13.615 of the package
was tried over a made-up library.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from shardkit.measure.doctor.evidence import GpuEvidence

REASONS = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "thermal",
    "HwThermalSlowdown": "thermal",
    "HwPowerBrakeSlowdown": "power brake",
}
"""NVML's names of what keeps clocks down, and ours. That a GPU is idle keeps them down, too, but
slows nothing."""


@dataclass
class _Gpu:
    """One GPU, and sums over the looks taken at it."""

    number: int
    handle: Any
    name: str
    looks: int = 0
    utilisation: float = 0.0
    memory_used: int = 0
    memory_total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    is_used: bool = False

    def evidence(self) -> GpuEvidence:
        return GpuEvidence(
            self.name,
            self.utilisation / self.looks,
            self.memory_used,
            self.memory_total,
            {name: seen / self.looks for name, seen in sorted(self.reasons.items())},
        )


class Gpus:
    """The GPUs of this machine, from :meth:`open` to :meth:`close`. Not for several threads."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._bits: dict[int, str] = {}
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be seen, and why, a sentence each."""
        return tuple(self._notes)

    def open(self) -> None:
        """Find the GPUs; a note says why if there is none to be found."""
        try:
            import pynvml
        except ImportError:
            self._note(
                "GPUs were not looked at, since pynvml is not installed: pip install"
                " 'shardkit[doctor]'."
            )
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._note(f"No GPU was seen: NVML does not start ({error}).")
            return
        self._nvml = pynvml
        for name, ours in REASONS.items():
            self._bits[getattr(pynvml, f"nvmlClocksEventReason{name}", 0)] = ours
        try:
            for number in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(number)
                self._gpus.append(_Gpu(number, handle, pynvml.nvmlDeviceGetName(handle)))
        except pynvml.NVMLError as error:
            self._gpus.clear()
            self._note(f"No GPU was seen: NVML does not list them ({error}).")

    def close(self) -> None:
        if self._nvml is None:
            return
        nvml, self._nvml = self._nvml, None
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError as error:
            self._note(f"NVML did not shut down ({error}).")

    def look(self, pids: set[int]) -> None:
        """Take one look at each; ``pids`` are the script's processes."""
        if self._nvml is None:
            return
        nvml = self._nvml
        for gpu in list(self._gpus):
            try:
                memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
                utilisation = nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100
            except nvml.NVMLError as error:
                self._gpus.remove(gpu)
                self._note(
                    f"GPU {gpu.number} was given up: NVML does not say how busy it is ({error})."
                )
                continue
            gpu.looks += 1
            gpu.utilisation += utilisation
            gpu.memory_used = max(gpu.memory_used, memory.used)
            gpu.memory_total = memory.total
            self._look_closer(gpu, pids)

    def _look_closer(self, gpu: _Gpu, pids: set[int]) -> None:
        """Ask what virtual GPUs, parts of one (MIG) and old drivers do not tell."""
        try:
            found = self._nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu.handle)
            gpu.reasons.update({name for bit, name in self._bits.items() if found & bit})
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
            gpu.is_used |= any(process.pid in pids for process in running)
        except self._nvml.NVMLError as error:
            self._note(f"GPU {gpu.number} ({gpu.name}) does not tell all ({error}).")

    def result(self) -> tuple[GpuEvidence, ...]:
        """Return those that a process of the script ran on; all of them where none is known by its
        id, as from within a container."""
        seen = [gpu for gpu in self._gpus if gpu.looks]
        used = [gpu for gpu in seen if gpu.is_used]
        return tuple(gpu.evidence() for gpu in used or seen)

    def _note(self, sentence: str) -> None:
        self._notes[sentence] = None
