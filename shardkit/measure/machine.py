"""The machine under a measurement: what it is, and the limits no code on it can pass.

The limits are cases for :func:`shardkit.measure.timing.interleave`.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from shardkit.errors import UsageError
from shardkit.formats import FORMATS
from shardkit.measure.timing import Case, Work
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
    """Look at this one."""
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
    """The commit of the checkout that this package is run from, ``-dirty`` if files differ from
    it; None for one that was installed."""
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
    """A machine on one line."""
    packages = ", ".join(f"{name} {version}" for name, version in found.packages.items())
    return (
        f"{found.cpu}, {found.cores} cores, {found.memory_bytes / 2**30:.0f} GiB, "
        f"{found.kernel}, Python {found.python}, {packages}; load {found.load_1min}"
    )


# --- limits -------------------------------------------------------------------------------


def memory_copy(chunk_bytes: int, source_bytes: int, total_bytes: int | None = None) -> Case:
    """A case that copies a source into one buffer of ``chunk_bytes``, chunk after chunk.

    A source larger than the processor's cache gives the rate of main memory, one of
    ``chunk_bytes`` the rate of the cache. A call copies ``total_bytes`` (by default the source
    once), going round.
    """
    if not 0 < chunk_bytes <= source_bytes:
        raise UsageError(f"cannot copy {chunk_bytes} bytes at a time from {source_bytes}")
    # Ones, not zeros: a page never written to is one shared page of zeros, and copies too fast.
    source, chunk = np.ones(source_bytes, np.uint8), np.ones(chunk_bytes, np.uint8)
    num_chunks = source_bytes // chunk_bytes
    num_copies = max(1, (total_bytes or source_bytes) // chunk_bytes)

    def copy() -> Work:
        for turn in range(num_copies):
            start = turn % num_chunks * chunk_bytes
            np.copyto(chunk, source[start : start + chunk_bytes])
        return Work(bytes=num_copies * chunk_bytes, cache="warm")

    return copy
