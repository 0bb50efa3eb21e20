"""Why batches come too late: which one of the causes that lie in loading, and what to change. Pure.

They are not distinguished by how much of the loop each costs, as only one of them sets the pace,
but in turn: what a cheap change would mend (epochs' beginnings, workers, cores) first, and else the
largest part of the work.
"""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable
from dataclasses import replace

from shardkit.measure.doctor import predict
from shardkit.measure.doctor import thresholds as at
from shardkit.measure.doctor.evidence import Arguments, Diagnosis, Gain, RankEvidence
from shardkit.measure.doctor.predict import Case
from shardkit.measure.figures import milliseconds as ms


def loading(case: Case) -> Diagnosis | None:
    """Return the cause that lies in loading; None where free loading would bring too little."""
    if predict.free_loading(case).factor < max(at.FLOOR, 1 + case.noise):
        return None
    found = epoch_starts(case)
    if found is None and case.is_served:
        return beside_workers(case)
    found = found or storage(case) or too_few_workers(case) or too_few_cores(case)
    if found is None and case.comes_in_time and case.others >= at.CROWDED * case.cores:
        return None  # it waits now and then because others have the cores, not for its work
    found = found or largest_part(case)
    # Where others have the cores, less work of one kind may bring nothing.
    return (too_few_cores(case, 0.0) or found) if found.worth < at.FLOOR else found


def saves_most(case: Case, gain: Gain, least: float = at.MOST) -> bool:
    """Return True if a change saves most of the time that the loop waits within an epoch."""
    saved = case.step * (1 - 1 / gain.factor)
    return saved > 0 and saved >= least * (case.steady - case.free)


def epoch_starts(case: Case) -> Diagnosis | None:
    """Name epochs' beginnings if more is lost there than within epochs, or nothing is within
    them."""
    loader, epochs = case.rank.loader, case.rank.epochs
    if case.gap and epochs.steps <= at.FEW_STEPS < (loader.num_batches or math.inf):
        return iterator_per_step(case)
    if case.gap <= case.steady - case.free or loader.num_workers == 0:
        return None
    sentence = (
        f"Each epoch begins with {ms(epochs.first_batch_s)} in which the loop waits for the first"
        f" batch: {epochs.share:.0%} of its time."
    )
    if loader.persistent_workers or loader.kind != "DataLoader":
        change = "Make longer epochs: let one pass over the data several times."
        how = f"epochs' beginnings take {ms(case.gap)} a step, and half if epochs are twice as long"
        gain = predict.gain(case, max(case.step - case.gap / 2, case.free), how)
        return Diagnosis("epoch starts", sentence, change, gain)
    change = (
        "Keep the workers alive between epochs: DataLoader(..., persistent_workers=True)"
        f"{loader.where}."
    )
    gain = predict.persistent(case, epochs.first_batch_s)
    return Diagnosis("epoch starts", sentence, change, gain, {"persistent_workers": True})


def iterator_per_step(case: Case) -> Diagnosis:
    """Name a loop that uses one batch of each epoch that it begins."""
    epochs = case.rank.epochs
    starts = f", which starts {predict.named(case.workers)} anew," * bool(case.workers)
    if case.rank.loader.persistent_workers:
        starts = ", for which its workers make batches that are dropped,"
    line = case.rank.costliest("wait")
    place = f"{line.file}:{line.line}" if line else case.rank.loader.made_at
    return Diagnosis(
        "iterator per step",
        f"Each step begins a new iteration over the loader{starts} and waits"
        f" {ms(epochs.first_batch_s)} for its first batch: {epochs.share:.0%} of the loop's time.",
        f"Make one iterator and use all its batches{f' ({place})' * bool(place)}: `for batch in"
        " loader:`, or `batches = iter(loader)` before the loop and `next(batches)` in it, in place"
        " of next(iter(loader)) in each step.",
        predict.one_iterator(case),
    )


def beside_workers(case: Case) -> Diagnosis | None:
    """Name too few cores where batches are there when the loop asks for them, but making them slows
    the step."""
    if not case.is_full:
        return None
    return Diagnosis(
        "too few cores",
        f"The loop waits for {case.share('wait'):.0%} of a step only, but making batches takes"
        f" cores from it: alone, a step takes {ms(case.free)} in place of {ms(case.steady)}.",
        f"Give the script {cores(case)}, or make batches with less"
        " processor time: more workers would take even more from the step.",
        replace(predict.free_loading(case), is_limit=True),
    )


def storage(case: Case) -> Diagnosis | None:
    """Name storage if most of the work is reading, or if files in memory save most."""
    is_most = case.made("reading") >= at.READING or measured_in_memory(case) is not None
    return slow_files(case) if is_most else None


def slow_files(case: Case) -> Diagnosis:
    measured, rank = measured_in_memory(case), case.rank
    gain = predict.without(case, "reading")
    is_from_files = rank.files is not None or rank.worker.decoding > 0
    if not is_from_files and measured is None and not rank.is_ours:
        change: tuple[str, Gain, Arguments | None] = (
            "Fetch the samples once, before training, into files, and pack these: `shardkit pack"
            " FOLDER --to lmdb`.",
            gain,
            None,
        )
        return Diagnosis(
            "storage",
            f"{late(case, 'waiting', 'reading')[:-1]}: for a network, a database or a lock, as"
            " Python opened no file for it.",
            *(more_workers(case) or change),
            removal=gain,
        )
    return Diagnosis(
        "storage",
        late(case, "reading files", "reading"),
        faster_reading(rank),
        measured or gain,
        removal=max(gain, measured or gain, key=lambda one: one.factor),
    )


def measured_in_memory(case: Case) -> Gain | None:
    """Return what files in memory brought; None where that was not measured, was not most of
    it, or where hardly anything is read."""
    if case.rank.rates.warm is None or case.made("reading") < at.READING_AT_ALL:
        return None
    gain = predict.in_memory(case, case.rank.rates.warm)
    return gain if saves_most(case, gain) else None


def too_few_workers(case: Case) -> Diagnosis | None:
    """Name too few workers if there are cores that nobody uses, and more workers would do."""
    change, system = more_workers(case), case.evidence.system
    if change is None or case.formula <= 0 or not saves_most(case, change[1]):
        return None
    idle, workers = max(0.0, system.cores - system.cores_busy), predict.named(case.workers)
    return Diagnosis(
        "too few workers",
        f"{workers[0].upper()}{workers[1:]} cannot make batches as fast as the loop takes them,"
        f" while {idle:.1f} of {system.cores} cores are idle.",
        *change,
    )


def more_workers(case: Case) -> tuple[str, Gain, Arguments | None] | None:
    """Return the change, its gain, and what ``--apply`` can set; None if more workers bring too
    little, or would have no core: those that there are wait for one already."""
    num, rank, loader = predict.enough_workers(case), case.rank, case.rank.loader
    gain = predict.with_workers(case, num)
    is_starved = case.work.starved >= at.STARVED * case.work.total > 0
    if num <= case.workers or case.is_full or is_starved or gain.factor < at.FLOOR:
        return None
    if rank.is_ours:
        text = (
            f"Use more workers: `shardkit tune {folder(rank)} --batch-size"
            f' {batch_size(rank)}`, then shardkit.Loader(..., workers="auto");'
            f" workers={num} should do."
        )
        return text, gain, None
    # They stay alive between epochs, and hand over pinned memory if there is a GPU to copy to.
    arguments: Arguments = {"num_workers": num, "persistent_workers": True}
    if rank.is_cuda and not loader.pin_memory:
        arguments["pin_memory"] = True
    made = ", ".join(f"{name}={value}" for name, value in arguments.items())
    text = f"Use more workers: DataLoader(..., {made}){loader.where}."
    if loader.is_iterable:  # each would read all
        text += " Each must yield its own part: see torch.utils.data.get_worker_info()."
    can_apply = loader.kind == "DataLoader" and not loader.is_iterable
    return text, gain, arguments if can_apply else None


def too_few_cores(case: Case, least: float = at.MOST) -> Diagnosis | None:
    """Name too few cores if the loader would do, had it those that a quota or other processes take
    from it, or would at least save that share of what the loop waits."""
    reason = cores_taken(case) if case.workers else None
    gain = predict.with_cores(case, wanted_cores(case))
    if reason is None or not saves_most(case, gain, least):
        return None
    return Diagnosis(
        "too few cores",
        f"The workers would make batches {'fast enough' if least else 'faster'}, but {reason}.",
        f"Give the script {cores(case)} of its own: raise the quota (docker"
        " --cpus, the pod's cpu limit, --cpus-per-task), or stop what else runs.",
        gain,
    )


def cores_taken(case: Case) -> str | None:
    """Return who takes them, to go on in a sentence; None if nobody does."""
    system, worker = case.evidence.system, case.rank.worker
    if (system.throttled or 0.0) >= at.THROTTLED:
        return f"the CPU quota stops the script for {system.throttled:.0%} of the time"
    starved = worker.starved / worker.total if worker.total > 0 else 0.0
    others = system.cores_busy - system.script_cores
    is_crowded = others >= at.OTHERS * system.cores or case.comes_in_time
    if starved >= at.STARVED and is_crowded:
        return f"they are ready to run and have no core for {starved:.0%} of the time"
    return None


def cores(case: Case) -> str:
    """Return ``1 core``, ``2 cores``: whole ones, so many as are wanted."""
    wanted = wanted_cores(case)
    return "1 core" if wanted <= 1 else f"{math.ceil(wanted)} cores"


def wanted_cores(case: Case) -> float:
    """Return so many that processor time is not what sets the pace."""
    busy = case.work.cpu + case.trainer_cpu
    needed = busy / max(case.free, case.step / predict.LARGEST) / predict.WORKER_SPARE
    return max(1.0, min(needed, at.MOST_CORES * case.evidence.system.cores))


# --- the work of making a batch -----------------------------------------------------------


def largest_part(case: Case) -> Diagnosis:
    """Return the part of the work that takes the longest, or that nobody was seen at it."""
    work = case.work
    parts: dict[Callable[[Case], Diagnosis], float] = {
        decoding: work.decoding,
        tokenizing: work.tokenizing,
        transform: work.transform,
        collating: work.collating + work.sending,
        slow_files: work.reading,
    }
    if any(parts.values()):
        return max(parts, key=lambda part: parts[part])(case)
    gain = predict.free_loading(case)
    return Diagnosis(
        "not enough evidence",
        f"The loop waits for its batches, without which it would be {gain.factor:.1f} times as"
        f" fast, but where {case.rank.loader.kind} makes them was not seen.",
        "Read through torch's DataLoader or shardkit.Loader, and let the doctor look again.",
        gain,
    )


def late(case: Case, what: str, *parts: str) -> str:
    share, by = case.made(*parts), predict.named(case.workers)
    return f"Batches come too late, and {what} takes {share:.0%} of making one with {by}."


def decoding(case: Case) -> Diagnosis:
    removal, rank = predict.without(case, "decoding"), case.rank
    if rank.is_ours:
        gain = predict.resized(case)
        change = (
            f"Store smaller pictures: `shardkit convert {folder(rank)} small/ --to lmdb"
            " --resize 256` keeps less of each picture to decode; `--restarts` instead loses"
            " nothing, and crops of JPEGs decode faster; `shardkit pack --estimate` says what that"
            " costs and gains."
        )
    else:
        gain = predict.by_kernel(case, rank.epochs.first_batch_s)
        change = f"Decode and crop by shardkit's kernel: {pack_pictures(rank)}."
    sentence = late(case, "decoding pictures", "decoding")
    return Diagnosis("decoding", sentence, change, gain, removal=removal)


def tokenizing(case: Case) -> Diagnosis:
    rank = case.rank
    place, to = folder(rank), packed(rank, "npy")
    return Diagnosis(
        "tokenizing",
        late(case, "tokenizing text", "tokenizing"),
        f"Tokenize once, before training: `shardkit pack {place} --to npy --tokenizer"
        " PATH_OR_NAME`, with the tokenizer of this script, so that text becomes ids once; then"
        f' shardkit.Loader(shardkit.TokenDataset("{to}", seq_len=LENGTH),'
        f' {batch_size(rank)}, shuffle="full").',
        predict.without(case, "tokenizing", "reading"),
    )


def transform(case: Case) -> Diagnosis:
    return Diagnosis(
        "transform",
        late(case, "the transform, Python and the libraries it calls,", "transform"),
        f"Make the transform cheaper{case.rank.at('profile-worker')}: do what is the same"
        " in each epoch once, and pack the result, or do it for a whole batch with NumPy or torch,"
        " or on the GPU.",
        replace(predict.without(case, "transform"), is_limit=True),
    )


def collating(case: Case) -> Diagnosis:
    sends = bool(case.workers)
    what = "making batches of samples" + " and sending them to the loop" * sends
    return Diagnosis(
        "collating",
        late(case, what, "collating", "sending"),
        f"{'Send' if sends else 'Collate'} less{case.rank.at('profile-worker')}: few"
        " tensors a sample and no Python objects, bytes (uint8) that are normalised on the device,"
        " no padding to the longest of all samples.",
        replace(predict.without(case, "collating", "sending"), is_limit=True),
    )


# --- command lines and arguments to copy --------------------------------------------------

PICTURES = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])


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
    if rank.is_ours:
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
