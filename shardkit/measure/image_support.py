"""What works on pictures on this machine, and what would work faster."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

from shardkit import images
from shardkit.images import nvjpeg, pillow
from shardkit.images.augment import kernel_or_why_not
from shardkit.measure.machine import Machine, machine


@dataclass(frozen=True)
class System:
    """What :func:`system` found.

    Attributes:
        jpeg_backends: what decodes JPEGs, the one that is taken first.
        pillow: ``name``, ``version`` and ``is_simd`` of what lies in the PIL folder, or None.
        kernel: of the compiled batch kernel, ``is_available``, and ``why_not`` ("" if it is).
        nvjpeg: whether JPEGs can be decoded on the GPU.
        torch: ``version``, ``cuda`` and the name of its ``device`` ("" without CUDA).
        advice: what to install to get faster; a line each.
    """

    machine: Machine
    jpeg_backends: list[str]
    pillow: dict[str, Any] | None
    kernel: dict[str, Any]
    nvjpeg: bool
    torch: dict[str, Any]
    advice: list[str]


def system() -> System:
    """Look at this machine; imports torch and every decoder."""
    import torch

    kernel, why_not = kernel_or_why_not()
    found = pillow.version()
    backends = images.backends()
    cuda = bool(torch.cuda.is_available())
    return System(
        machine=machine(),
        jpeg_backends=backends,
        pillow=found and {"name": found[0], "version": found[1], "is_simd": is_simd(found)},
        kernel={"is_available": kernel is not None, "why_not": why_not},
        nvjpeg=nvjpeg.is_available(),
        torch={
            "version": torch.__version__,
            "cuda": cuda,
            "device": torch.cuda.get_device_name() if cuda else "",
        },
        advice=advice(backends, found, why_not, platform.machine()),
    )


def is_simd(found: tuple[str, str]) -> bool:
    """Whether :func:`shardkit.images.pillow.version` found the SIMD build."""
    return found[0] == "pillow-simd"


def advice(
    backends: list[str], found: tuple[str, str] | None, kernel_why_not: str, processor: str
) -> list[str]:
    """What to install to get faster; nothing where all is there."""
    lines = []
    if kernel_why_not:
        lines.append(f"the compiled kernel, which is the fastest: {kernel_why_not}")
    if not any(title.startswith("simplejpeg ") for title in backends):
        lines.append("pip install simplejpeg: decodes JPEGs 1.2 times as fast as Pillow")
    if about_pillow := pillow_advice(found, processor):
        lines.append(about_pillow)
    return lines


def pillow_advice(found: tuple[str, str] | None, processor: str) -> str:
    """Of the two that own the PIL folder, which to install; empty where it is there."""
    is_x86 = processor.lower() in ("x86_64", "amd64")
    if found is None:
        extra = "simd" if is_x86 else "pillow"
        return f"pip install 'shardkit[{extra}]': without it no picture is resized"
    if is_x86 and not is_simd(found):
        return (
            "pip uninstall pillow, then CC='cc -mavx2' pip install --no-cache-dir pillow-simd:"
            " resizes 4 times as fast"
        )
    return ""
