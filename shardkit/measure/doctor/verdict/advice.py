"""What to change, in words that can be copied: command lines, arguments, lines of the script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from shardkit.measure.doctor.diagnosis import Applicable
from shardkit.measure.doctor.evidence import CodeLine, Evidence, FilesRead, RankEvidence
from shardkit.measure.doctor.verdict.thresholds import (
    FREE_MEMORY,
    LOW_MFU,
    OPTIMIZER,
    SHM_FREE,
    THERMAL,
)

PICTURES = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])
TEXTS = frozenset(["txt", "jsonl", "json", "md", "text"])

MEMORY_SHARE = 0.5
"""Files are read into memory only if they take at most so much of what is available."""


def is_ours(rank: RankEvidence) -> bool:
    """Whether the loop runs over shardkit's own loader or stream."""
    return rank.loader.kind.startswith("shardkit.")


def is_cuda(rank: RankEvidence) -> bool:
    return rank.device.startswith("cuda") or "cuda" in rank.flags


def ending(files: FilesRead | None) -> str:
    """The most frequent, without its dot; empty if none was seen."""
    if files is None or not files.endings:
        return ""
    return max(files.endings, key=lambda name: files.endings[name]).lstrip(".").lower()


def reads_pictures(rank: RankEvidence) -> bool:
    return ending(rank.files) in PICTURES or rank.worker.decoding > 0


def folder(rank: RankEvidence) -> str:
    """As the shell takes it; ``FOLDER`` if none was seen."""
    return shlex.quote(rank.files.folder) if rank.files and rank.files.folder else "FOLDER"


def packed(rank: RankEvidence, kind: str) -> str:
    """Where ``shardkit pack`` puts what this script reads, by default."""
    name = os.path.basename(rank.files.folder.rstrip("/")) if rank.files else ""
    return f"{name or 'FOLDER'}-{kind}"


def batch_size(rank: RankEvidence) -> str:
    return str(rank.loader.batch_size or rank.samples_per_step or "BATCH_SIZE")


def pack_files(rank: RankEvidence) -> str:
    """The line that packs the files of this script, and the loader that reads the result."""
    if reads_pictures(rank):
        return pack_pictures(rank)
    kind = "npy" if ending(rank.files) in {"npy", "npz", "pt"} else "lmdb"
    return (
        f"`shardkit pack {folder(rank)} --to {kind}`, then"
        f' shardkit.Loader(shardkit.open("{packed(rank, kind)}"), {batch_size(rank)},'
        ' shuffle="full", workers="auto")'
    )


def faster_files(rank: RankEvidence) -> str:
    """For a few files that hold all samples."""
    return (
        f"copy {folder(rank)} to a local disk or to /dev/shm, or read its samples in the order in"
        " which they lie there"
    )


def fetch_samples() -> str:
    """For those that come from no file."""
    return (
        "fetch the samples once, before training, into files, and pack these:"
        " `shardkit pack FOLDER --to lmdb`"
    )


def pack_pictures(rank: RankEvidence) -> str:
    size = "" if rank.picture_side else ", with your size of crop for 224"
    return (
        f"`shardkit pack {folder(rank)} --to lmdb`, then"
        f' shardkit.Loader(shardkit.open("{packed(rank, "lmdb")}"), {batch_size(rank)},'
        f' shuffle="full", transform=shardkit.images.train({rank.picture_side or 224}),'
        f' workers="auto"){size}. Its batches are dicts: "cls", and "image" as uint8'
        " (B, H, W, 3), or as floats (B, 3, H, W) with device=DEVICE and"
        " device_transform=shardkit.normalize()"
    )


def pack_tokens(rank: RankEvidence) -> str:
    return (
        f"`shardkit pack {folder(rank)} --to npy --tokenizer PATH_OR_NAME`, with the tokenizer of"
        " this script, so that text becomes ids once; then"
        f' shardkit.Loader(shardkit.TokenDataset("{packed(rank, "npy")}", seq_len=LENGTH),'
        f' {batch_size(rank)}, shuffle="full")'
    )


def smaller_pictures(rank: RankEvidence) -> str:
    source = rank.files.folder if rank.files and rank.files.folder else "DATASET"
    command = "convert" if is_ours(rank) else "pack"
    return (
        f"`shardkit {command} {shlex.quote(source)} small/ --to lmdb --resize 256` keeps less of"
        " each picture to decode; `--restarts` instead loses nothing, and crops of JPEGs decode"
        " faster; `shardkit pack --estimate` says what that costs and gains"
    )


def tune(rank: RankEvidence) -> str:
    dataset = folder(rank) if rank.files else "DATASET"
    return (
        f"`shardkit tune {dataset} --batch-size {batch_size(rank)}`, then"
        ' shardkit.Loader(..., workers="auto")'
    )


def fast_storage(rank: RankEvidence) -> str:
    """For files of ours: packed they are."""
    return (
        f"`shardkit stage {folder(rank)} /dev/shm/data`, or to a local disk, and open the copy:"
        " the files are packed, and their disk is too slow"
    )


def loader_arguments(arguments: dict[str, int | bool | None]) -> str:
    """As in a call of DataLoader."""
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def worker_arguments(rank: RankEvidence, workers: int) -> dict[str, int | bool | None]:
    """Arguments of DataLoader for so many workers: they stay alive between epochs, and hand over
    pinned memory where there is a GPU to copy to."""
    arguments: dict[str, int | bool | None] = {"num_workers": workers, "persistent_workers": True}
    if is_cuda(rank) and not rank.loader.pin_memory:
        arguments["pin_memory"] = True
    return arguments


def applicable(rank: RankEvidence, **arguments: int | bool | None) -> Applicable | None:
    """Arguments that ``--apply`` can set: only of torch's own loader."""
    return Applicable(loader=arguments) if rank.loader.kind == "DataLoader" else None


def fits_memory(evidence: Evidence, rank: RankEvidence) -> bool:
    """Whether all files of an epoch can stay in memory, as far as is known."""
    if rank.files is None or not rank.files.folder:
        return False
    batches = (rank.loader.num_batches or 0) * max(1, rank.world_size)
    size: float = batches * rank.files.per_batch * rank.files.mean_bytes
    if rank.files.held_bytes is not None:
        size = rank.files.held_bytes
    return size <= MEMORY_SHARE * evidence.system.memory_available


def where_made(rank: RankEvidence) -> str:
    """`` (train.py:31)``, the line of the loader, to go on in a sentence; empty if not known."""
    return f" ({rank.loader.made_at})" if rank.loader.made_at else ""


def where(rank: RankEvidence, *kinds: str) -> str:
    """The costliest line of some kinds: ``train.py:31 (loss.item())``; empty if none was seen."""
    line = costliest(rank.lines, *kinds)
    return f"{line.file}:{line.line} ({line.what})" if line else ""


def costliest(lines: Sequence[CodeLine], *kinds: str) -> CodeLine | None:
    found = [line for line in lines if line.kind in kinds]
    return max(found, key=lambda line: (line.seconds, line.share), default=None)


def at(rank: RankEvidence, *kinds: str) -> str:
    """`` at train.py:31 (...)``, to go on in a sentence; empty if no line was seen."""
    place = where(rank, *kinds)
    return f" at {place}" if place else ""


def little_shm(evidence: Evidence) -> tuple[str, ...]:
    """A warning where worker processes may not have the shared memory for their batches."""
    free = evidence.system.shm_free
    if free is None or free >= SHM_FREE:
        return ()
    return (f"/dev/shm has only {free / 1e6:.0f} MB left: start the container with --shm-size=8g",)


def computing(evidence: Evidence, rank: RankEvidence) -> tuple[str, ...]:
    """What makes the step itself faster, as far as the evidence says; nothing of CUDA on a CPU."""
    found = list(data_parallel(rank))
    if is_cuda(rank):
        found += cuda_step(rank) + cuda_device(evidence)
    return tuple(found)


def data_parallel(rank: RankEvidence) -> tuple[str, ...]:
    if "data_parallel" not in rank.flags:
        return ()
    return (
        "replace nn.DataParallel by DistributedDataParallel, a process a GPU: one process drives"
        " all GPUs in turn now, and copies the model to them at each step",
    )


def cuda_step(rank: RankEvidence) -> list[str]:
    found = []
    if "amp" not in rank.flags and rank.dtype in (None, "float32", "tf32"):
        found.append(
            'compute in bfloat16: `with torch.autocast("cuda", dtype=torch.bfloat16):` around'
            " forward and loss uses the Tensor Cores"
        )
    if "compile" not in rank.flags:
        found.append("`model = torch.compile(model)` fuses operations")
    if "channels_last" not in rank.flags and reads_pictures(rank):
        found.append(
            "for a convolutional model, `model.to(memory_format=torch.channels_last)`, and the"
            " pictures likewise"
        )
    total = rank.step.total
    if "fused_optimizer" not in rank.flags and total and rank.step.optimizer > OPTIMIZER * total:
        found.append("pass fused=True to the optimizer")
    return found


def cuda_device(evidence: Evidence) -> list[str]:
    found, gpus = [], evidence.system.gpus
    if gpus and all(gpu.memory_used < (1 - FREE_MEMORY) * gpu.memory_total for gpu in gpus):
        found.append("a larger batch: more than half of the GPU's memory is free")
    hot = [gpu for gpu in gpus if gpu.throttle.get("thermal", 0.0) > THERMAL]
    if hot:
        share = hot[0].throttle["thermal"]
        found.append(f"cool the GPU: heat slows {hot[0].name} for {share:.0%} of the time")
    mfu = evidence.utilisation.mfu
    if mfu is not None and mfu < LOW_MFU:
        found.append(f"only {mfu:.0%} of the device's peak is used (MFU): `--trace` shows by what")
    return found
