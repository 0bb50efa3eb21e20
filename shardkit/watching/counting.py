"""The operations of one step: how many torch was asked for, and how much arithmetic they are."""

from __future__ import annotations

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
        self._flops = 0
        self._dtypes: Counts[str] = Counts()

    def start(self) -> bool:
        """False where nothing can be counted."""
        if "compile" in self._flags:
            return False
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        counter = self

        class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
            """Counts calls, and the dtypes of those that are arithmetic."""

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                named = kwargs or {}
                out = func(*args, **named)
                counter._num += 1
                formula = flop_registry.get(getattr(func, "_overloadpacket", None))
                if formula is not None:
                    with suppress(Exception):  # of shapes that it does not know
                        counter._note(func, args, formula(*args, **named, out_val=out))
                return out

        self._mode = Count()  # type: ignore[no-untyped-call]
        self._mode.__enter__()
        return True

    def _note(self, func: Any, args: Any, flops: int) -> None:
        """An operation that is arithmetic."""
        self._flops += flops
        first = next((one for one in args if hasattr(one, "dtype")), None)
        dtype = str(getattr(first, "dtype", "")).removeprefix("torch.")
        is_rounded = dtype == "float32" and "cuda" in self._flags and _is_rounded(str(func))
        self._dtypes["tf32" if is_rounded else dtype] += flops
        self._look_at_layout(first)

    def _look_at_layout(self, tensor: Any) -> None:
        import torch

        is_picture = getattr(tensor, "ndim", 0) == 4 and not tensor.is_contiguous()
        if is_picture and tensor.is_contiguous(memory_format=torch.channels_last):
            self._flags.add("channels_last")

    def step(self) -> None:
        """A step begins."""

    def stop(self) -> None:
        """Write what was counted."""
        self._mode.__exit__(None, None, None)
        self._records.write(
            "counted",
            ops=self._num,
            flops=self._flops,
            dtype=max(self._dtypes, key=self._dtypes.__getitem__, default=""),
            flags=sorted(self._flags),
        )


def _is_rounded(operation: str) -> bool:
    """Return True if a GPU may do an operation on float32 in TensorFloat-32: products are not by
    default, and convolutions are."""
    import torch

    if "convolution" in operation:
        return bool(torch.backends.cudnn.allow_tf32)
    return torch.get_float32_matmul_precision() != "highest"
