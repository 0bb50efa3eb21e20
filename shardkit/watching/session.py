"""A session: which steps are taken how, and what is done in them beside looking on.

A session is ``rounds`` times the same blocks of steps: as the script has it, with files in memory,
and with batches replayed. All ranks of a run change over together, as the step's number alone
decides. Rates of one kind are thus taken at several times of the run, and a machine that slows down
meanwhile slows all kinds alike.

The first steps of a block do not count: of the batches that workers made ahead, ``depth`` were
asked for in the block before.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import time
from collections import Counter as Counts
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from shardkit.watching.event_log import Records

OWN, WARM, REPLAY, TRACE = "own", "warm", "replay", "trace"

WARM_UP = 4
"""Steps before the first block: a model's first ones allocate, and tune themselves."""

PROBED = 2
"""The number of the one that has its operations counted."""

TRACED = 6
"""Steps that a trace is taken of."""


@dataclass(frozen=True)
class Plan:
    """Interventions in a script, besides looking on.

    Attributes:
        steps: that count, of each kind. rounds: they are taken in. replays: whether batches are
            replayed. rereads: whether the same files are read again. counts: whether the
            operations of one step are counted. traces: whether some steps are traced: ``"gpu"`` if
            they use one.
        profiles: whether a profiler may look into the processes.
        loader: arguments that every DataLoader of a dataset of the type ``dataset`` is given,
            instead of its own.
    """

    steps: int = 60
    rounds: int = 3
    replays: bool = True
    rereads: bool = True
    counts: bool = True
    traces: Literal["no", "gpu", "yes"] = "no"
    profiles: bool = False
    dataset: str = ""
    loader: dict[str, Any] | None = None


@dataclass(frozen=True)
class Now:
    """The kind of a step, and if it counts; ``block`` is the number of its block, from 0; -1
    before the first. ``is_first``: of its block."""

    kind: str
    counts: bool
    block: int
    is_first: bool


class Schedule:
    """The blocks of a session.

    Args:
        depth: batches that are asked for ahead. can_reread: whether the loader can be made to read
            the same batches again.
    """

    def __init__(self, plan: Plan, depth: int, can_reread: bool) -> None:
        kinds = [OWN]
        if plan.rereads and can_reread:
            kinds.append(WARM)
        if plan.replays:
            kinds.append(REPLAY)
        self.kinds = kinds
        self.counted = max(1, -(-plan.steps // plan.rounds))
        self.lead = depth + 1
        self.warm_up = WARM_UP + (TRACED if plan.traces != "no" else 0)
        self.num_blocks = plan.rounds * len(kinds)

    @property
    def block_steps(self) -> int:
        """Steps of a block; as many batches are read again in a block of that kind."""
        return self.lead + self.counted

    @property
    def num_steps(self) -> int:
        """Steps of the whole session."""
        return self.warm_up + self.num_blocks * self.block_steps

    def at(self, step: int) -> Now:
        """Return how step number ``step`` is taken, from 0. After the session: as the script has
        it."""
        block, place = divmod(step - self.warm_up, self.block_steps)
        if block < 0 or block >= self.num_blocks:
            traced = WARM_UP <= step < self.warm_up
            return Now(TRACE if traced else OWN, counts=False, block=-1, is_first=False)
        kind = self.kinds[block % len(self.kinds)]
        return Now(kind, counts=place >= self.lead, block=block, is_first=place == 0)


# --- batches that are handed over again, or read again -------------------------------------

MOST_BATCHES = 8
"""More than a processor's or a model's cache of shapes would hide."""

MOST_BYTES = 1 << 30
"""Of all of them: fewer are kept of large ones."""

PLAIN = (str, bytes, int, float, bool, complex, type(None))


class UnknownBatchError(Exception):
    """A batch of something else than tensors, arrays, numbers, and lists and dicts of these."""


class Replay:
    """The first batches of a loop, which are handed over again as if loading cost nothing.

    What is kept is a copy: the loop may change what it got, and shared memory and descriptors of
    worker processes are theirs to use. A loop that changes a replayed batch gets no more of them.

    Attributes:
        why_not: why there are none, in a sentence; empty if there are, or may be.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._kept: list[Any] = []
        self._versions: list[int] = []
        self._num_bytes = 0
        self._is_full = not is_wanted
        self.why_not = ""

    @property
    def is_ready(self) -> bool:
        """True if enough are kept."""
        return self._is_full and bool(self._kept)

    def keep(self, batch: Any) -> None:
        """Keep a copy, as long as there is room."""
        if self._is_full:
            return
        try:
            kept = rebuilt(batch, copied)
        except Exception as error:  # noqa: BLE001 - containers of others, rebuilt
            is_unknown = isinstance(error, UnknownBatchError)
            why = f"it is {error}" if is_unknown else f"it cannot be copied ({error!r})"
            self.drop(f"no batch was replayed: {why}")
            return
        self._num_bytes += sum(one.numel() * one.element_size() for one in tensors(kept))
        is_too_much = self._num_bytes > MOST_BYTES
        if not self._kept or not is_too_much:
            self._kept.append(kept)
        self._is_full = is_too_much or len(self._kept) == MOST_BATCHES

    def batch(self, number: int) -> Any:
        """Return one of them, in containers of its own."""
        chosen = self._kept[number % len(self._kept)]
        self._versions = [one._version for one in tensors(chosen)]
        return rebuilt(chosen, lambda tensor: tensor)

    def check(self, number: int) -> None:
        """Keep none any more if the step changed its batch."""
        if not self._kept or not self._versions:
            return
        chosen = self._kept[number % len(self._kept)]
        if [one._version for one in tensors(chosen)] != self._versions:
            self.drop("batches were replayed only until the loop was seen to change them in place")

    def drop(self, why_not: str = "") -> None:
        """Keep none any more."""
        self._kept, self._is_full, self.why_not = [], True, why_not


class Rereading:
    """The indices of the first batches, which are asked for again.

    Args:
        most: batches that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[Any] = []
        self._place: int | None = None

    def begin(self, is_again: bool) -> None:
        """A block of steps begins: batches are asked for again, or new ones."""
        self._place = 0 if is_again and self._kept else None

    def index(self, own: Any) -> Any:
        """Return what a worker is asked for, instead of the sampler's own next batch."""
        if self._place is None:
            if len(self._kept) < self._most:
                self._kept.append(own)
            return own
        chosen = self._kept[self._place % len(self._kept)]
        self._place += 1
        return chosen


def is_tensor(value: Any) -> bool:
    """Return True for a tensor, without importing torch, which is there if a batch has one."""
    return hasattr(value, "element_size") and hasattr(value, "_version")


def tensors(batch: Any) -> list[Any]:
    """Return all tensors in a batch."""
    found: list[Any] = []

    def note(tensor: Any) -> Any:
        found.append(tensor)
        return tensor

    rebuilt(batch, note)
    return found


def shapes(batch: Any) -> list[list[int]]:
    """Return the shapes of all tensors in a batch; none of one that cannot be looked into."""
    try:
        return [list(map(int, tensor.shape)) for tensor in tensors(batch)]
    except Exception:  # noqa: BLE001 - containers of others, rebuilt
        return []


def copied(tensor: Any) -> Any:
    """Return a tensor of its own, pinned if the given one is."""
    clone = tensor.detach().clone()
    clone.requires_grad_(tensor.requires_grad)
    return clone.pin_memory() if tensor.device.type == "cpu" and tensor.is_pinned() else clone


def rebuilt(batch: Any, change: Any) -> Any:
    """Return the same containers made anew around changed tensors.

    Raises:
        UnknownBatchError: there is something in it that cannot be made anew.
    """
    if is_tensor(batch):
        return change(batch)
    if isinstance(batch, PLAIN):
        return batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(rebuilt(one, change) for one in batch))
    if type(batch) in (list, tuple):
        return type(batch)(rebuilt(one, change) for one in batch)
    if isinstance(batch, Mapping) and hasattr(batch, "__setitem__"):
        made = copy.copy(batch)
        for name, value in batch.items():
            made[name] = rebuilt(value, change)
        return made
    if type(batch).__module__ == "numpy":
        return batch.copy()
    raise UnknownBatchError(f"a {type(batch).__name__}")


# --- waiting until nobody makes batches any more -------------------------------------------


LOOK_S = 0.03

MOST_S = 10.0
"""Workers that never come to rest have something else to do."""

BUSY = 0.2
"""Share of a core that a worker uses which waits for room in its queue, at most: it wakes up now
and then."""

LOOKS = 2
"""One after another that must find no work: between two batches a worker may wait for a disk."""


def wait_until_quiet() -> None:
    """Sleep until this process and its workers hardly use a core, or ten seconds have passed."""
    deadline = time.monotonic() + MOST_S
    before, num_quiet = _used(), 0
    while num_quiet < LOOKS and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        now = _used()
        num_quiet = num_quiet + 1 if now - before < BUSY * LOOK_S else 0
        before = now


def _used() -> float:
    """Return seconds of processor time of this process and the workers that it started."""
    seconds = time.process_time()
    for process in multiprocessing.active_children():
        # From schedstat, whose unit is a nanosecond; nothing of one that has ended.
        gone = suppress(OSError, IndexError, ValueError)
        with gone, open(f"/proc/{process.pid}/schedstat") as file:
            seconds += int(file.read().split()[0]) / 1e9
    return seconds


# --- operations that are counted, and a trace ----------------------------------------------


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
        """Return False if the process has a profiler."""
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
        """Note that a step begins."""
        self._profile.step()

    def stop(self) -> None:
        """Write it."""
        self._profile.stop()
        begun = self._path.replace(".trace.", ".begun-trace.")
        self._profile.export_chrome_trace(begun)
        os.replace(begun, self._path)
