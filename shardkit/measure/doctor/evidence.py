"""What was seen of a training script at work: plain values, which the verdict is made from.

Times are seconds, sizes bytes, shares from 0 to 1. ``None`` means that it was not seen; a figure
of nothing is 0. Means are over the steps that count: not the first ones, and none that was
disturbed by a look taken at it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["own", "replay", "warm", "cold"]
"""How a step got its batch: as the script makes it; one of its first, again; made again while the
files were in memory; made again from files that had just been dropped from memory."""


@dataclass(frozen=True)
class Rate:
    """Steps a second: the median over blocks of steps, the least and the largest."""

    steps_per_s: float
    low: float
    high: float
    num_steps: int


@dataclass(frozen=True)
class Rates:
    """What DS-Analyzer's differential needs (Mohan et al., "Analyzing and Mitigating Data Stalls
    in DNN Training", VLDB 2021): the loop as it is, with loading that costs nothing (G there), with
    the files in memory (P), and with none of them there (F)."""

    own: Rate
    replay: Rate | None = None
    warm: Rate | None = None
    cold: Rate | None = None


@dataclass(frozen=True)
class LoaderFacts:
    """The loader that the training loop runs over.

    Attributes:
        kind: ``DataLoader`` (torch's, or a type derived from it), ``shardkit.Loader``, or the name
            of another type. made_at: the file and line of the script that made it, if it was seen.
        dataset: the name of the dataset's type. batch_size: None where batches are the dataset's.
        num_batches: of an epoch; None where the loader does not know.
        worker_type: ``process``, ``thread`` or ``none``. settings, work: of a shardkit.Loader, in
            words, and :func:`shardkit.loading.tuned.work`.
    """

    kind: str
    dataset: str
    batch_size: int | None
    num_batches: int | None
    num_workers: int
    worker_type: str
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    is_iterable: bool
    settings: str = ""
    work: dict[str, Any] = field(default_factory=dict)
    made_at: str = ""


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
        """From one batch to the next."""
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
        return (
            self.reading
            + self.decoding
            + self.tokenizing
            + self.transform
            + self.collating
            + self.sending
            + self.starved
        )


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
        some: of their paths, from all over what was seen. held_bytes: of a few files that stay open
            and hold all samples; None where files are opened for each batch.
    """

    folder: str
    endings: dict[str, int]
    per_batch: float
    mean_bytes: float
    file_system: str
    some: tuple[str, ...] = ()
    held_bytes: int | None = None


@dataclass(frozen=True)
class Epochs:
    """How long epochs take to begin: the mean seconds from ``iter(loader)`` to the first batch,
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
        picture_side: width and height, the larger, of the pictures in a batch, in pixels.
        flags: what was seen in use, of: amp, compile, fused_optimizer, channels_last,
            data_parallel, ddp, cuda.
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
    flags: frozenset[str] = frozenset()
    samples_per_step: int | None = None
    picture_side: int | None = None
    cpu_share: float = 0.0
    handover: float = 0.0
    timeline: tuple[tuple[float, Phase, float, float], ...] = ()


@dataclass(frozen=True)
class GpuEvidence:
    """One GPU, by NVML: means over the run, of memory the most. ``utilisation`` only says that some
    kernel ran. What the GPU does not tell is 0, and a note says so."""

    name: str
    utilisation: float
    memory_used: int
    memory_total: int
    power_w: float
    power_limit_w: float
    sm_mhz: float
    max_sm_mhz: float
    throttle: dict[str, float]
    """Share of the looks at which each reason held: ``power cap``, ``thermal`` and so on."""
    pcie_rx_bytes_per_s: float
    pcie_tx_bytes_per_s: float


@dataclass(frozen=True)
class SystemEvidence:
    """The machine during the run.

    Attributes:
        cores: this process may use; with a quota, rounded up. cores_busy: the mean of those,
            whoever used them; script_cores: used by the script's processes.
        per_core: share of time that each core was busy.
        throttled: share of time that the CPU quota stopped the script.
        pressure: share of the time that some task waited for ``cpu``, ``memory``, ``io``.
        disk_read_bytes_per_s, disk_reads_per_s: by the script's processes and of the devices.
        major_faults_per_s: pages that had to be read from a disk.
        shm_bytes, shm_free: of /dev/shm, used most and free least.
        memory_available: least seen.
    """

    seconds: float
    cores: int
    cores_busy: float
    script_cores: float
    per_core: tuple[float, ...]
    throttled: float | None
    pressure: dict[str, float]
    disk_read_bytes_per_s: float
    disk_reads_per_s: float
    major_faults_per_s: float
    memory_available: int
    shm_bytes: int | None
    shm_free: int | None
    gpus: tuple[GpuEvidence, ...] = ()


@dataclass(frozen=True)
class TraceFacts:
    """What a trace of torch.profiler says of some steps.

    Attributes:
        has_gpu: whether there is any kernel or copy of a GPU in it; the figures of GPUs are 0 if
            not. steps: seen, by their marks.
        gpu_idle: share of the time between the first and the last thing on the GPU that nothing ran
            on it. kernels_per_s, kernel_s: how many, and their mean seconds.
        copy_exposed: share of the time that only a copy ran on the GPU, no kernel beside it.
        tensor_core: share of the kernels' time in kernels that use Tensor Cores, by their names.
        collective: share of the GPU's time in NCCL's kernels.
        ops_per_step: calls of torch's operators that call no other.
        syncs: lines that make the host wait for the device.
    """

    seconds: float
    steps: int
    has_gpu: bool
    gpu_idle: float = 0.0
    kernels_per_s: float = 0.0
    kernel_s: float = 0.0
    copy_exposed: float = 0.0
    tensor_core: float = 0.0
    collective: float = 0.0
    ops_per_step: float = 0.0
    syncs: tuple[CodeLine, ...] = ()


@dataclass(frozen=True)
class KernelTrial:
    """Some of the script's pictures, decoded and cropped by shardkit's kernel after the run:
    seconds of a core for each, while all cores do that; of how many; crops of how many pixels."""

    seconds: float
    num_pictures: int
    side: int


@dataclass(frozen=True)
class Utilisation:
    """How much of the device's peak the model's arithmetic uses.

    Attributes:
        mfu: model FLOPs a second through ``peak``, which is in FLOPs a second and ``source`` says
            whose figure it is. reference: samples a second that the user named; of_reference:
            the measured rate through that.
        accelerator: MLPerf Storage's utilisation: the loop's time if loading cost nothing, through
            its time as it is. It passes from 0.9 on.
    """

    accelerator: float | None = None
    flops_per_s: float | None = None
    mfu: float | None = None
    peak: float | None = None
    source: str | None = None
    reference: float | None = None
    of_reference: float | None = None


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
    kernel: KernelTrial | None = None
    utilisation: Utilisation = field(default_factory=Utilisation)
    notes: tuple[str, ...] = ()
    cut_s: float | None = None
    failed: bool = False
    short_loop: int | None = None
    lines: tuple[CodeLine, ...] = ()
