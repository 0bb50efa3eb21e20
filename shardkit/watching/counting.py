"""The operations of one step: how many torch was asked for, and in which dtype."""

from __future__ import annotations

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
