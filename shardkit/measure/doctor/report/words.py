"""What the doctor says in a terminal: the verdict, the change to make, and the evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap

from shardkit.measure.doctor.diagnosis import Applied, Diagnosis, Gain
from shardkit.measure.doctor.evidence import Evidence, RankEvidence
from shardkit.measure.doctor.report import facts, hardware
from shardkit.measure.doctor.report.data import printable, without_timelines
from shardkit.measure.report.words import amount, milliseconds, percent, times
from shardkit.measure.table import table

WIDTH = 100

INDENT = "  "

BLOCK = 30
"""Characters of a bar that stands for all of a step."""

MOST_RANKS = 8
"""Ranks that have a line each; all are in the JSON."""


def lines(
    evidence: Evidence, diagnosis: Diagnosis, applied: Applied | None = None, width: int = WIDTH
) -> list[str]:
    """The report, a line each, none with more than ``width`` characters."""
    seen, said = printable(without_timelines(evidence)), printable(diagnosis)
    done = printable(applied)
    rank = facts.chosen_rank(seen, said)
    sections = [
        _verdict(said, done, width),
        [] if rank is None else _step(rank, seen),
        [] if rank is None else _making(rank, width),
        [] if rank is None else _rates(rank),
        _ranks(seen, said),
        _machine(seen, rank, width),
        _code(seen),
        _notes(seen, said, width),
    ]
    made = [line for section in sections if section for line in ["", *section]][1:]
    return [line[:width].rstrip() for line in made]


def _verdict(said: Diagnosis, done: Applied | None, width: int) -> list[str]:
    head = "failed" if said.cause == "script failed" else "verdict"
    found = [(head, said.sentence), ("change", said.change)]
    if said.gain is not None:
        found.append(("gain", gain_in_words(said.gain)))
    if done is not None:
        found.append(("applied", applied_in_words(done)))
    found.extend(("because" if not number else "", one) for number, one in enumerate(said.because))
    return _named(found, width, "")


def gain_in_words(gain: Gain) -> str:
    """The prediction."""
    low, high = times(gain.low), times(gain.high)
    most = "up to " if gain.is_limit else ""
    return f"{most}{times(gain.factor)} times the rate is predicted ({low} to {high}): {gain.how}"


def applied_in_words(done: Applied) -> str:
    """What was measured, beside what was predicted."""
    predicted = "no prediction" if done.predicted is None else f"predicted {times(done.predicted)}"
    change = f"from {amount(done.before)} to {amount(done.after)} {done.what}"
    factor = "" if done.before == 0 else f"{times(done.factor)} times the rate was measured: "
    tried = [f"{amount(rate)} with {settings}" for settings, rate in done.tried]
    best = f"; tried: {'; '.join(tried)}" if tried else ""
    warning = " Do not make this change: it is slower." if done.after < done.before else ""
    return f"{factor}{change} ({predicted}){best}{'.' * bool(warning)}{warning}"


def _step(rank: RankEvidence, seen: Evidence) -> list[str]:
    total = rank.step.total
    if total <= 0:
        return []
    where = f" on rank {rank.rank}" if len(seen.ranks) > 1 else ""
    head = f"a step{where}: {milliseconds(total)}, {facts.rate_in_words(rank)}"
    shares = _shares(facts.STEP, facts.parts(rank.step), total)
    if rank.step.blocked >= facts.LEAST_SHARE * total:
        blocked = ("of the rest, not running", milliseconds(rank.step.blocked))
        shares.append((*blocked, percent(rank.step.blocked / total), ""))
    return [head, *_columns(shares, (0, 3))]


def _making(rank: RankEvidence, width: int) -> list[str]:
    total = rank.worker.total
    if total <= 0:
        return []
    head = f"making a batch: {milliseconds(total)}; {facts.loader_in_words(rank.loader)}"
    shares = _shares(facts.MAKING, facts.parts(rank.worker), total)
    if rank.worker.cpu:
        on_core = milliseconds(rank.worker.cpu)
        shares.append(("of all that, on a core", on_core, percent(rank.worker.cpu / total), ""))
    made = [*wrap(head, width, subsequent_indent=INDENT), *_columns(shares, (0, 3))]
    files = facts.files_in_words(rank)
    return made if files is None else [*made, *_named([("files", files)], width, INDENT)]


def _shares(
    names: dict[str, str], seconds: dict[str, float], total: float
) -> list[tuple[str, ...]]:
    """Name, milliseconds, share and a bar of each part."""
    return [
        (
            names[part],
            milliseconds(one),
            percent(one / total),
            "#" * round(BLOCK * one / total),
        )
        for part, one in seconds.items()
    ]


def _rates(rank: RankEvidence) -> list[str]:
    found = facts.rate_cells(rank.rates)
    made = _columns([facts.RATE_HEADS, *found]) if len(found) > 1 else []
    epochs = facts.epochs_in_words(rank)
    return made if epochs is None else [*made, f"{INDENT}epochs: {epochs}"]


def _ranks(seen: Evidence, said: Diagnosis) -> list[str]:
    if len(seen.ranks) < 2:
        return []
    shown = shown_ranks(seen, said, MOST_RANKS)
    found = [(*rank_cells(one), "<- slow" if one.rank == said.rank else "") for one in shown]
    left = len(seen.ranks) - len(shown)
    more = [f"{INDENT}and {left} more, which --json has"] if left else []
    return [*_columns([(*RANK_HEADS, ""), *found], (0, len(RANK_HEADS))), *more]


RANK_HEADS = ("rank", "step", "wait", "own time", "all-reduces", "cores")


def rank_cells(rank: RankEvidence) -> tuple[str, ...]:
    """A rank's line. Its own time is what neither waits for a batch nor for other ranks."""
    step = rank.step
    own = step.total - step.wait - step.collective
    spent = (step.total, step.wait, own, step.collective)
    host = f" on {facts.name(rank.host)}" if rank.host else ""
    return (f"{rank.rank}{host}", *map(milliseconds, spent), amount(rank.cpu_share))


def shown_ranks(seen: Evidence, said: Diagnosis, most: int) -> list[RankEvidence]:
    """So many of the ranks at most; the slow one is among them."""
    chosen = [one for one in seen.ranks if one.rank == said.rank][:1]
    others = [one for one in seen.ranks if one.rank != said.rank][: most - len(chosen)]
    return sorted([*chosen, *others], key=lambda one: one.rank)


def _machine(seen: Evidence, rank: RankEvidence | None, width: int) -> list[str]:
    found = [*hardware.machine(seen.system).items()]
    found += [(f"GPU {gpu.name}", hardware.gpu_in_words(gpu)) for gpu in seen.system.gpus]
    found += hardware.utilisation(seen.utilisation).items()
    if seen.trace is not None:
        found.append(("trace", hardware.trace_in_words(seen.trace)))
    if rank is not None and rank.flags:
        found.append(("in use", ", ".join(sorted(rank.flags))))
    return _named(found, width, INDENT, f"machine, in {amount(seen.system.seconds)} s")


def _code(seen: Evidence) -> list[str]:
    found = [
        (facts.place(one, seen.folder), facts.name(one.what), facts.cost(one))
        for one in facts.costly_lines(seen)
    ]
    return ["costly lines of code", *_columns(found, (0, 1, 2))] if found else []


def _notes(seen: Evidence, said: Diagnosis, width: int) -> list[str]:
    found = [("then" if not number else "", one) for number, one in enumerate(said.then)]
    found += [("note" if not number else "", one) for number, one in enumerate(seen.notes)]
    ended = "" if seen.ended == "exit code 0" else f"; {seen.ended}"
    watched = f"watched for {amount(seen.seconds)} s{ended}"
    versions = f"Python {facts.name(seen.python)}, torch {facts.name(seen.torch)}"
    return _named([*found, ("run", f"{watched}; {versions}")], width, "")


def _columns(cells: Sequence[Sequence[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    return [f"{INDENT}{line}" for line in table(cells, left)] if cells else []


def _named(found: Iterable[tuple[str, str]], width: int, indent: str, head: str = "") -> list[str]:
    """Texts in lines of the width, each with its name on the left."""
    pairs = [(f"{facts.name(name)}:" if name else "", text) for name, text in found]
    if not pairs:
        return []
    column = min(max(len(name) for name, _ in pairs) + 1, 22)
    made = [head] if head else []
    for name, text in pairs:
        start = f"{indent}{name}".ljust(len(indent) + column)
        if len(name) >= column:
            start += " "
        after = " " * (len(indent) + column)
        # A path or a command is not to be cut at its hyphens: it is copied.
        made += wrap(
            text, width, initial_indent=start, subsequent_indent=after, break_on_hyphens=False
        ) or [start.rstrip()]
    return made
