"""What is done in some steps that do not count: operations are counted, or a trace is taken."""

from __future__ import annotations

import os
from collections import Counter as Counts
from typing import Any

from shardkit.watching.records import Records


class Counter:
    """Counts from :meth:`start` to :meth:`stop`, in one thread and the backward passes it starts.
    What torch.compile made is not looked into."""

    def __init__(self, records: Records, flags: set[str]) -> None:
        self._records, self._flags = records, flags
        self._mode: Any = None
        self._num = 0
        self._dtypes: Counts[str] = Counts()

    def start(self) -> bool:
        """Return False where nothing can be counted."""
        if "compile" in self._flags:
            return False
        from torch.utils._python_dispatch import TorchDispatchMode

        counter = self

        class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
            """Counts calls, and the dtypes of floating-point arguments."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                counter._num += 1
                first = next((one for one in args if hasattr(one, "dtype")), None)
                if first is not None and first.is_floating_point():
                    counter._dtypes[str(first.dtype).removeprefix("torch.")] += 1
                return func(*args, **(kwargs or {}))

        self._mode = Count()  # type: ignore[no-untyped-call]
        self._mode.__enter__()
        return True

    def step(self) -> None:
        """A step begins."""

    def stop(self) -> None:
        """Write what was counted."""
        self._mode.__exit__(None, None, None)
        dtype = max(self._dtypes, key=self._dtypes.__getitem__, default="")
        flags = sorted(self._flags)
        self._records.write("counted", ops=self._num, dtype=dtype, flags=flags)


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
