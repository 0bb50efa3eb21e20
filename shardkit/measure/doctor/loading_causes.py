"""Why batches come too late: which one of the causes that lie in loading, and what to change. Pure.

They are not distinguished by how much of the loop each costs, as only one of them sets the pace,
but in turn: what a cheap change would mend (epochs' beginnings, workers, cores) first, and else the
largest part of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from shardkit.measure.doctor import advice, predict
from shardkit.measure.doctor import thresholds as at
from shardkit.measure.doctor.evidence import Arguments, Diagnosis, Gain
from shardkit.measure.doctor.pipeline import Case
from shardkit.measure.figures import milliseconds as ms


def loading(case: Case) -> Diagnosis | None:
    """Return the cause that lies in loading; None where free loading would bring too little."""
    loop = case.loop
    if predict.free_loading(loop).factor < max(at.FLOOR, 1 + loop.noise):
        return None
    found = epoch_starts(case)
    if found is None and case.is_served:
        return beside_workers(case)
    found = found or storage(case) or too_few_workers(case) or too_few_cores(case)
    if found is None and loop.comes_in_time and loop.others >= at.CROWDED * loop.cores:
        return None  # it waits now and then because others have the cores, not for its work
    found = found or largest_part(case)
    # Where others have the cores, less work of one kind may bring nothing.
    return (too_few_cores(case, 0.0) or found) if found.worth < at.FLOOR else found


def saves_most(case: Case, gain: Gain, least: float = at.MOST) -> bool:
    """Return True if a change saves most of the time that the loop waits within an epoch."""
    saved = case.loop.step * (1 - 1 / gain.factor)
    return saved > 0 and saved >= least * (case.loop.steady - case.loop.free)


def epoch_starts(case: Case) -> Diagnosis | None:
    """Name epochs' beginnings if more is lost there than within epochs, or nothing is within
    them."""
    loop, loader, epochs = case.loop, case.rank.loader, case.rank.epochs
    if loop.gap and epochs.steps <= at.FEW_STEPS < (loader.num_batches or math.inf):
        return iterator_per_step(case)
    if loop.gap <= loop.steady - loop.free or loader.num_workers == 0:
        return None
    apply = advice.applicable(case.rank, {"persistent_workers": True})
    gain = predict.persistent(loop, epochs.first_batch_s)
    change = (
        "Keep the workers alive between epochs: DataLoader(..., persistent_workers=True)"
        f"{advice.where_made(case.rank)}."
    )
    if loader.persistent_workers or apply is None:
        apply, change = None, "Make longer epochs: let one pass over the data several times."
        how = f"epochs' beginnings take {ms(loop.gap)} a step, and half if epochs are twice as long"
        gain = predict.gain(loop, max(loop.step - loop.gap / 2, loop.free), how)
    sentence = (
        f"Each epoch begins with {ms(epochs.first_batch_s)} in which the loop waits for the first"
        f" batch: {epochs.share:.0%} of its time."
    )
    return Diagnosis("epoch starts", sentence, change, gain, apply)


def iterator_per_step(case: Case) -> Diagnosis:
    """Name a loop that uses one batch of each epoch that it begins."""
    epochs = case.rank.epochs
    starts = f", which starts {case.workers} anew," * bool(case.loop.workers)
    if case.rank.loader.persistent_workers:
        starts = ", for which its workers make batches that are dropped,"
    line = advice.costliest(case.rank, "wait")
    place = f"{line.file}:{line.line}" if line else case.rank.loader.made_at
    return Diagnosis(
        "iterator per step",
        f"Each step begins a new iteration over the loader{starts} and waits"
        f" {ms(epochs.first_batch_s)} for its first batch: {epochs.share:.0%} of the loop's time.",
        f"Make one iterator and use all its batches{f' ({place})' * bool(place)}: `for batch in"
        " loader:`, or `batches = iter(loader)` before the loop and `next(batches)` in it, in place"
        " of next(iter(loader)) in each step.",
        predict.one_iterator(case.loop),
    )


def beside_workers(case: Case) -> Diagnosis | None:
    """Name too few cores where batches are there when the loop asks for them, but making them slows
    the step."""
    loop = case.loop
    if not loop.is_full:
        return None
    return Diagnosis(
        "too few cores",
        f"The loop waits for {case.share('wait'):.0%} of a step only, but making batches takes"
        f" cores from it: alone, a step takes {ms(loop.free)} in place of {ms(loop.steady)}.",
        f"Give the script {cores(wanted_cores(case))}, or make batches with less"
        " processor time: more workers would take even more from the step.",
        replace(predict.free_loading(loop), is_limit=True),
    )


def storage(case: Case) -> Diagnosis | None:
    """Name storage if most of the work is reading, or if files in memory save most."""
    if case.made("reading") >= at.READING or measured_in_memory(case) is not None:
        return slow_files(case)
    return None


def slow_files(case: Case) -> Diagnosis:
    measured, rank = measured_in_memory(case), case.rank
    gain, share = predict.without(case.loop, "reading"), case.made("reading")
    is_from_files = rank.files is not None or rank.worker.decoding > 0
    if not is_from_files and measured is None and not advice.is_ours(rank):
        num = more_workers(case)
        change = (
            "Fetch the samples once, before training, into files, and pack these: `shardkit pack"
            " FOLDER --to lmdb`."
        )
        return Diagnosis(
            "storage",
            f"Batches come too late, and waiting takes {share:.0%} of making one with"
            f" {case.workers}: for a network, a database or a lock, as Python opened no file for"
            " it.",
            workers_change(case, num) if num else change,
            predict.with_workers(case.loop, num) if num else gain,
            applicable_workers(case, num) if num else None,
            removal=gain,
        )
    return Diagnosis(
        "storage",
        f"Batches come too late, and reading files takes {share:.0%} of making one with"
        f" {case.workers}.",
        advice.faster_reading(rank),
        measured or gain,
        removal=max(gain, measured or gain, key=lambda one: one.factor),
    )


def measured_in_memory(case: Case) -> Gain | None:
    """Return what files in memory brought; None where that was not measured, was not most of
    it, or where hardly anything is read."""
    if case.rank.rates.warm is None or case.made("reading") < at.READING_AT_ALL:
        return None
    gain = predict.in_memory(case.loop, case.rank.rates.warm)
    return gain if saves_most(case, gain) else None


def too_few_workers(case: Case) -> Diagnosis | None:
    """Name too few workers if there are cores that nobody uses, and more workers would do."""
    num, system = more_workers(case), case.evidence.system
    gain = predict.with_workers(case.loop, num)
    if not num or case.loop.formula <= 0 or not saves_most(case, gain):
        return None
    idle = max(0.0, system.cores - system.cores_busy)
    return Diagnosis(
        "too few workers",
        f"{case.workers[0].upper()}{case.workers[1:]} cannot make batches as fast as the loop takes"
        f" them, while {idle:.1f} of {system.cores} cores are idle.",
        workers_change(case, num),
        gain,
        applicable_workers(case, num),
    )


def more_workers(case: Case) -> int:
    """Return a number of workers that is worth trying; 0 if more bring too little, or would have no
    core: those that there are wait for one already."""
    loop, work = case.loop, case.loop.work
    num = predict.enough_workers(loop)
    is_starved = work.starved >= at.STARVED * work.total > 0
    if num <= loop.workers or loop.is_full or is_starved:
        return 0
    return num if predict.with_workers(loop, num).factor >= at.FLOOR else 0


def applicable_workers(case: Case, num: int) -> Arguments | None:
    """Return so many workers; None where each would read all."""
    if case.rank.loader.is_iterable:
        return None
    return advice.applicable(case.rank, advice.worker_arguments(case.rank, num))


def workers_change(case: Case, num: int) -> str:
    rank = case.rank
    if advice.is_ours(rank):
        return (
            f"Use more workers: `shardkit tune {advice.folder(rank)} --batch-size"
            f' {advice.batch_size(rank)}`, then shardkit.Loader(..., workers="auto");'
            f" workers={num} should do."
        )
    arguments = advice.worker_arguments(case.rank, num)
    made = ", ".join(f"{name}={value}" for name, value in arguments.items())
    text = f"Use more workers: DataLoader(..., {made}){advice.where_made(case.rank)}."
    if case.rank.loader.is_iterable:
        text += " Each must yield its own part: see torch.utils.data.get_worker_info()."
    return text


def too_few_cores(case: Case, least: float = at.MOST) -> Diagnosis | None:
    """Name too few cores if the loader would do, had it those that a quota or other processes take
    from it, or would at least save that share of what the loop waits."""
    reason = cores_taken(case) if case.loop.workers else None
    gain = predict.with_cores(case.loop, wanted_cores(case))
    if reason is None or not saves_most(case, gain, least):
        return None
    return Diagnosis(
        "too few cores",
        f"The workers would make batches {'fast enough' if least else 'faster'}, but {reason}.",
        f"Give the script {cores(wanted_cores(case))} of its own: raise the quota (docker"
        " --cpus, the pod's cpu limit, --cpus-per-task), or stop what else runs.",
        gain,
    )


def cores_taken(case: Case) -> str | None:
    """Return who takes them, to go on in a sentence; None if nobody does."""
    system, worker = case.evidence.system, case.rank.worker
    others = max(0.0, system.cores_busy - system.script_cores)
    if (system.throttled or 0.0) >= at.THROTTLED:
        return f"the CPU quota stops the script for {system.throttled:.0%} of the time"
    starved = worker.starved / worker.total if worker.total > 0 else 0.0
    is_crowded = others >= at.OTHERS * system.cores or case.loop.comes_in_time
    if starved >= at.STARVED and is_crowded:
        return f"they are ready to run and have no core for {starved:.0%} of the time"
    return None


def cores(wanted: float) -> str:
    """Return ``1 core``, ``2 cores``: a number of whole ones."""
    return "1 core" if wanted <= 1 else f"{math.ceil(wanted)} cores"


def wanted_cores(case: Case) -> float:
    """Return so many that processor time is not what sets the pace."""
    loop, system = case.loop, case.evidence.system
    busy = loop.work.cpu + loop.trainer_cpu
    needed = busy / max(loop.free, loop.step / predict.LARGEST) / predict.WORKER_SPARE
    return max(1.0, min(needed, at.MOST_CORES * system.cores))


# --- the work of making a batch -----------------------------------------------------------


def largest_part(case: Case) -> Diagnosis:
    """Return the part of the work that takes the longest, or that nobody was seen at it."""
    work = case.loop.work
    parts: dict[Callable[[Case], Diagnosis], float] = {
        decoding: work.decoding,
        tokenizing: work.tokenizing,
        transform: work.transform,
        collating: work.collating + work.sending,
        slow_files: work.reading,
    }
    if any(parts.values()):
        return max(parts, key=lambda part: parts[part])(case)
    gain = predict.free_loading(case.loop)
    return Diagnosis(
        "not enough evidence",
        f"The loop waits for its batches, without which it would be {gain.factor:.1f} times as"
        f" fast, but where {case.rank.loader.kind} makes them was not seen.",
        "Read through torch's DataLoader or shardkit.Loader, and let the doctor look again.",
        gain,
    )


def late(case: Case, what: str, *parts: str) -> str:
    share = case.made(*parts)
    return f"Batches come too late, and {what} takes {share:.0%} of making one with {case.workers}."


def decoding(case: Case) -> Diagnosis:
    removal, rank = predict.without(case.loop, "decoding"), case.rank
    if advice.is_ours(rank):
        gain = predict.resized(case.loop)
        change = (
            f"Store smaller pictures: `shardkit convert {advice.folder(rank)} small/ --to lmdb"
            " --resize 256` keeps less of each picture to decode; `--restarts` instead loses"
            " nothing, and crops of JPEGs decode faster; `shardkit pack --estimate` says what that"
            " costs and gains."
        )
    else:
        gain = predict.by_kernel(case.loop, rank.epochs.first_batch_s)
        change = f"Decode and crop by shardkit's kernel: {advice.pack_pictures(rank)}."
    sentence = late(case, "decoding pictures", "decoding")
    return Diagnosis("decoding", sentence, change, gain, removal=removal)


def tokenizing(case: Case) -> Diagnosis:
    rank = case.rank
    place, to = advice.folder(rank), advice.packed(rank, "npy")
    return Diagnosis(
        "tokenizing",
        late(case, "tokenizing text", "tokenizing"),
        f"Tokenize once, before training: `shardkit pack {place} --to npy --tokenizer"
        " PATH_OR_NAME`, with the tokenizer of this script, so that text becomes ids once; then"
        f' shardkit.Loader(shardkit.TokenDataset("{to}", seq_len=LENGTH),'
        f' {advice.batch_size(rank)}, shuffle="full").',
        predict.without(case.loop, "tokenizing", "reading"),
    )


def transform(case: Case) -> Diagnosis:
    return Diagnosis(
        "transform",
        late(case, "the transform, Python and the libraries it calls,", "transform"),
        f"Make the transform cheaper{advice.at(case.rank, 'profile-worker')}: do what is the same"
        " in each epoch once, and pack the result, or do it for a whole batch with NumPy or torch,"
        " or on the GPU.",
        replace(predict.without(case.loop, "transform"), is_limit=True),
    )


def collating(case: Case) -> Diagnosis:
    sends = bool(case.loop.workers)
    what = "making batches of samples" + " and sending them to the loop" * sends
    return Diagnosis(
        "collating",
        late(case, what, "collating", "sending"),
        f"{'Send' if sends else 'Collate'} less{advice.at(case.rank, 'profile-worker')}: few"
        " tensors a sample and no Python objects, bytes (uint8) that are normalised on the device,"
        " no padding to the longest of all samples.",
        replace(predict.without(case.loop, "collating", "sending"), is_limit=True),
    )
