"""What was seen of a training script at work, and what follows from it: plain values.

Times are seconds, sizes bytes, shares from 0 to 1. ``None`` means that it was not seen; a figure
of nothing is 0. Means are over the steps that count: not the first ones, and none that was
disturbed by a look taken at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Phase = Literal["own", "replay", "warm"]
"""How a step got its batch: as the script makes it; one of its first, again; made again while the
files were in memory."""


@dataclass(frozen=True)
class Rate:
    """Steps a second: the median over blocks of steps, the least and the largest."""

    steps_per_s: float
    low: float
    high: float
    num_steps: int


@dataclass(frozen=True)
class Rates:
    """Rates for DS-Analyzer's differential (Mohan et al., "Analyzing and Mitigating Data Stalls
    in DNN Training", VLDB 2021): the loop as it is, with loading that costs nothing (G there), and
    with the files in memory (P)."""

    own: Rate
    replay: Rate | None = None
    warm: Rate | None = None


@dataclass(frozen=True)
class LoaderFacts:
    """The loader that the training loop runs over.

    Attributes:
        kind: ``DataLoader`` (torch's, or a type derived from it), ``shardkit.Loader``, or the name
            of another type. made_at: the file and line of the script that made it, if it was seen.
        dataset: the name of the dataset's type. batch_size: None where batches are the dataset's.
        num_batches: of an epoch; None where the loader does not know.
        worker_type: ``process``, ``thread`` or ``none``.
    """

    kind: str
    dataset: str
    batch_size: int | None
    num_batches: int | None = None
    num_workers: int = 0
    worker_type: str = "none"
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    is_iterable: bool = False
    made_at: str = ""

    @property
    def where(self) -> str:
        """`` (train.py:31)``, the line that made it; empty if not known."""
        return f" ({self.made_at})" if self.made_at else ""


@dataclass(frozen=True)
class StepTimes:
    """Mean seconds of a step's parts, in the thread of the training loop. They do not overlap;
    ``other`` is what is left: forward, and the script's own code.

    Attributes:
        wait: for the batch, in the loader. blocked: of ``other``, not running: sleeping, or waiting
            for a disk or for another process.
        copy: of tensors to the device, as the host sees it. collective: in all-reduces and
            barriers that the script calls, and backward's time of not running (where DDP waits).
        sync: in ``.item()`` and its like. logging: printing, logging, flushing. checkpoint: saving.
    """

    wait: float = 0.0
    copy: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    collective: float = 0.0
    sync: float = 0.0
    logging: float = 0.0
    checkpoint: float = 0.0
    other: float = 0.0
    blocked: float = 0.0

    @property
    def total(self) -> float:
        """Seconds from one batch to the next."""
        parts = (self.wait, self.copy, self.backward, self.optimizer, self.collective)
        return sum(parts) + self.sync + self.logging + self.checkpoint + self.other


@dataclass(frozen=True)
class WorkerTimes:
    """Mean seconds of making one batch, whoever makes it; the parts do not overlap.

    Attributes:
        reading: waiting for files or a network, and the kernel's time for reading them.
        decoding: pictures. tokenizing: text. transform: the rest of ``dataset[i]``.
        collating: samples to a batch. sending: to the process of the loop, in both processes.
        starved: ready to run, but other processes had the cores.
        cpu: of these, on a core.
    """

    reading: float = 0.0
    decoding: float = 0.0
    tokenizing: float = 0.0
    transform: float = 0.0
    collating: float = 0.0
    sending: float = 0.0
    starved: float = 0.0
    cpu: float = 0.0

    @property
    def total(self) -> float:
        parts = (self.reading, self.decoding, self.tokenizing, self.transform, self.collating)
        return sum(parts) + self.sending + self.starved


@dataclass(frozen=True)
class CodeLine:
    """A line of the script's own code, and the share of the time it was seen in, or the seconds a
    step that a certain kind of call took there.

    Attributes:
        kind: ``sync``, ``logging``, ``checkpoint``, ``profile`` (of the trainer) or
            ``profile-worker``.
        calls: a step.
    """

    file: str
    line: int
    what: str
    kind: str
    seconds: float = 0.0
    calls: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class FilesRead:
    """The files that the dataset opens.

    Attributes:
        folder: the deepest that holds all those seen. endings: opened, by extension, most first.
        per_batch: opened. mean_bytes: of those seen. file_system: ``ext4``, ``nfs``, ``tmpfs``...
        held_bytes: of a few files that stay open and hold all samples; None where files are opened
            for each batch.
    """

    folder: str
    endings: dict[str, int]
    per_batch: float
    mean_bytes: float
    file_system: str
    held_bytes: int | None = None


@dataclass(frozen=True)
class Epochs:
    """Beginnings of epochs: the mean seconds from ``iter(loader)`` to the first batch,
    and the share of the loop's time, and of how many epochs; ``steps``: of one, as far as seen."""

    first_batch_s: float = 0.0
    share: float = 0.0
    num: int = 0
    steps: float = math.inf


@dataclass(frozen=True)
class RankEvidence:
    """One process that trains.

    Attributes:
        timeline: for each step seen: when it began, in seconds from the first one; its phase; its
            wait and its total, in seconds.
        num_ops: of torch, a step; flops: floating-point operations of a step, of matrix products
            and convolutions; both counted in one step. dtype: that most of these were done in.
        gpu: its name, as torch has it; empty where none was seen.
        picture_side: width and height, the larger, of the pictures in a batch, in pixels.
        flags: what was seen in use, of: amp, compile, fused_optimizer, cuda.
        handover: seconds on a core by which the loop takes a batch from a worker, a step.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    device: str
    loader: LoaderFacts
    step: StepTimes
    worker: WorkerTimes
    rates: Rates
    epochs: Epochs
    files: FilesRead | None = None
    lines: tuple[CodeLine, ...] = ()
    num_ops: int | None = None
    flops: float | None = None
    dtype: str | None = None
    gpu: str = ""
    flags: frozenset[str] = frozenset()
    samples_per_step: int | None = None
    picture_side: int | None = None
    cpu_share: float = 0.0
    handover: float = 0.0
    timeline: tuple[tuple[float, Phase, float, float], ...] = ()

    @property
    def is_ours(self) -> bool:
        """True if the loop runs over shardkit's own loader or stream."""
        return self.loader.kind.startswith("shardkit.")

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda") or "cuda" in self.flags

    def costliest(self, kind: str) -> CodeLine | None:
        """Return the costliest line of a kind; None if none was seen."""
        found = [line for line in self.lines if line.kind == kind]
        return max(found, key=lambda line: (line.seconds, line.share), default=None)

    def at(self, kind: str) -> str:
        """Return `` at train.py:31 (...)``, the costliest line of a kind, or nothing."""
        line = self.costliest(kind)
        return f" at {line.file}:{line.line} ({line.what})" if line else ""


@dataclass(frozen=True)
class SystemEvidence:
    """The machine during the run.

    Attributes:
        cores: this process may use; with a quota, rounded up. cores_busy: the mean of those,
            whoever used them; script_cores: used by the script's processes.
        throttled: share of time that the CPU quota stopped the script.
    """

    seconds: float
    cores: int
    cores_busy: float
    script_cores: float
    throttled: float | None


@dataclass(frozen=True)
class TraceFacts:
    """Figures of the GPUs in some steps, from a trace of torch.profiler.

    Attributes:
        gpu_idle: share of the time between the first and the last thing on the GPU that nothing ran
            on it. kernels_per_s, kernel_s: how many, and their mean seconds.
        copy_exposed: share of the time that only a copy ran on the GPU, no kernel beside it.
    """

    seconds: float
    gpu_idle: float
    kernels_per_s: float
    kernel_s: float
    copy_exposed: float


@dataclass(frozen=True)
class Utilisation:
    """The use of the device by the model's arithmetic. ``mfu``: model FLOPs a second through
    ``peak``, in FLOPs a second."""

    flops_per_s: float | None = None
    mfu: float | None = None
    peak: float | None = None


@dataclass(frozen=True)
class Evidence:
    """All that was seen.

    Attributes:
        command: as given. ended: ``exit code 0``, ``signal SIGKILL``, ``stopped by the doctor``.
        cut_s: after so many seconds it was ended before enough was seen (``--seconds``).
        failed: it ended with an error, by itself. short_loop: steps seen of a loop that was too
            short to be timed. lines: costly ones, if no loop was timed.
        notes: what could not be seen, and why, a sentence each.
    """

    command: tuple[str, ...]
    folder: str
    seconds: float
    ended: str
    python: str
    torch: str
    ranks: tuple[RankEvidence, ...]
    system: SystemEvidence
    trace: TraceFacts | None = None
    utilisation: Utilisation = Utilisation()
    notes: tuple[str, ...] = ()
    cut_s: float | None = None
    failed: bool = False
    short_loop: int | None = None
    lines: tuple[CodeLine, ...] = ()


# --- what follows --------------------------------------------------------------------------


Cause = Literal[
    "iterator per step",
    "epoch starts",
    "too few workers",
    "logging",
    "synchronising",
    "copying",
    "checkpointing",
    "storage",
    "decoding",
    "tokenizing",
    "transform",
    "collating",
    "too few cores",
    "straggler",
    "launching",
    "not enough evidence",
    "computing",
    "nothing to gain",
    "script failed",
]
"""The cheapest to remove first: from an argument over a line of code and a pack to other code and
other machines."""

CAUSES: tuple[Cause, ...] = get_args(Cause)

Arguments = dict[str, int | bool | None]
"""Arguments of torch's DataLoader."""


@dataclass(frozen=True)
class Gain:
    """The factor of the loop's rate that a change should bring, and the interval that it should lie
    in; ``how`` is the formula, with its figures. ``is_limit``: what the change is about would cost
    nothing, of which some will be left."""

    factor: float
    low: float
    high: float
    how: str
    is_limit: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """The doctor's word.

    Attributes:
        sentence: the verdict, in one sentence with its figures. rank: the slow one's, if one is.
        change: the one to make first, concrete: a command line, settings, or a line of code.
        gain: None where none can be predicted. removal: if the whole cause were gone, where the
            change does not do that.
        apply: arguments of DataLoader in place of the script's own, for ``--apply``; None where
            the change needs an edit.
        notes: what was not used for the verdict, and why, a sentence each.
    """

    cause: Cause
    sentence: str
    change: str
    gain: Gain | None = None
    apply: Arguments | None = None
    rank: int | None = None
    removal: Gain | None = None
    notes: tuple[str, ...] = ()

    @property
    def worth(self) -> float:
        """The factor of the rate if the whole cause were gone; 1 if that is unknown."""
        gain = self.removal or self.gain
        return gain.factor if gain else 1.0


@dataclass(frozen=True)
class Applied:
    """Rates that ``--apply`` measured: samples or steps a second, ``what``, before and after.
    ``predicted``: the factor."""

    what: str
    before: float
    after: float
    predicted: float | None

    @property
    def factor(self) -> float:
        return self.after / self.before
