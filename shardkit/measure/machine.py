"""The machine under a measurement: its versions, and what works on pictures, or would faster."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from shardkit import images
from shardkit.formats import FORMATS
from shardkit.images import nvjpeg, pillow
from shardkit.images.augment import kernel_or_why_not
from shardkit.system.resources import cpu_model, num_cores

_LIBRARIES = [made.library for made in FORMATS.values()]
# Whichever of the last two owns the ``PIL`` folder.
_PACKAGES = ("shardkit", "numpy", "torch", *_LIBRARIES, "xxhash", "pillow-simd", "pillow")


@dataclass(frozen=True)
class Machine:
    """The machine and the versions that a number was measured with.

    Attributes:
        cores: that the machine has. memory_bytes: that it has, used or not. kernel: the system's
            name and release. packages: version by name. load_1min: how many programs wanted to
            run in the last minute.
    """

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    packages: dict[str, str]
    load_1min: float


def machine() -> Machine:
    """Return this machine."""
    return Machine(
        cpu=cpu_model(),
        cores=num_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        packages={name: v for name in _PACKAGES if (v := _version(name))},
        load_1min=round(os.getloadavg()[0], 2),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """Return the commit of the checkout that this package is run from, ``-dirty`` if files differ
    from it; None for one that was installed.
    """
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True)
    except OSError:  # no git here
        return None
    return done.stdout.strip() or None


def describe(found: Machine) -> str:
    """Return a machine on one line."""
    packages = ", ".join(f"{name} {version}" for name, version in found.packages.items())
    return (
        f"{found.cpu}, {found.cores} cores, {found.memory_bytes / 2**30:.0f} GiB, "
        f"{found.kernel}, Python {found.python}, {packages}; load {found.load_1min}"
    )


# --- pictures -----------------------------------------------------------------------------


def system() -> dict[str, Any]:
    """Return what works on pictures on this machine; imports torch and every decoder.

    ``jpeg_backends`` are in the order in which they are taken. ``pillow`` is what lies in the PIL
    folder, or None. ``kernel`` is the compiled one, with the reason if it is not there. ``advice``
    says what to install to get faster, a line each.
    """
    import torch

    kernel, why_not = kernel_or_why_not()
    found = pillow.version()
    backends = images.backends()
    cuda = bool(torch.cuda.is_available())
    name = torch.cuda.get_device_name() if cuda else ""
    return {
        "machine": machine(),
        "jpeg_backends": backends,
        "pillow": found and {"name": found[0], "version": found[1], "is_simd": is_simd(found)},
        "kernel": {"is_available": kernel is not None, "why_not": why_not},
        "nvjpeg": nvjpeg.is_available(),
        "torch": {"version": torch.__version__, "cuda": cuda, "device": name},
        "advice": advice(backends, found, why_not, platform.machine()),
    }


def is_simd(found: tuple[str, str]) -> bool:
    """Return True if :func:`shardkit.images.pillow.version` found the SIMD build."""
    return found[0] == "pillow-simd"


def advice(
    backends: list[str], found: tuple[str, str] | None, kernel_why_not: str, processor: str
) -> list[str]:
    """Return what to install to get faster; nothing where all is there."""
    is_x86 = processor.lower() in ("x86_64", "amd64")
    lines = []
    if kernel_why_not:
        lines.append(f"the compiled kernel, which is the fastest: {kernel_why_not}")
    if not any(title.startswith("simplejpeg ") for title in backends):
        lines.append("pip install simplejpeg: decodes JPEGs 1.2 times as fast as Pillow")
    if found is None:
        extra = "simd" if is_x86 else "pillow"
        lines.append(f"pip install 'shardkit[{extra}]': without it no picture is resized")
    elif is_x86 and not is_simd(found):
        lines.append(
            "pip uninstall pillow, then CC='cc -mavx2' pip install --no-cache-dir pillow-simd:"
            " resizes 4 times as fast"
        )
    return lines
