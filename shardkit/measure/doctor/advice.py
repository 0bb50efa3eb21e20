"""What to change, in words that can be copied: command lines, arguments, lines of the script."""

from __future__ import annotations

import os
import shlex

from shardkit.measure.doctor.evidence import Arguments, CodeLine, RankEvidence
from shardkit.measure.doctor.thresholds import LOW_MFU, OPTIMIZER

PICTURES = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])


def is_ours(rank: RankEvidence) -> bool:
    """Return True if the loop runs over shardkit's own loader or stream."""
    return rank.loader.kind.startswith("shardkit.")


def is_cuda(rank: RankEvidence) -> bool:
    return rank.device.startswith("cuda") or "cuda" in rank.flags


# --- files --------------------------------------------------------------------------------


def ending(rank: RankEvidence) -> str:
    """Return the most frequent ending of files, without its dot; empty if none was seen."""
    endings = rank.files.endings if rank.files else {}
    return max(endings, key=lambda name: endings[name], default="").lstrip(".").lower()


def folder(rank: RankEvidence) -> str:
    """Return the folder of the files as the shell takes it; ``FOLDER`` if none was seen."""
    return shlex.quote(rank.files.folder) if rank.files and rank.files.folder else "FOLDER"


def packed(rank: RankEvidence, kind: str) -> str:
    """Return where ``shardkit pack`` puts what this script reads, by default."""
    name = os.path.basename(rank.files.folder.rstrip("/")) if rank.files else ""
    return f"{name or 'FOLDER'}-{kind}"


def batch_size(rank: RankEvidence) -> str:
    return str(rank.loader.batch_size or rank.samples_per_step or "BATCH_SIZE")


def faster_reading(rank: RankEvidence) -> str:
    """Return what to do with files that are read too slowly."""
    if is_ours(rank):
        return (
            f"Run `shardkit stage {folder(rank)} /dev/shm/data`, or to a local disk, and open the"
            " copy: the files are packed, and their disk is too slow."
        )
    if rank.files is not None and rank.files.held_bytes is not None:
        return (
            f"Copy {folder(rank)} to a local disk or to /dev/shm, or read its samples in the order"
            " in which they lie there."
        )
    start = "Pack the files, so that reading is one long read"
    if ending(rank) in PICTURES or rank.worker.decoding > 0:
        return f"{start}: {pack_pictures(rank)}."
    kind = "npy" if ending(rank) in {"npy", "npz", "pt"} else "lmdb"
    return (
        f"{start}: `shardkit pack {folder(rank)} --to {kind}`, then"
        f' shardkit.Loader(shardkit.open("{packed(rank, kind)}"), {batch_size(rank)},'
        ' shuffle="full", workers="auto").'
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


# --- loaders ------------------------------------------------------------------------------


def worker_arguments(rank: RankEvidence, workers: int) -> Arguments:
    """Return arguments of DataLoader for so many workers: they stay alive between epochs, and hand
    over pinned memory where there is a GPU to copy to."""
    arguments: Arguments = {"num_workers": workers, "persistent_workers": True}
    if is_cuda(rank) and not rank.loader.pin_memory:
        arguments["pin_memory"] = True
    return arguments


def applicable(rank: RankEvidence, arguments: Arguments) -> Arguments | None:
    """Return arguments that ``--apply`` can set: only of torch's own loader."""
    return arguments if rank.loader.kind == "DataLoader" else None


def where_made(rank: RankEvidence) -> str:
    """Return `` (train.py:31)``, the line of the loader; empty if not known."""
    return f" ({rank.loader.made_at})" if rank.loader.made_at else ""


# --- lines of code ------------------------------------------------------------------------


def costliest(rank: RankEvidence, kind: str) -> CodeLine | None:
    found = [line for line in rank.lines if line.kind == kind]
    return max(found, key=lambda line: (line.seconds, line.share), default=None)


def at(rank: RankEvidence, kind: str) -> str:
    """Return `` at train.py:31 (...)``, the costliest line of a kind; empty if none was seen."""
    line = costliest(rank, kind)
    return f" at {line.file}:{line.line} ({line.what})" if line else ""


# --- a step that computes -----------------------------------------------------------------


def computing(rank: RankEvidence, mfu: float | None) -> str | None:
    """Return what makes the step on a GPU faster, as far as the evidence says; None if nothing."""
    is_slow = rank.step.optimizer > OPTIMIZER * rank.step.total > 0
    hints = {
        'Compute in bfloat16: `with torch.autocast("cuda", dtype=torch.bfloat16):` around'
        " forward and loss uses the Tensor Cores.": "amp" not in rank.flags
        and rank.dtype in (None, "float32", "tf32"),
        "`model = torch.compile(model)` fuses operations.": "compile" not in rank.flags,
        "Pass fused=True to the optimizer.": is_slow and "fused_optimizer" not in rank.flags,
        f"Only {mfu or 0:.0%} of the device's peak is used (MFU): `--trace` shows by what.": mfu
        is not None
        and mfu < LOW_MFU,
    }
    return next((hint for hint, is_so in hints.items() if is_so), None)
