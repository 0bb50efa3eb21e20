"""GPUs by NVML: what is made of its answers and errors, with a stand-in for its module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shardkit.measure.doctor.evidence import GpuEvidence
from shardkit.measure.doctor.machine.gpus import Gpus
from shardkit.measure.doctor.machine.monitor import Monitor


class NVMLError(Exception):
    """As of nvidia-ml-py 13.615: the code is ``value``."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 12: "NVML Shared Library Not Found", 15: "GPU is lost"}[
            self.value
        ]


CONSTANTS = {
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_CLOCK_SM": 1,
    "NVML_PCIE_UTIL_TX_BYTES": 0,
    "NVML_PCIE_UTIL_RX_BYTES": 1,
    "nvmlClocksEventReasonGpuIdle": 0x1,
    "nvmlClocksEventReasonApplicationsClocksSetting": 0x2,
    "nvmlClocksEventReasonSwPowerCap": 0x4,
    "nvmlClocksEventReasonHwSlowdown": 0x8,
    "nvmlClocksEventReasonSyncBoost": 0x10,
    "nvmlClocksEventReasonSwThermalSlowdown": 0x20,
    "nvmlClocksEventReasonHwThermalSlowdown": 0x40,
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": 0x80,
    "nvmlClocksEventReasonDisplayClockSetting": 0x100,
}
NOT_SUPPORTED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 12, 13, 15

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlShutdown": lambda: None,
    "nvmlDeviceGetCount": lambda: 2,
    "nvmlDeviceGetHandleByIndex": lambda number: number,
    "nvmlDeviceGetName": lambda gpu: f"GPU type {gpu}",
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=[80, 40][gpu], memory=5),
    "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=1000, free=900, used=100 + gpu),
    "nvmlDeviceGetPowerUsage": lambda gpu: 250_500,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 300_000,
    "nvmlDeviceGetClockInfo": lambda gpu, kind: {1: 1200}[kind],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: {1: 1980}[kind],
    "nvmlDeviceGetPcieThroughput": lambda gpu, counter: [7, 5000][counter],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: [0x5, 0x60][gpu],
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [],
}
"""As NVML answers for two GPUs: percent, bytes, milliwatts, MHz, kB/s, bits."""


class Nvml:
    """The module, and what of it fails from now on: name -> code."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.calls: list[str] = []
        self.module = ModuleType("pynvml")
        vars(self.module).update(CONSTANTS, NVMLError=NVMLError)
        for name, function in FUNCTIONS.items():
            self.set(name, function)

    def set(self, name: str, function: Callable[..., Any]) -> None:
        def call(*args: Any) -> Any:
            self.calls.append(name)
            if name in self.failing:
                raise NVMLError(self.failing[name])
            return function(*args)

        setattr(self.module, name, call)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made.module)
    return made


def watched(looks: int = 2, pids: set[int] = frozenset()) -> Gpus:
    gpus = Gpus()
    gpus.open()
    for _ in range(looks):
        gpus.look(set(pids))
    gpus.close()
    return gpus


def test_two_gpus(nvml: Nvml) -> None:
    gpus = watched()
    first, second = gpus.result()
    assert gpus.notes == () and nvml.calls[-1] == "nvmlShutdown"
    assert first == GpuEvidence(
        name="GPU type 0",
        utilisation=0.8,
        memory_used=100,
        memory_total=1000,
        power_w=250.5,
        power_limit_w=300,
        sm_mhz=1200,
        max_sm_mhz=1980,
        throttle={"power cap": 1.0},
        pcie_rx_bytes_per_s=5e6,
        pcie_tx_bytes_per_s=7e3,
    )
    assert (second.utilisation, second.throttle) == (0.4, {"thermal": 1.0})


def test_pcie_of_one_gpu_a_look(nvml: Nvml) -> None:
    """It takes 40 ms each time."""
    watched(looks=3)
    assert nvml.calls.count("nvmlDeviceGetPcieThroughput") == 2 * 3


def test_means_and_shares_of_looks(nvml: Nvml) -> None:
    seen = iter([(90, 0x4), (10, 0x8), (50, 0x0), (50, 0x4)])
    busy: dict[str, int] = {}

    def utilisation(gpu: int) -> Any:
        busy["now"], busy["reasons"] = next(seen)
        return SimpleNamespace(gpu=busy["now"])

    nvml.set("nvmlDeviceGetCount", lambda: 1)
    nvml.set("nvmlDeviceGetUtilizationRates", utilisation)
    nvml.set("nvmlDeviceGetCurrentClocksEventReasons", lambda gpu: busy["reasons"])
    (found,) = watched(looks=4).result()
    assert found.utilisation == pytest.approx(0.5)
    assert found.throttle == {"hardware slowdown": 0.25, "power cap": 0.5}


def test_only_gpus_that_the_script_runs_on(nvml: Nvml) -> None:
    running = {0: [], 1: [SimpleNamespace(pid=4321)]}
    nvml.set("nvmlDeviceGetComputeRunningProcesses", running.__getitem__)
    assert [gpu.name for gpu in watched(pids={4321}).result()] == ["GPU type 1"]
    assert len(watched(pids={1234}).result()) == 2


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = watched()
    assert gpus.result() == ()
    assert gpus.notes == (
        "GPUs were not looked at, since pynvml is not installed: pip install 'shardkit[doctor]'.",
    )


def test_no_library(nvml: Nvml) -> None:
    nvml.failing["nvmlInit"] = LIBRARY_NOT_FOUND
    gpus = watched()
    assert gpus.result() == () and nvml.calls == ["nvmlInit"]
    assert gpus.notes == ("No GPU was seen: NVML does not start (NVML Shared Library Not Found).",)


@pytest.mark.parametrize("name", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_gpus_that_cannot_be_listed(nvml: Nvml, name: str) -> None:
    nvml.failing[name] = GPU_IS_LOST
    gpus = watched()
    assert gpus.result() == () and nvml.calls[-1] == "nvmlShutdown"
    assert gpus.notes == ("No GPU was seen: NVML does not list them (GPU is lost).",)


def test_a_gpu_that_is_lost_midway(nvml: Nvml) -> None:
    gpus = Gpus()
    gpus.open()
    gpus.look(set())
    nvml.failing["nvmlDeviceGetUtilizationRates"] = GPU_IS_LOST
    gpus.look(set())
    gpus.look(set())
    assert gpus.result() == () and len(gpus.notes) == 2
    assert gpus.notes[0] == "GPU 0 was given up: NVML does not say how busy it is (GPU is lost)."


def test_what_a_gpu_does_not_tell_is_noted_once(nvml: Nvml) -> None:
    nvml.set("nvmlDeviceGetCount", lambda: 1)
    nvml.failing["nvmlDeviceGetPcieThroughput"] = NOT_SUPPORTED
    gpus = watched(looks=3)
    (found,) = gpus.result()
    assert found.pcie_rx_bytes_per_s == 0 and found.power_w == 250.5
    assert gpus.notes == ("GPU 0 (GPU type 0) does not tell its PCIe throughput (Not Supported).",)


def test_a_driver_that_knows_reasons_by_their_former_name(nvml: Nvml) -> None:
    nvml.failing["nvmlDeviceGetCurrentClocksEventReasons"] = FUNCTION_NOT_FOUND
    nvml.set("nvmlDeviceGetCurrentClocksThrottleReasons", lambda gpu: 0x80)
    gpus = watched()
    assert gpus.notes == () and gpus.result()[0].throttle == {"power brake": 1.0}


def test_a_monitor_has_its_gpus(nvml: Nvml) -> None:
    with Monitor(set, every_s=30) as monitor:
        pass
    assert len(monitor.result().gpus) == 2 and monitor.notes == ()
