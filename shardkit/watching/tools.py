"""What is done in some steps that do not count: operations are counted, or a trace is taken."""

from __future__ import annotations

import os
from collections import Counter as Counts
from contextlib import suppress
from typing import Any

from shardkit.watching.records import Records


class Counter:
    """Counts from :meth:`start` to :meth:`stop`, in one thread and the backward passes it starts.

    FLOPs are those of torch.utils.flop_counter: matrix products, convolutions and attention, by its
    formulas; an operation whose formula fails counts for none. What torch.compile made is not
    looked into.
    """

    def __init__(self, records: Records, flags: set[str]) -> None:
        self._records, self._flags = records, flags
        self._mode: Any = None
        self._num = 0
        self._flops: Counts[str] = Counts()

    def start(self) -> bool:
        """Return False where nothing can be counted."""
        if "compile" in self._flags:
            return False
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        counter = self

        class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
            """Counts calls, and the FLOPs of each dtype."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                named = kwargs or {}
                out = func(*args, **named)
                counter._num += 1
                formula = flop_registry.get(getattr(func, "_overloadpacket", None))
                if formula is not None:
                    with suppress(Exception):  # of shapes that it does not know
                        dtype = counter._dtype(str(func), args)
                        counter._flops[dtype] += formula(*args, **named, out_val=out)
                return out

        self._mode = Count()  # type: ignore[no-untyped-call]
        self._mode.__enter__()
        return True

    def _dtype(self, operation: str, args: Any) -> str:
        """Return the dtype that an operation is done in; ``tf32`` where a GPU may round float32: by
        default convolutions are, and products are not."""
        import torch

        first = next((one for one in args if hasattr(one, "dtype")), None)
        dtype = str(getattr(first, "dtype", "")).removeprefix("torch.")
        is_rounded = torch.get_float32_matmul_precision() != "highest"
        if "convolution" in operation:
            is_rounded = torch.backends.cudnn.allow_tf32
        return "tf32" if dtype == "float32" and "cuda" in self._flags and is_rounded else dtype

    def step(self) -> None:
        """A step begins."""

    def stop(self) -> None:
        """Write what was counted."""
        import torch

        self._mode.__exit__(None, None, None)
        self._records.write(
            "counted",
            ops=self._num,
            flops=self._flops.total(),
            dtype=max(self._flops, key=self._flops.__getitem__, default=""),
            gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else "",
            flags=sorted(self._flags),
        )


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
