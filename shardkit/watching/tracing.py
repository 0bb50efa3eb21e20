"""A trace of some steps by torch.profiler."""

from __future__ import annotations

import os
from typing import Any

PROFILER = "profiler"
"""The flag of a process that has a profiler."""


class Tracer:
    """Writes ``FOLDER/PID.trace.json.gz``, for Perfetto, TensorBoard and the doctor.

    Args:
        flags: what the process was seen to use: a script that has a profiler of its own gets no
            other, as there can be but one in a process.
    """

    def __init__(self, folder: str, flags: set[str]) -> None:
        self._path = os.path.join(folder, f"{os.getpid()}.trace.json.gz")
        self._flags = flags
        self._profile: Any = None

    def start(self) -> bool:
        """False where it must not."""
        import torch.profiler

        if PROFILER in self._flags:
            return False
        try:
            profile = torch.profiler.profile(with_stack=True)
            profile.start()
        except RuntimeError:
            return False
        finally:
            self._flags.discard(PROFILER)
        self._profile = profile
        return True

    def step(self) -> None:
        """A step begins."""
        self._profile.step()

    def stop(self) -> None:
        """Write it."""
        self._profile.stop()
        begun = self._path.replace(".trace.", ".begun-trace.")
        self._profile.export_chrome_trace(begun)
        os.replace(begun, self._path)
