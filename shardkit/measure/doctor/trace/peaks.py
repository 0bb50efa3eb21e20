"""Peak arithmetic rates of GPUs, by their names and the dtype: what an MFU is a share of.

The figures are NVIDIA's own, for dense matrices: its newer data sheets name twice as much, with
2:4 sparsity, and halve it in a footnote. Products of fp16 and bf16 are those that add up in fp32,
as torch's do: GeForce cards have twice the rate only where fp16 adds up in fp16, too. A GPU that is
not here, a slice of one (MIG) and a laptop's have no peak, since none that is near would be right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_DTYPES = {
    "float32": "fp32",
    "float": "fp32",
    "tfloat32": "tf32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8": "fp8",
}

H100 = "NVIDIA H100 Tensor Core GPU data sheet, halved where it says 'with sparsity'"
H200 = "NVIDIA H200 Tensor Core GPU data sheet, halved where it says 'with sparsity'"
BLACKWELL = "NVIDIA Blackwell data sheet (GB200 NVL72, HGX B200), halved where it is sparse"
GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper"
ADA = "NVIDIA Ada GPU Architecture whitepaper"
V100 = "NVIDIA V100 data sheet"


@dataclass(frozen=True)
class _Gpu:
    """A row: what names of GPUs it holds for, teraFLOPs a second by dtype, and who says so."""

    name: str
    tflops: dict[str, float]
    source: str


def _rates(
    fp32: float,
    tf32: float | None = None,
    bf16: float | None = None,
    fp16: float | None = None,
    fp8: float | None = None,
    int8: float | None = None,
) -> dict[str, float]:
    """Those that there are. ``fp16`` is ``bf16``'s where it is not given, as in every Tensor Core
    since Ampere's."""
    every = {"fp32": fp32, "tf32": tf32, "bf16": bf16, "fp8": fp8, "int8": int8}
    every["fp16"] = bf16 if fp16 is None else fp16
    return {name: rate for name, rate in every.items() if rate is not None}


_HOPPER_SXM = _rates(66.9, 494.7, 989.4, fp8=1978.9, int8=1978.9)
_HOPPER_NVL = _rates(60, 417.5, 835.5, fp8=1670.5, int8=1670.5)

GPUS = (
    _Gpu(r"GB200", _rates(80, 1250, 2500, fp8=5000, int8=5000), BLACKWELL),
    _Gpu(r"B200", _rates(75, 1100, 2250, fp8=4500, int8=4500), BLACKWELL),
    _Gpu(r"H200 NVL", _HOPPER_NVL, H200),
    _Gpu(r"H200", _HOPPER_SXM, H200),
    _Gpu(
        r"GH200 (480GB|144G HBM3e)",
        _HOPPER_SXM,
        "NVIDIA GH200 Grace Hopper Superchip data sheet, halved where it says 'with sparsity'",
    ),
    _Gpu(r"H100 80GB HBM3", _HOPPER_SXM, H100),
    _Gpu(r"H100 NVL", _HOPPER_NVL, H100),
    _Gpu(r"H100 PCIe", _rates(51.2, 378, 756.5, fp8=1513, int8=1513), H100),
    _Gpu(
        r"A100([- ](SXM4|PCIe|40GB|80GB)){1,2}",
        _rates(19.5, 156, 312, int8=624),
        "NVIDIA A100 Tensor Core GPU data sheet",
    ),
    _Gpu(r"A40", _rates(37.4, 74.8, 149.7, int8=299.3), "NVIDIA A40 data sheet"),
    _Gpu(r"A10", _rates(31.2, 62.5, 125, int8=250), "NVIDIA A10 Tensor Core GPU data sheet"),
    _Gpu(r"A10G", _rates(35, 35, 70), "NVIDIA A10G data sheet, by AWS"),
    _Gpu(
        r"L4",
        _rates(30.3, 60, 121, fp8=242.5, int8=242.5),
        "NVIDIA L4 Tensor Core GPU data sheet, halved where it says 'with sparsity'",
    ),
    _Gpu(r"L40", _rates(90.5, 90.5, 181.05, fp8=362, int8=362), "NVIDIA L40 data sheet"),
    _Gpu(r"L40S", _rates(91.6, 183, 362.05, fp8=733, int8=733), "NVIDIA L40S data sheet"),
    _Gpu(r"V100-SXM2-(16|32)GB", _rates(15.7, fp16=125), V100),
    _Gpu(r"V100-PCIE-(16|32)GB", _rates(14, fp16=112), V100),
    _Gpu(r"V100S-PCIE-32GB", _rates(16.4, fp16=130), V100),
    _Gpu(r"T4", _rates(8.1, fp16=65, int8=130), "NVIDIA T4 Tensor Core GPU data sheet"),
    _Gpu(r"RTX A6000", _rates(38.7, 77.4, 154.8, int8=309.7), GA102),
    _Gpu(r"RTX 3090", _rates(35.6, 35.6, 71, int8=284), GA102),
    _Gpu(r"RTX 4090", _rates(82.6, 82.6, 165.2, fp8=330.3, int8=660.6), ADA),
    _Gpu(
        r"RTX 6000 Ada Generation",
        _rates(91.1, bf16=364.2, int8=728.5),
        "NVIDIA Ada GPU Architecture whitepaper, for professional cards",
    ),
    _Gpu(
        r"RTX 5090",
        _rates(104.8, 104.8, 209.5, fp8=419, int8=838),
        "NVIDIA RTX Blackwell GPU Architecture whitepaper",
    ),
)
"""By what is left of the driver's name without "NVIDIA", "Tesla" and "GeForce". The whole of that
has to match: a 3090 Ti, a 4090 D and a 4090 Laptop GPU are others."""


def dtype_name(dtype: str) -> str:
    """Short: ``bf16`` for ``bf16``, ``bfloat16`` and ``torch.bfloat16``."""
    plain = dtype.lower().removeprefix("torch.")
    return _DTYPES.get(plain, plain)


def peak_of(device_name: str, dtype: str) -> tuple[float, str] | None:
    """The most FLOPs a second (operations for int8) that a GPU does in a dtype, and whose figure
    that is; None for a GPU or a dtype that the table does not have.

    ``device_name`` is as the driver and torch say it. ``dtype`` is torch's or a short name:
    ``float32`` is without TF32, which is ``tf32``.
    """
    name = re.sub(r"^(NVIDIA|Tesla|GeForce|\s)+\b", "", device_name.strip(), flags=re.IGNORECASE)
    for gpu in GPUS:
        if re.fullmatch(gpu.name, name, flags=re.IGNORECASE):
            rate = gpu.tflops.get(dtype_name(dtype))
            return None if rate is None else (rate * 1e12, gpu.source)
    return None
