"""``shardkit tune``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from shardkit.arguments import positive
from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json, interrupted
from shardkit.measure.report.words import amount, milliseconds
from shardkit.measure.table import table
from shardkit.system.paths import show_path

if TYPE_CHECKING:
    from shardkit.measure.tune.headroom import Headroom
    from shardkit.measure.tune.step import Step
    from shardkit.measure.tune.tuning import Trial, Tuning


@click.command()
@click.argument("dataset", type=click.Path())
@click.option(
    "--read",
    type=click.Choice(["raw", "train", "tokens"]),
    help="What the loader does: hand over what is stored, make crops of pictures for training, or"
    " sequences of tokens.  [default: what the dataset is for]",
)
@click.option("--split", help="Which, if there are several.  [default: train]")
@click.option("--batch-size", type=int, help="Samples a batch.  [default: 64, or the script's]")
@click.option("--size", type=int, default=224, show_default=True, help="Of a crop, in pixels.")
@click.option("--seq-len", type=int, default=2048, show_default=True, help="Tokens of a sequence.")
@click.option(
    "--shuffle",
    type=click.Choice(["full", "block", "none"]),
    default="full",
    show_default=True,
    help="Order of the samples; of block order the windows are tuned, too.",
)
@click.option("--step-ms", type=float, help="Is it fast enough for a step of so many ms?")
@click.option(
    "--headroom",
    metavar="SCRIPT",
    help="Or for this training script, with a loop over a DataLoader or a shardkit.Loader? It is"
    " run for some steps, as it is and with its first batches replayed, by turns: the difference is"
    " what loading costs.",
)
@click.option(
    "--cold", is_flag=True, help="Drop the files from memory before each trial: an epoch that does"
    " not fit there. Always so where they do not."
)  # fmt: skip
@click.option(
    "--seconds",
    type=float,
    default=60.0,
    show_default=True,
    help="To take, about: it is more where a batch or a step takes long, and --headroom's run, as"
    " long at most, comes on top.",
)
@click.option("--no-save", is_flag=True, help='Do not keep the result for workers="auto".')
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@cloud_options
def tune(dataset: str, as_json: bool, no_save: bool, **options: Any) -> None:
    """Find the fastest loader settings for DATASET on this machine.

    Settings are timed in turn, in rounds; the slower half is left out, and so on. Of those that are
    as fast within 3 % it takes the one with fewer workers, threads before processes, less made
    ahead. shardkit.Loader(..., workers="auto") uses the result. Where torchrun starts several
    processes on this machine, set LOCAL_WORLD_SIZE to their number: each has its share of the
    cores.
    """
    from shardkit.errors import UsageError
    from shardkit.measure.tune.headroom import differences, headroom
    from shardkit.measure.tune.reading import reading
    from shardkit.measure.tune.tuning import tune as run

    positive("seconds", options["seconds"])
    if options["headroom"] is not None and options["step_ms"] is not None:
        raise UsageError("give either --step-ms or --headroom, which measures it")
    what = reading(dataset, options["read"], options["split"], options["size"], options["seq_len"])
    batch_size, step_ms, room = options["batch_size"], options["step_ms"], None
    with interrupted("nothing was kept"), _cleared():
        if options["headroom"] is not None:
            room = headroom(options["headroom"], options["seconds"], tell=_tell)
            step_ms = room.free_ms
            batch_size = room.batch_size if batch_size is None else batch_size
        found = run(
            what.source,
            64 if batch_size is None else batch_size,
            seconds=options["seconds"],
            step_ms=step_ms,
            cold=options["cold"] or None,
            save=not no_save,
            tell=_tell,
            shuffle=None if options["shuffle"] == "none" else options["shuffle"],
            **what.options,
        )
    if room is not None and (others := differences(room.work, found.work)):
        found.notes.append(f"the script's Loader does other work than was tuned: {others}")
    if as_json:
        echo_json({**vars(found), "headroom": room})
        return
    _echo_choice(dataset, found, what.line)
    if room is not None:
        _echo_headroom(room)
    if found.step is not None:
        _echo_step(found.step)
    for note in found.notes:
        click.echo(f"  {note}")
    _echo_trials(found)


def _tell(words: str) -> None:
    """What is going on, on one line of a terminal."""
    if sys.stderr.isatty():
        click.echo(f"\r\033[K{words and f'trying {words}'}", nl=False, err=True)


@contextmanager
def _cleared() -> Iterator[None]:
    try:
        yield
    finally:
        _tell("")


def _echo_trials(found: Tuning) -> None:
    click.echo("tried, each in rounds of its own, so that rates of few rounds compare badly:")
    heads = ("", "samples/s", "low", "high", "rounds")
    for line in table([heads, *map(_cells, found.trials)]):
        click.echo(f"  {line}")
    for line in found.left_out:
        click.echo(f"  not tried: {line}")


def _cells(one: Trial) -> tuple[str, ...]:
    rates = (f"{rate:,.0f}" for rate in (one.samples_per_s, one.low, one.high))
    return (one.settings, *rates, str(one.rounds))


def _echo_choice(dataset: str, found: Tuning, opening: str) -> None:
    places = {"warm": "memory", "cold": "the disk", "unknown": "memory and the disk"}
    cores = count(found.machine["cores"], "core")
    click.echo(
        f"{show_path(dataset)}: batches of {found.batch_size}, read from {places[found.cache]},"
        f" on {found.machine['cpus']} of {cores}, {found.machine['cpu']}"
    )
    click.echo(
        f"best: {found.settings}, {found.samples_per_s:,.0f} samples/s"
        f" ({milliseconds(found.batch_size / found.samples_per_s)} a batch)"
    )
    click.echo(f"  {opening}\n  {found.line}")
    if found.saved is not None:
        click.echo(f'  kept for workers="auto": {found.for_auto}, in {found.saved}')


def _echo_headroom(room: Headroom) -> None:
    costs = f"loading costs {room.share:.0%} of its time"
    click.echo(
        f"  the script's step takes {milliseconds(room.step_ms / 1e3)} ({room.settings}), and"
        f" {milliseconds(room.free_ms / 1e3)} when loading costs nothing:"
        f" {CONTRADICTION if room.is_contradictory else costs}"
    )


CONTRADICTION = "the two contradict each other: the machine was busy meanwhile; try again"


def _echo_step(step: Step) -> None:
    verdicts = {"fed": "is fed", "not fed": "is NOT fed", "unclear": "may be fed or not"}
    click.echo(
        f"  a step of {milliseconds(step.step_ms / 1e3)} {verdicts[step.verdict]}: batches come"
        f" {amount(step.margin)} times as fast as needed\n"
        f"  such a loop should wait {step.predicted_wait:.1%} of its time for batches;"
        f" it waited {step.wait:.1%}, and {step.starting:.1%} for the first of each epoch"
    )
    if step.verdict == "unclear":
        click.echo(f"  {CONTRADICTION}")
    if step.advice:
        click.echo(f"  {step.advice}")
