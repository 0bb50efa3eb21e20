"""A trace of some steps by torch.profiler."""

from __future__ import annotations

import os
from typing import Any


class Tracer:
    """Writes ``FOLDER/PID.trace.json.gz``, for Perfetto, TensorBoard and the doctor."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, f"{os.getpid()}.trace.json.gz")
        self._profile: Any = None

    def start(self) -> bool:
        """False where a profiler runs already: there can be but one."""
        import torch.profiler

        profile = torch.profiler.profile(with_stack=True)
        try:
            profile.start()
        except RuntimeError:
            return False
        self._profile = profile
        return True

    def step(self) -> None:
        """A step begins."""
        self._profile.step()

    def stop(self) -> None:
        """Write it."""
        self._profile.stop()
        self._profile.export_chrome_trace(self._path)
