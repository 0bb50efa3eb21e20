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
from shardkit.measure.figures import milliseconds, table, times
from shardkit.system.paths import show_path

if TYPE_CHECKING:
    from shardkit.measure.tuning import Reading, Trial, Tuning


@click.command()
@click.argument("dataset", type=click.Path())
@click.option(
    "--read",
    type=click.Choice(["raw", "train", "tokens"]),
    help="What the loader does: hand over what is stored, make crops of pictures for training, or"
    " sequences of tokens.  [default: what the dataset is for]",
)
@click.option("--split", help="Which, if there are several.  [default: train]")
@click.option("--batch-size", type=int, default=64, show_default=True, help="Samples a batch.")
@click.option("--size", type=int, default=224, show_default=True, help="Of a crop, in pixels.")
@click.option("--seq-len", type=int, default=2048, show_default=True, help="Tokens of a sequence.")
@click.option(
    "--shuffle",
    type=click.Choice(["full", "block", "none"]),
    default="full",
    show_default=True,
    help="Order of the samples.",
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
    help="Approximate time budget; more where a batch takes long.",
)
@click.option("--no-save", is_flag=True, help='Do not keep the result for workers="auto".')
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@cloud_options
def tune(dataset: str, as_json: bool, no_save: bool, **options: Any) -> None:
    """Find the fastest loader settings for DATASET on this machine.

    It tries numbers of workers, threads and processes, and how far ahead they work. Settings are
    timed in turn, in rounds; the slower half is left out, and so on. Of those that are as fast
    within 3 % it takes the one with fewer workers, threads before processes, less made ahead, and
    measures it next to what shardkit.Loader(..., workers="auto") took before. From then on that
    uses the result. Where torchrun starts several processes on this machine, set LOCAL_WORLD_SIZE
    to their number: each has its share of the cores.
    """
    from shardkit.measure.tuning import reading
    from shardkit.measure.tuning import tune as run

    positive("seconds", options["seconds"])
    what = reading(dataset, options["read"], options["split"], options["size"], options["seq_len"])
    shuffle = None if options["shuffle"] == "none" else options["shuffle"]
    with interrupted("nothing was kept"), _cleared():
        found = run(
            what.source,
            options["batch_size"],
            seconds=options["seconds"],
            cold=options["cold"] or None,
            save=not no_save,
            tell=_tell,
            shuffle=shuffle,
            **what.options,
        )
    if as_json:
        echo_json(found)
        return
    _echo_choice(dataset, found, what, shuffle)
    for note in found.notes:
        click.echo(f"  {note}")
    _echo_trials(found)


def _tell(words: str) -> None:
    """Show what is being tried, on one line of a terminal."""
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


def _echo_choice(dataset: str, found: Tuning, what: Reading, shuffle: str | None) -> None:
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
    if found.gain is not None:
        gain = found.gain
        median, low, high = map(times, (gain.median, gain.low, gain.high))
        click.echo(f"  {median} times as fast ({low}-{high}) as before, with {found.current}")
    order = "" if shuffle is None else f'shuffle="{shuffle}", '
    click.echo(
        f"  {what.line}\n"
        f"  loader = shardkit.Loader(ds, {found.batch_size}, {order}{what.given}{found.line})"
    )
    if found.saved is not None:
        click.echo(f'  kept for workers="auto", in {found.saved}')
