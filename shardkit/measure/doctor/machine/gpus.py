"""GPUs, by NVML, through NVIDIA's own package ``nvidia-ml-py``, whose module is ``pynvml``.

It has not run on a GPU yet. The tests have a stand-in for the module; version 13.615 of the package
was tried over a made-up library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from shardkit.measure.doctor.evidence import GpuEvidence

REASONS = {
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SwThermalSlowdown": "thermal",
    "HwThermalSlowdown": "thermal",
    "HwPowerBrakeSlowdown": "power brake",
    "SyncBoost": "sync boost",
    "ApplicationsClocksSetting": "application clocks",
    "DisplayClockSetting": "display clocks",
}
"""NVML's names of what keeps clocks down, and ours. That a GPU is idle keeps them down, too, but
slows nothing."""

_WORDS = {
    "power_w": "power",
    "power_limit_w": "power limit",
    "sm_mhz": "clock",
    "max_sm_mhz": "highest clock",
    "pcie_rx_bytes_per_s": "PCIe throughput",
    "pcie_tx_bytes_per_s": "PCIe throughput",
}
"""What a figure is called in a note."""

INSTALL = "pip install 'shardkit[doctor]'"


class _Gpu:
    """One GPU: sums over the looks taken at it, by the fields of :class:`GpuEvidence`."""

    def __init__(self, number: int, handle: Any, name: str) -> None:
        self.number = number
        self.handle = handle
        self.name = name
        self.sums: Counter[str] = Counter()
        self.looks: Counter[str] = Counter()
        self.most: dict[str, float] = {}
        self.reasons: Counter[str] = Counter()
        self.is_used = False

    def add(self, field: str, value: float) -> None:
        self.sums[field] += value  # type: ignore[assignment]  # typeshed's counts are whole
        self.looks[field] += 1
        self.most[field] = max(value, self.most.get(field, value))

    def mean(self, field: str) -> float:
        return self.sums[field] / max(self.looks[field], 1)

    def evidence(self) -> GpuEvidence:
        looks = max(self.looks["reasons"], 1)
        return GpuEvidence(
            name=self.name,
            utilisation=self.mean("utilisation"),
            memory_used=int(self.most["memory_used"]),
            memory_total=int(self.most["memory_total"]),
            power_w=self.mean("power_w"),
            power_limit_w=self.mean("power_limit_w"),
            sm_mhz=self.mean("sm_mhz"),
            max_sm_mhz=self.mean("max_sm_mhz"),
            throttle={name: seen / looks for name, seen in sorted(self.reasons.items())},
            pcie_rx_bytes_per_s=self.mean("pcie_rx_bytes_per_s"),
            pcie_tx_bytes_per_s=self.mean("pcie_tx_bytes_per_s"),
        )


class Gpus:
    """The GPUs of this machine, from :meth:`open` to :meth:`close`. Not for several threads.

    Attributes:
        notes: what could not be seen, and why, a sentence each.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._gpus: list[_Gpu] = []
        self._bits: dict[int, str] = {}
        self._notes: dict[str, None] = {}
        self._turn = 0

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def open(self) -> None:
        """Find them; a note says why if there is none to be found."""
        try:
            import pynvml
        except ImportError:
            self._note(f"GPUs were not looked at, since pynvml is not installed: {INSTALL}.")
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._note(f"No GPU was seen: NVML does not start ({error}).")
            return
        self._nvml = pynvml
        self._bits = _bits(pynvml)
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
        for gpu in list(self._gpus):
            try:
                self._look_at(gpu)
            except self._nvml.NVMLError as error:
                self._gpus.remove(gpu)
                self._note(
                    f"GPU {gpu.number} was given up: NVML does not say how busy it is ({error})."
                )
                continue
            self._look_closer(gpu, pids)
        if self._gpus:
            self._look_at_pcie(self._gpus[self._turn % len(self._gpus)])
        self._turn += 1

    def result(self) -> tuple[GpuEvidence, ...]:
        """Those that a process of the script ran on; where none is known by its id, as from within
        a container, all of them."""
        seen = [gpu for gpu in self._gpus if gpu.looks["utilisation"]]
        used = [gpu for gpu in seen if gpu.is_used]
        return tuple(gpu.evidence() for gpu in used or seen)

    def _look_at(self, gpu: _Gpu) -> None:
        """What nothing can be said without."""
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
        gpu.add("utilisation", nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100)
        gpu.add("memory_used", memory.used)
        gpu.add("memory_total", memory.total)

    def _look_closer(self, gpu: _Gpu, pids: set[int]) -> None:
        """What some GPUs, virtual ones and parts of one (MIG), do not tell."""
        nvml, handle = self._nvml, gpu.handle
        self._add(gpu, "power_w", partial(nvml.nvmlDeviceGetPowerUsage, handle), 1e-3)
        self._add(gpu, "power_limit_w", partial(nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3)
        sm = nvml.NVML_CLOCK_SM
        self._add(gpu, "sm_mhz", partial(nvml.nvmlDeviceGetClockInfo, handle, sm))
        self._add(gpu, "max_sm_mhz", partial(nvml.nvmlDeviceGetMaxClockInfo, handle, sm))
        self._look_at_reasons(gpu)
        list_running = partial(nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        running = self._ask(gpu, "processes", list_running)
        gpu.is_used |= any(process.pid in pids for process in running or ())

    def _look_at_pcie(self, gpu: _Gpu) -> None:
        """Each counter runs for 20 ms before it answers, so there is one GPU a look."""
        nvml, handle = self._nvml, gpu.handle
        for way in ("rx", "tx"):
            which = getattr(nvml, f"NVML_PCIE_UTIL_{way.upper()}_BYTES")
            read = partial(nvml.nvmlDeviceGetPcieThroughput, handle, which)
            self._add(gpu, f"pcie_{way}_bytes_per_s", read, 1e3)

    def _look_at_reasons(self, gpu: _Gpu) -> None:
        read = partial(_current_reasons, self._nvml, gpu.handle)
        found = self._ask(gpu, "throttle reasons", read)
        if found is not None:
            gpu.looks["reasons"] += 1
            gpu.reasons.update({name for bit, name in self._bits.items() if found & bit})

    def _add(self, gpu: _Gpu, field: str, read: Callable[[], float], scale: float = 1.0) -> None:
        if (value := self._ask(gpu, _WORDS[field], read)) is not None:
            gpu.add(field, scale * value)

    def _ask(self, gpu: _Gpu, what: str, read: Callable[[], Any]) -> Any:
        """None, and a note, where this GPU does not tell."""
        try:
            return read()
        except self._nvml.NVMLError as error:
            self._note(f"GPU {gpu.number} ({gpu.name}) does not tell its {what} ({error}).")
            return None

    def _note(self, sentence: str) -> None:
        self._notes[sentence] = None


def _bits(nvml: Any) -> dict[int, str]:
    """Bit -> reason, as this version of the package numbers them."""
    named = {
        getattr(nvml, f"nvmlClocksEventReason{name}", 0): ours for name, ours in REASONS.items()
    }
    return {bit: ours for bit, ours in named.items() if bit}


def _current_reasons(nvml: Any, handle: Any) -> int:
    """Drivers before 535 know them by their former name alone."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
