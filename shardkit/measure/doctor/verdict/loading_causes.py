"""Why batches come too late: which one of the causes that lie in loading, and what to change.

They are not told apart by how much of the loop each costs, as only one of them sets the pace, but
in turn: what a cheap change would mend (epochs' beginnings, workers, cores) first, and else the
largest part of the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from shardkit.measure.doctor.diagnosis import Applicable, Gain
from shardkit.measure.doctor.verdict import advice, predict
from shardkit.measure.doctor.verdict.case import Case, Suspect, candidate, rates
from shardkit.measure.doctor.verdict.predict import made_in
from shardkit.measure.doctor.verdict.thresholds import (
    CROWDED,
    FLOOR,
    MOST,
    MOST_CORES,
    OTHERS,
    READING,
    STARVED,
    THROTTLED,
)
from shardkit.measure.report.words import milliseconds as ms

FEW_STEPS = 2
"""Steps of an iteration, up to which it is called one for each step if it could have more."""


def loading(case: Case) -> Suspect | None:
    """The cause that lies in loading; None where free loading would bring too little."""
    if predict.free_loading(case.loop).factor < max(FLOOR, 1 + case.loop.noise):
        return None
    found = epoch_starts(case)
    if found is None and case.is_served:
        return beside_workers(case)
    rules = (storage, too_few_workers, too_few_cores)
    found = found or next((found for rule in rules if (found := rule(case))), None)
    if found is None and case.loop.comes_in_time and case.loop.others >= CROWDED * case.loop.cores:
        return None  # it waits now and then because others have the cores, not for its work
    found = found or largest_part(case)
    # Where others have the cores, less work of one kind may bring nothing.
    return (too_few_cores(case, 0.0) or found) if found.removal < FLOOR else found


def saves_most(case: Case, gain: Gain, least: float = MOST) -> bool:
    """Whether a change saves most of the time that the loop waits within an epoch."""
    saved = case.loop.step * (1 - 1 / gain.factor)
    return saved > 0 and saved >= least * (case.loop.steady - case.loop.free)


def epoch_starts(case: Case) -> Suspect | None:
    """More is lost where epochs begin than within them, or nothing is within them."""
    loop, loader, epochs = case.loop, case.rank.loader, case.rank.epochs
    if loop.gap and epochs.steps <= FEW_STEPS < (loader.num_batches or math.inf):
        return iterator_per_step(case)
    if loop.gap <= loop.steady - loop.free or loader.num_workers == 0:
        return None
    sentence = (
        f"Each epoch begins with {ms(epochs.first_batch_s)} in which the loop waits for the first"
        f" batch: {epochs.share:.0%} of its time."
    )
    apply = advice.applicable(case.rank, persistent_workers=True)
    longer = "longer epochs: let one pass over the data several times"
    if loader.persistent_workers or apply is None:
        how = f"epochs' beginnings take {ms(loop.gap)} a step, and half if epochs are twice as long"
        gain = predict.gain(loop, max(loop.step - loop.gap / 2, loop.free), how)
        return candidate("epoch starts", because(case), sentence, f"Make {longer}.", gain)
    return candidate(
        "epoch starts",
        because(case),
        sentence,
        "Keep the workers alive between epochs: DataLoader(..., persistent_workers=True)"
        f"{advice.where_made(case.rank)}.",
        predict.persistent(loop, epochs.first_batch_s),
        apply=apply,
        then=(longer,),
    )


def iterator_per_step(case: Case) -> Suspect:
    """The loop uses one batch of each epoch that it begins."""
    workers, epochs = case.loop.workers, case.rank.epochs
    starts = f", which starts {count(workers)} anew," * bool(workers)
    if case.rank.loader.persistent_workers:
        starts = ", for which its workers make batches that are dropped,"
    line = advice.costliest(case.rank.lines, "wait")
    place = f"{line.file}:{line.line}" if line else case.rank.loader.made_at
    return candidate(
        "iterator per step",
        because(case),
        f"Each step begins a new iteration over the loader{starts} and waits"
        f" {ms(epochs.first_batch_s)} for its first batch: {epochs.share:.0%} of the loop's time.",
        f"Make one iterator and use all its batches{f' ({place})' * bool(place)}: `for batch in"
        " loader:`, or `batches = iter(loader)` before the loop and `next(batches)` in it, in place"
        " of next(iter(loader)) in each step.",
        predict.one_iterator(case.loop),
    )


def beside_workers(case: Case) -> Suspect | None:
    """Batches are there when the loop asks for them, but making them slows the step."""
    loop = case.loop
    if not loop.is_full:
        return None
    return candidate(
        "too few cores",
        because(case),
        f"The loop waits for {case.share('wait'):.0%} of a step only, but making batches takes"
        f" cores from it: alone, a step takes {ms(loop.free)} in place of {ms(loop.steady)}.",
        f"Give the script {cores(wanted_cores(case))}, or make batches with less"
        " processor time: more workers would take even more from the step.",
        replace(predict.free_loading(loop), is_limit=True),
    )


def storage(case: Case) -> Suspect | None:
    """Most of the work is reading, or the files being in memory saves most."""
    reading, made = case.loop.work.reading, made_in(case.loop.work)
    if (made > 0 and reading >= READING * made) or measured_in_memory(case) is not None:
        return slow_files(case)
    return None


def slow_files(case: Case) -> Suspect:
    measured = measured_in_memory(case)
    is_from_files = case.rank.files is not None or case.rank.worker.decoding > 0
    if not is_from_files and measured is None and not advice.is_ours(case.rank):
        return slow_source(case)
    change, is_warm = storage_change(case, measured is not None)
    gain = predict.without(case.loop, "reading")
    workers = more_workers(case)
    return candidate(
        "storage",
        because(case),
        f"Batches come too late, and reading files takes {part_share(case, 'reading'):.0%} of"
        f" making one with {count(case.loop.workers)}.",
        change,
        measured or gain,
        removal=gain if gain.factor > (measured or gain).factor else None,
        apply=Applicable(warm=True) if is_warm else None,
        then=(f"more readers side by side: num_workers={workers}",) if workers else (),
    )


def slow_source(case: Case) -> Suspect:
    """Samples are waited for, and no file is opened: they come from elsewhere."""
    workers = more_workers(case)
    arguments = advice.worker_arguments(case.rank, workers)
    fetch = advice.fetch_samples()
    removal = predict.without(case.loop, "reading")
    return candidate(
        "storage",
        because(case),
        f"Batches come too late, and waiting takes {part_share(case, 'reading'):.0%} of making one"
        f" with {count(case.loop.workers)}: for a network, a database or a lock, as Python opened"
        " no file for it.",
        workers_change(case, arguments, workers) if workers else f"{upper(fetch)}.",
        predict.with_workers(case.loop, workers) if workers else removal,
        removal=removal,
        apply=applicable_workers(case, workers) if workers else None,
        then=(fetch,) if workers else (),
    )


def measured_in_memory(case: Case) -> Gain | None:
    """What files in memory brought; None where that was not measured, or was not most of it."""
    if case.rank.rates.warm is None:
        return None
    gain = predict.in_memory(case.loop, case.rank.rates.warm)
    return gain if saves_most(case, gain) else None


def storage_change(case: Case, helps_in_memory: bool) -> tuple[str, bool]:
    """What to do, and whether reading the files into memory does it for one run."""
    rank = case.rank
    unknown = rank.rates.warm is None
    is_warm = (helps_in_memory or unknown) and advice.fits_memory(case.evidence, rank)
    if rank.files is not None and rank.files.held_bytes is not None and not advice.is_ours(rank):
        change = advice.faster_files(rank)
        if is_warm:
            return f"Read the files into memory once, before training, or {change}.", True
        return f"{upper(change)}.", False
    change = advice.fast_storage(rank) if advice.is_ours(rank) else advice.pack_files(rank)
    if is_warm:
        return f"Read the files into memory once, before training, or pack them: {change}.", True
    return f"Pack the files, so that reading is one long read: {change}.", False


def too_few_workers(case: Case) -> Suspect | None:
    """There are cores that nobody uses, and more workers would do."""
    loop, workers = case.loop, more_workers(case)
    gain = predict.with_workers(loop, workers)
    if not workers or loop.formula <= 0 or not saves_most(case, gain):
        return None
    system = case.evidence.system
    arguments = advice.worker_arguments(case.rank, workers)
    rest = f"{max(0.0, system.cores - system.cores_busy):.1f} of {system.cores} cores are idle"
    sentence = (
        f"{upper(count(loop.workers))} cannot make batches as fast as the loop takes them, while"
        f" {rest}."
    )
    return candidate(
        "too few workers",
        because(case),
        sentence,
        workers_change(case, arguments, workers),
        gain,
        apply=applicable_workers(case, workers),
        then=advice.little_shm(case.evidence),
    )


def more_workers(case: Case) -> int:
    """Return a number of workers that is worth trying; 0 if more bring too little, or would have no
    core: those that there are wait for one already."""
    loop, work = case.loop, case.loop.work
    workers = predict.enough_workers(loop)
    is_starved = work.starved >= STARVED * work.total > 0
    if workers <= loop.workers or loop.is_full or is_starved:
        return 0
    return workers if predict.with_workers(loop, workers).factor >= FLOOR else 0


def applicable_workers(case: Case, workers: int) -> Applicable | None:
    """So many workers, and others that may be better: the formula knows nothing of queues. None
    where each would read all."""
    if case.rank.loader.is_iterable:
        return None
    most = max(workers, math.ceil(2 * case.loop.cores))
    others = {max(-(-workers // 2), case.loop.workers + 1), min(2 * workers, most)} - {workers}
    found = advice.applicable(case.rank, **advice.worker_arguments(case.rank, workers))
    if found is None:
        return None
    tries = [advice.worker_arguments(case.rank, other) for other in sorted(others)]
    return replace(found, others=tuple(tries))


def workers_change(case: Case, arguments: dict[str, int | bool | None], workers: int) -> str:
    if advice.is_ours(case.rank):
        return f"Use more workers: {advice.tune(case.rank)}; workers={workers} should do."
    made = advice.loader_arguments(arguments)
    text = f"Use more workers: DataLoader(..., {made}){advice.where_made(case.rank)}."
    if case.rank.loader.is_iterable:
        text += " Each must yield its own part: see torch.utils.data.get_worker_info()."
    return text


def too_few_cores(case: Case, least: float = MOST) -> Suspect | None:
    """The loader would do, had it the cores that a quota or other processes take from it, or would
    at least save that share of what the loop waits."""
    reason = cores_taken(case) if case.loop.workers else None
    gain = predict.with_cores(case.loop, wanted_cores(case))
    if reason is None or not saves_most(case, gain, least):
        return None
    return candidate(
        "too few cores",
        because(case),
        f"The workers would make batches {'fast enough' if least else 'faster'}, but {reason}.",
        f"Give the script {cores(wanted_cores(case))} of its own: raise the quota (docker"
        " --cpus, the pod's cpu limit, --cpus-per-task), or stop what else runs.",
        gain,
    )


def cores_taken(case: Case) -> str | None:
    """Who takes them, to go on in a sentence; None if nobody does."""
    system = case.evidence.system
    others = max(0.0, system.cores_busy - system.script_cores)
    if (system.throttled or 0.0) >= THROTTLED:
        return f"the CPU quota stops the script for {system.throttled:.0%} of the time"
    total = case.rank.worker.total
    starved = case.rank.worker.starved / total if total > 0 else 0.0
    if starved >= STARVED and (others >= OTHERS * system.cores or case.loop.comes_in_time):
        return f"they are ready to run and have no core for {starved:.0%} of the time"
    return None


def cores(wanted: float) -> str:
    """``1 core``, ``2 cores``: a number of whole ones."""
    return "1 core" if wanted <= 1 else f"{math.ceil(wanted)} cores"


def wanted_cores(case: Case) -> float:
    """So many that processor time is not what sets the pace."""
    loop, system = case.loop, case.evidence.system
    busy = loop.work.cpu + loop.trainer_cpu
    needed = busy / max(loop.free, loop.step / predict.LARGEST) / predict.WORKER_SPARE
    return max(1.0, min(needed, MOST_CORES * system.cores))


def largest_part(case: Case) -> Suspect:
    """The part of the work that takes the longest, or that nobody was seen at it."""
    work = case.loop.work
    parts: dict[Callable[[Case], Suspect], float] = {
        decoding: work.decoding,
        tokenizing: work.tokenizing,
        transform: work.transform,
        collating: work.collating + work.sending,
        slow_files: work.reading,
    }
    if not any(parts.values()):
        return unseen(case)
    return max(parts, key=lambda part: parts[part])(case)


def decoding(case: Case) -> Suspect:
    sentence = work_sentence(case, "decoding pictures", "decoding")
    removal, files = predict.without(case.loop, "decoding"), case.rank.files
    if advice.is_ours(case.rank):
        gain = predict.resized(case.loop)
        change = f"Store smaller pictures: {advice.smaller_pictures(case.rank)}."
        return candidate("decoding", because(case), sentence, change, gain, removal=removal)
    return candidate(
        "decoding",
        because(case),
        sentence,
        f"Decode and crop by shardkit's kernel: {advice.pack_pictures(case.rank)}.",
        predict.by_kernel(case.loop, files, case.evidence.kernel, case.rank.epochs.first_batch_s),
        removal=removal,
        then=(advice.smaller_pictures(case.rank),),
    )


def tokenizing(case: Case) -> Suspect:
    sentence = work_sentence(case, "tokenizing text", "tokenizing")
    change = f"Tokenize once, before training: {advice.pack_tokens(case.rank)}."
    gain = predict.without(case.loop, "tokenizing", "reading")
    return candidate("tokenizing", because(case), sentence, change, gain)


def transform(case: Case) -> Suspect:
    place = advice.at(case.rank, "profile-worker")
    return candidate(
        "transform",
        because(case),
        work_sentence(case, "the transform, Python and the libraries it calls,", "transform"),
        f"Make the transform cheaper{place}: do what is the same in each epoch once, and pack the"
        " result, or do it for a whole batch with NumPy or torch, or on the GPU.",
        replace(predict.without(case.loop, "transform"), is_limit=True),
    )


def collating(case: Case) -> Suspect:
    place = advice.at(case.rank, "profile-worker")
    work = case.loop.work
    what = "making batches of samples" + " and sending them to the loop" * bool(case.loop.workers)
    sentence = work_sentence(case, what, "collating", "sending")
    change = f"{'Send' if case.loop.workers else 'Collate'} less{place}: few tensors a sample and"
    change += " no Python objects, bytes (uint8) that are normalised on the device,"
    change += " no padding to the longest of all samples."
    then: tuple[str, ...] = ()
    if work.sending > work.collating and not advice.is_ours(case.rank):
        then = ("shardkit.Loader's workers are threads, which send nothing",)
    gain = replace(predict.without(case.loop, "collating", "sending"), is_limit=True)
    return candidate("collating", because(case), sentence, change, gain, then=then)


def unseen(case: Case) -> Suspect:
    """The loop waits, and nobody was seen making its batches."""
    gain = predict.free_loading(case.loop)
    sentence = (
        f"The loop waits for its batches, without which it would be {gain.factor:.1f} times as"
        f" fast, but where {case.rank.loader.kind} makes them was not seen."
    )
    change = "Read through torch's DataLoader or shardkit.Loader, and let the doctor look again."
    return candidate("not enough evidence", because(case), sentence, change, gain)


def because(case: Case) -> tuple[str, ...]:
    """What was measured of loading."""
    work, system = case.loop.work, case.evidence.system
    parts = {name: getattr(work, name) for name in predict.PARTS}
    named = ", ".join(f"{name} {ms(parts[name])}" for name in parts if parts[name] > 0)
    found = [rates(case), f"The loop waits for {case.share('wait'):.0%} of a step."]
    if named:
        found.append(
            f"A batch takes {ms(made_in(work))} to make: {named}; {ms(work.cpu)} of it on a core."
        )
    found.append(
        f"{system.cores_busy:.1f} of {system.cores} cores are busy, {system.script_cores:.1f} with"
        " this script."
    )
    return tuple(found)


def work_sentence(case: Case, what: str, *parts: str) -> str:
    return (
        f"Batches come too late, and {what} takes {part_share(case, *parts):.0%} of making one"
        f" with {count(case.loop.workers)}."
    )


def part_share(case: Case, *parts: str) -> float:
    made = made_in(case.loop.work)
    return sum(getattr(case.loop.work, part) for part in parts) / made if made > 0 else 0.0


def count(workers: int) -> str:
    if workers == 0:
        return "the loop's own process"
    return "1 worker" if workers == 1 else f"{workers} workers"


def upper(text: str) -> str:
    """As a sentence begins."""
    return text[0].upper() + text[1:]
