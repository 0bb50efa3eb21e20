"""The machine under a measurement, and the versions on it."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from shardkit.formats import FORMATS
from shardkit.system.resources import cpu_model, num_cores

_LIBRARIES = [made.library for made in FORMATS.values()]
_PACKAGES = tuple(
    dict.fromkeys(
        # Whichever of the last two owns the ``PIL`` folder.
        ("shardkit", "numpy", "torch", *_LIBRARIES, "xxhash", "pillow-simd", "pillow")
    )
)


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
