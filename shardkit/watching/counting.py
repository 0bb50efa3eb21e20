"""The operations of one step: how many torch was asked for, and how much arithmetic they are."""

from __future__ import annotations

from collections import Counter as Counts
from typing import Any

from shardkit.watching.records import Records


class Counter:
    """Counts from :meth:`start` to :meth:`stop`, in one thread and the backward passes it starts.

    FLOPs are those of torch.utils.flop_counter: matrix products, convolutions and attention. What
    torch.compile made is not looked into.
    """

    def __init__(self, records: Records, flags: set[str]) -> None:
        self._records, self._flags = records, flags
        self._modes: list[Any] = []
        self._num = 0
        self._dtypes: Counts[str] = Counts()

    def start(self) -> bool:
        """False where nothing can be counted."""
        if "compile" in self._flags:
            return False
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import FlopCounterMode, flop_registry

        counter = self

        class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
            """Counts calls, and the dtypes of those that are arithmetic."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                counter._num += 1
                if getattr(func, "_overloadpacket", None) in flop_registry:
                    first = next((one for one in args if hasattr(one, "dtype")), None)
                    counter._dtypes[str(getattr(first, "dtype", ""))] += 1
                    counter._look_at_layout(first)
                return func(*args, **(kwargs or {}))

        self._modes = [Count(), FlopCounterMode(display=False)]  # type: ignore[no-untyped-call]
        for mode in self._modes:
            mode.__enter__()
        return True

    def _look_at_layout(self, tensor: Any) -> None:
        import torch

        is_picture = getattr(tensor, "ndim", 0) == 4 and not tensor.is_contiguous()
        if is_picture and tensor.is_contiguous(memory_format=torch.channels_last):
            self._flags.add("channels_last")

    def _dtype(self) -> str:
        """That most of the arithmetic was done in; ``tf32`` where a GPU may take float32 for it."""
        import torch

        dtype = max(self._dtypes, key=self._dtypes.__getitem__, default="")
        is_on_gpu = "cuda" in self._flags
        if dtype == "torch.float32" and is_on_gpu:
            return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
        return dtype.removeprefix("torch.")

    def step(self) -> None:
        """A step begins."""

    def stop(self) -> None:
        """Write what was counted."""
        for mode in reversed(self._modes):
            mode.__exit__(None, None, None)
        self._records.write(
            "counted",
            ops=self._num,
            flops=self._modes[1].get_total_flops(),
            dtype=self._dtype(),
            flags=sorted(self._flags),
        )
