"""The share of a device's peak that is used, and the table of peaks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from doctor_evidence import rank

from shardkit.measure.doctor.evidence import Utilisation
from shardkit.measure.doctor.gpus import DTYPES, GPUS, peak_of, utilisation

H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        (H100, "bfloat16", 989.4),
        (H100, "tf32", 494.7),
        (H100, "float32", 66.9),
        (H100, "float8_e4m3fn", 1978.9),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA GH200 480GB", "bfloat16", 989.4),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "float32", 19.5),
        ("NVIDIA A10G", "float16", 70),
        ("NVIDIA L40S", "bfloat16", 362.05),
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("NVIDIA RTX A6000", "bfloat16", 154.8),
        ("cpu", "float32", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bfloat16", None),
        ("NVIDIA GeForce RTX 3090 Ti", "bfloat16", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bfloat16", None),
        ("NVIDIA H100", "bfloat16", None),  # SXM, PCIe or NVL: they differ by a quarter
        ("Tesla T4", "bfloat16", None),
        (H100, "float64", None),
    ],
)
def test_peaks_by_the_names_that_drivers_say(name: str, dtype: str, tflops: float | None) -> None:
    """No peak is guessed."""
    assert peak_of(name, dtype) == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_the_table_is_of_dense_matrices() -> None:
    """Each halving of the bits at most doubles the rate, but for products on Tensor Cores, which
    are up to 16 times those without. A sparse figure in a row of dense ones is twice too much."""
    for name, rates in GPUS.items():
        row = dict(zip(DTYPES, rates, strict=True))
        assert row["bfloat16"] in (None, row["float16"]), name
        for high, low in (("tf32", "bfloat16"), ("bfloat16", "float8")):
            if row[high] and row[low]:
                assert 1.9 <= row[low] / row[high] <= 2.1, (name, high, low)


@pytest.mark.parametrize("name", ["A10", "A100 80GB PCIe", "L40", "L40S", "H200", "H200 NVL"])
def test_no_two_rows_hold_for_one_name(name: str) -> None:
    assert sum(re.fullmatch(pattern, name) is not None for pattern in GPUS) == 1


def test_mfu() -> None:
    """More than there is: the figures are not bent to fit."""
    seen = rank(0.01, flops=4.68e12, dtype="bfloat16", gpu="NVIDIA A100-SXM4-80GB")
    found = utilisation([seen])
    assert found.flops_per_s == pytest.approx(468e12) and found.mfu == pytest.approx(1.5)
    given = utilisation([replace(seen, gpu="")], peak_tflops=936)
    assert given.mfu == pytest.approx(0.5) and given.peak == 936e12
    assert utilisation([replace(seen, gpu="")]).mfu is None
    assert utilisation([rank(0.01)]) == utilisation([]) == Utilisation()
