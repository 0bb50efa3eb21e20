"""Shares of a device's peak, of a reference and of its time; the table of peaks."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from shardkit.errors import UsageError
from shardkit.measure.doctor.evidence import Utilisation
from shardkit.measure.doctor.trace.peaks import GPUS, peak_of
from shardkit.measure.doctor.trace.utilisation import _accelerator, utilisation

H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        (H100, "bfloat16", 989.4),
        (H100, "torch.float16", 989.4),
        (H100, "tf32", 494.7),
        (H100, "float32", 66.9),
        (H100, "float8_e4m3fn", 1978.9),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA GH200 480GB", "bf16", 989.4),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100-PCIE-40GB", "int8", 624),
        ("NVIDIA A100 80GB PCIe", "fp32", 19.5),
        ("NVIDIA A10", "fp16", 125),
        ("NVIDIA A10G", "fp16", 70),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("Tesla V100-SXM2-16GB", "half", 125),
        ("Tesla V100-PCIE-32GB", "float16", 112),
        ("Tesla T4", "float16", 65),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5),
        ("NVIDIA RTX A6000", "bf16", 154.8),
    ],
)
def test_peaks_by_the_names_that_drivers_say(name: str, dtype: str, tflops: float) -> None:
    found = peak_of(name, dtype)
    assert found is not None
    assert found[0] == pytest.approx(tflops * 1e12)
    assert "NVIDIA" in found[1]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("cpu", "float32"),
        ("", "float32"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16"),
        ("NVIDIA A100-SXM-64GB", "bf16"),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA H100", "bf16"),  # SXM, PCIe or NVL: they differ by a quarter
        ("Tesla T4", "bfloat16"),
        ("Tesla V100-SXM2-16GB", "tf32"),
        (H100, "float64"),
    ],
)
def test_no_peak_is_guessed(name: str, dtype: str) -> None:
    assert peak_of(name, dtype) is None


def test_the_table_is_of_dense_matrices() -> None:
    """Each halving of the bits at most doubles the rate, but for products on Tensor Cores, which
    are up to 16 times those without. A sparse figure in a row of dense ones is twice too much."""
    for gpu in GPUS:
        rates = gpu.tflops
        assert rates.get("fp16") == rates.get("bf16", rates.get("fp16")), gpu.name
        for high, low in (("tf32", "bf16"), ("bf16", "int8"), ("fp16", "int8")):
            if high in rates and low in rates:
                assert 1.9 <= rates[low] / rates[high] <= 4.1, (gpu.name, high, low)
        assert all(re.fullmatch("(fp|bf|tf|int)[0-9]+", dtype) for dtype in rates)
        assert gpu.source


@pytest.mark.parametrize(
    "name", ["A10", "A100 80GB PCIe", "L40", "L40S", "H200", "H200 NVL", "B200"]
)
def test_no_two_rows_hold_for_one_name(name: str) -> None:
    assert sum(re.fullmatch(gpu.name, name) is not None for gpu in GPUS) == 1


# --- shares -----------------------------------------------------------------------------------


def test_mfu_of_a_matmul_heavy_model() -> None:
    """Two layers of n x n on b rows: 2 b n^2 FLOPs each forward, and twice that backward, but for
    the first layer's input, which needs no gradient. On a device of 1 teraFLOP/s, at 100 steps a
    second. The bias and the activation are under 5 %."""
    b, n = 64, 128
    layers = torch.nn.Linear(n, n), torch.nn.ReLU(), torch.nn.Linear(n, n)
    model = torch.nn.Sequential(*layers)
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(b, n)).sum().backward()
    by_hand = 2 * b * n * n * (3 + 2)
    found = utilisation(
        flops_per_step=counter.get_total_flops(),
        steps_per_s=100,
        device_name="cpu",
        dtype="float32",
        peak_tflops=1,
    )
    assert found.mfu == pytest.approx(by_hand * 100 / 1e12, rel=0.05)
    assert (found.peak, found.source) == (1e12, "given")


def test_mfu_by_the_table() -> None:
    found = utilisation(
        flops_per_step=3e12, steps_per_s=156, device_name="NVIDIA A100-SXM4-80GB", dtype="bfloat16"
    )
    assert found.flops_per_s == 468e12
    assert found.mfu == 1.5  # more than there is: the caller's figures are not bent to fit
    assert found.source == "NVIDIA A100 Tensor Core GPU data sheet"


def test_nothing_is_said_of_what_is_not_known() -> None:
    found = utilisation(flops_per_step=None, steps_per_s=10, device_name="cpu", dtype=None)
    assert found == Utilisation()
    found = utilisation(flops_per_step=5e9, steps_per_s=10, device_name="Tesla P4", dtype="float32")
    assert (found.flops_per_s, found.mfu, found.peak) == (5e10, None, None)


@pytest.mark.parametrize(
    ("own", "replay", "share"),
    [(9, 10, 0.9), (10, 10, 1), (10.2, 10, 1), (1, 20, 0.05), (None, 10, None), (5, None, None)],
)
def test_accelerator_utilisation(
    own: float | None, replay: float | None, share: float | None
) -> None:
    """Compute time through all time, as MLPerf Storage has it, where 90 % passes."""
    found = utilisation(
        flops_per_step=None,
        steps_per_s=1,
        device_name="cpu",
        dtype=None,
        own_rate=own,
        replay_rate=replay,
    )
    assert found.accelerator == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    ("rates", "waits", "share"),
    [((3.42, 10.7), 0.12, None), ((5.4, 10), 0.02, None), ((5, 10), 0.48, 0.5)],
)
def test_no_accelerator_utilisation_where_workers_slow_the_step(
    rates: tuple[float, float], waits: float, share: float | None
) -> None:
    """Measured: 3.42 steps/s as it is and 10.7 with loading free, of a loop that waits for 12 %."""
    assert _accelerator(*rates, waits) == share


def test_the_share_of_a_reference() -> None:
    found = utilisation(
        flops_per_step=None,
        steps_per_s=10,
        device_name="cpu",
        dtype=None,
        samples_per_s=2475,
        reference=3300,
    )
    assert (found.reference, found.of_reference) == (3300, 0.75)


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["peak_tflops", "reference"])
def test_peaks_and_references_are_more_than_0(name: str, wrong: float) -> None:
    with pytest.raises(UsageError, match=f"{name} must be more than 0"):
        utilisation(flops_per_step=1, steps_per_s=1, device_name="cpu", dtype=None, **{name: wrong})
