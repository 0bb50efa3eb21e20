"""Commands that measure: bench, tune, doctor."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import argument, option

from shardkit.arguments import integer, positive
from shardkit.cli import option_sets
from shardkit.cli.command_group import group
from shardkit.cli.output import count, echo_json, echo_table, interrupted, refuse_no_file
from shardkit.commit.durable_files import write_output
from shardkit.errors import DataError, UsageError
from shardkit.measure.figures import milliseconds, times
from shardkit.system.paths import show_path

if TYPE_CHECKING:
    from shardkit.measure.bench.bench_report import Report
    from shardkit.measure.tuning import Reading, Tuning


@group.command()
@argument("targets", nargs=-1, type=click.Path())
@option(
    "--read",
    type=click.Choice(["raw", "train", "tokens"]),
    default="raw",
    help="Samples as they are; crops of 224 for training; windows of 2,048 tokens.",
)
@option(
    "--workers",
    type=option_sets.NumberList("counts", "0,1,2"),
    metavar="N,N",
    help="Counts, each measured with every target.  [default: 0 and one a core]",
)
@option("--worker-type", type=click.Choice(["thread", "process"]), default="thread")
@option("--batch-size", type=int, default=64)
@option("--cold", is_flag=True, help="Drop files from the page cache before each case.")
@option("--rounds", type=int, help="In each, all in turn.  [default: 20, or 12 cold]")
@option(
    "--formats",
    metavar="all|NAMES",
    help="Pack a sample of the one TARGET, a folder, into each of these, and measure them, too.",
)
@option(
    "--limit",
    type=int,
    metavar="N",
    help="Measure N samples, drawn by --seed.  [default: all; warm, at most 20,000]",
)
@option("--seed", type=int, default=0, help="Of the order.")
@option("--json", "json_file", metavar="FILE", help="Write the report; - is stdout.")
@option("--html", "html_file", metavar="FILE", help="Write it as a page.")
@option_sets.cloud_options
def bench(
    targets: tuple[str, ...], json_file: str | None, html_file: str | None, **options: Any
) -> None:
    """Measure how fast the same samples come out of TARGETS, side by side.

    A TARGET is a dataset in any format, also behind a URL, WebDataset tars, or a plain folder. The
    others are compared with the first. The samples are those of the smallest. What lies behind a
    URL comes from the cache, or with --cold from where it lies: the cache forgets it. All run in
    turn, round after round, so that a noisy machine is noisy for all.
    """
    from shardkit.measure.bench.bench_report import write_page
    from shardkit.measure.bench.benchmark import bench as measure

    for path in (json_file, html_file):
        if path and path != "-":
            refuse_no_file(path)
    with interrupted("temporary files are removed"):
        found = measure(*targets, say=lambda line: click.echo(line, err=True), **options)
    report = dataclasses.replace(found, command=shlex.join(["shardkit", *sys.argv[1:]]))
    text = json.dumps(report.to_json(), indent=1)
    if json_file == "-":
        click.echo(text)
    else:
        echo_report(report)
    if json_file and json_file != "-":
        write_output(json_file, f"{text}\n".encode())
    if html_file:
        write_page(html_file, report)


def echo_report(report: Report) -> None:
    """Print a table with one line a target and number of workers, and what it says."""
    from shardkit.measure.bench.bench_report import cache_states, in_words, rates

    options = report.options
    click.echo(
        f"{report.checked}: {options.read}, cache {cache_states(report.rows)}, batches of"
        f" {options.batch_size}, {options.rounds} rounds"
    )
    heads, lines = rates(report)
    echo_table([heads, *lines], left=(0, len(heads) - 1))
    for text in in_words(report.rows, report.notes):
        click.echo(text)


# --- tune ---------------------------------------------------------------------------------


@group.command()
@argument("dataset", type=click.Path())
@option(
    "--read",
    type=click.Choice(["raw", "train", "tokens"]),
    help="What the loader does: hand over what is stored, make crops of pictures for training, or"
    " sequences of tokens.  [default: what the dataset is for]",
)
@option("--split", help="Which, if there are several.  [default: train]")
@option("--batch-size", type=int, default=64, help="Samples a batch.")
@option("--size", type=int, default=224, help="Of a crop, in pixels.")
@option("--seq-len", type=int, default=2048, help="Tokens of a sequence.")
@option(
    "--shuffle",
    type=click.Choice(["full", "block", "none"]),
    default="full",
    help="Order of the samples.",
)
@option(
    "--cold",
    is_flag=True,
    help="Drop the files from memory before each trial: an epoch that does not fit there. Always"
    " so where they do not.",
)
@option(
    "--seconds",
    type=float,
    default=60.0,
    help="Approximate time budget; more where a batch takes long.",
)
@option("--no-save", is_flag=True, help='Do not keep the result for workers="auto".')
@option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@option_sets.cloud_options
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
    with interrupted("nothing was kept"), _trying() as tell:
        found = run(
            what.source,
            options["batch_size"],
            seconds=options["seconds"],
            cold=options["cold"] or None,
            save=not no_save,
            tell=tell,
            shuffle=shuffle,
            **what.options,
        )
    echo_json(found) if as_json else _echo_tuning(dataset, found, what, shuffle)


@contextmanager
def _trying() -> Iterator[Any]:
    """Yield a function that shows what is being tried, on one line of a terminal."""

    def tell(words: str) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{words and f'trying {words}'}", nl=False, err=True)

    try:
        yield tell
    finally:
        tell("")


def _echo_tuning(dataset: str, found: Tuning, what: Reading, shuffle: str | None) -> None:
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
    for note in found.notes:
        click.echo(f"  {note}")
    click.echo("tried, each in rounds of its own, so that rates of few rounds compare badly:")
    rows = [["", "samples/s", "low", "high", "rounds"]]
    for one in found.trials:
        rates = [f"{rate:,.0f}" for rate in (one.samples_per_s, one.low, one.high)]
        rows.append([one.settings, *rates, str(one.rounds)])
    echo_table(rows)
    for line in found.left_out:
        click.echo(f"  not tried: {line}")


# --- doctor -------------------------------------------------------------------------------

SCRIPT = "shardkit.script"


class DoctorCommand(click.Command):
    """All that follows ``--`` is a command line of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the script's words off, and parse what comes before."""
        if "--" in args:
            place = args.index("--")
            args, ctx.meta[SCRIPT] = args[:place], args[place + 1 :]
            return super().parse_args(ctx, args)
        try:
            return super().parse_args(ctx, list(args))
        except click.UsageError as error:
            if isinstance(error, click.BadParameter) or all(arg.startswith("-") for arg in args):
                raise
            hint = "before a command belongs --, as in `shardkit doctor -- python train.py`"
            raise click.UsageError(f"{error.format_message()} ({hint})", ctx) from error

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line of the help."""
        return ["[OPTIONS] -- COMMAND...  or  doctor DATASET"]


@group.command(cls=DoctorCommand)
@argument("dataset", required=False, type=click.Path())
@option(
    "--apply",
    "applies",
    is_flag=True,
    help="Where the change needs no edit, run the script again with it: what did it bring?",
)
@option("--quick", is_flag=True, help="Compare with free loading only: read no batch again.")
@option(
    "--watch-only",
    is_flag=True,
    help="Change nothing: no batch is replayed, none read again. Says less, predicts roughly.",
)
@option("--steps", type=int, default=60, help="To measure, of each kind.")
@option(
    "--seconds",
    type=float,
    default=300.0,
    help="At most, after the first steps; then the script is ended. A loop may begin 120 s late.",
)
@option("--to-end", is_flag=True, help="Let the script run to its own end.")
@option(
    "--trace",
    type=click.Path(),
    metavar="NAME.pt.trace.json.gz",
    help="Keep a trace of some steps of rank 0, for Perfetto or (by that name) TensorBoard.",
)
@option(
    "--profile", type=click.Path(), metavar="FILE", help="Keep the sampled profile, for speedscope."
)
@option("--json", "json_file", type=click.Path(), metavar="FILE", help="Write all that was seen.")
@option(
    "--html", "html_file", type=click.Path(), metavar="FILE", help="Write the report as a page."
)
@option("--peak-tflops", type=float, help="Of the device, where it is not in the table.")
@option("--ranks", type=int, help="With DATASET: processes that will train on this machine.")
def doctor(dataset: str | None, **options: Any) -> None:
    """Say why a training script waits, and what to change first.

    Runs the script as it is, with no edit, and watches it: every loop over torch's DataLoader or a
    shardkit.Loader in every process that it starts, torchrun's too. For some of the steps it hands
    batches over again, or reads them again, to see how fast the loop would be without waiting: do
    not keep what such a run trained. Once enough was seen the script is ended, and the report goes
    to stderr; the exit code is the script's own, or 0.

    With DATASET instead of a command it looks at the machine and the dataset before a training:
    shared memory, open files, CPU quota, shards, file system, free space.
    """
    command = click.get_current_context().meta.get(SCRIPT)
    if (dataset is None) == (command is None):
        raise UsageError(
            "give either a script to run, as in `shardkit doctor -- python train.py`, or a dataset"
        )
    _refuse_what_is_not_for(command is not None)
    if dataset is not None and dataset.endswith(".py"):
        raise UsageError(
            f"{dataset} is a script, not a dataset: `shardkit doctor -- python {dataset}` runs it"
        )
    for file in (options[name] for name in ("json_file", "html_file", "trace", "profile")):
        if file is not None:
            refuse_no_file(file)
    if command is None:
        _preflight(str(dataset), options["ranks"], options["json_file"])
        return
    sys.exit(_examine(command, options))


def _refuse_what_is_not_for(is_script: bool) -> None:
    """Raise UsageError for options that a script, or a dataset, has no use for."""
    context = click.get_current_context()
    for each in context.command.params:
        name = str(each.name)
        is_given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        fits = name != "ranks" if is_script else name in ("ranks", "json_file")
        if isinstance(each, click.Option) and is_given and not fits:
            other = "a dataset" if is_script else "a script, after --"
            raise UsageError(f"{each.opts[0]} is for {other}")


def _preflight(dataset: str, ranks: int | None, json_file: str | None) -> None:
    from shardkit.measure.doctor.preflight import preflight, preflight_lines

    checks = preflight(dataset, ranks)
    if json_file is not None:
        text = json.dumps([dataclasses.asdict(one) for one in checks])
        write_output(json_file, text.encode())
    for line in preflight_lines(checks):
        click.echo(line)


def _tell(line: str) -> None:
    """Show how far a run is; on a terminal in place of the line before."""
    with suppress(BrokenPipeError):
        if sys.stderr.isatty():
            click.echo(f"\r\033[K{line}  ", nl=False, err=True)
        else:
            click.echo(line, err=True)


def _examine(command: list[str], options: dict[str, Any]) -> int:
    from shardkit.measure.doctor.diagnose import diagnose
    from shardkit.measure.doctor.doctor_report import as_page, lines, to_json
    from shardkit.measure.doctor.examine import SIGNALLED, RunOptions, apply, examine
    from shardkit.measure.doctor.script import REWRITTEN_S, SAME_S
    from shardkit.watching.session import Plan

    watches, trace, profile = options["watch_only"], options["trace"], options["profile"]
    if options["quick"] and watches:
        raise UsageError("--quick replays batches, which --watch-only forbids: give one of the two")
    if trace is not None and not trace.endswith(".json.gz"):
        raise UsageError(
            f"--trace {trace}: a trace is compressed; give a name that ends in .json.gz, for"
            " TensorBoard in .pt.trace.json.gz"
        )
    positive("seconds", options["seconds"])
    if options["peak_tflops"] is not None:
        positive("peak_tflops", options["peak_tflops"])
    plan = Plan(
        steps=integer("steps", options["steps"], least=12),
        replays=not watches,
        rereads=not (options["quick"] or watches),
        counts=not watches,
        traces="yes" if trace else "no" if watches else "gpu",
        profiles=True,
    )
    run = RunOptions(
        options["to_end"],
        options["seconds"],
        _tell,
        REWRITTEN_S if sys.stderr.isatty() else SAME_S,
        trace=trace and Path(trace),
        profiles=True,
        profile=profile and Path(profile),
        peak_tflops=options["peak_tflops"],
    )
    found = examine(command, plan, run)
    diagnosis = diagnose(found.evidence)
    applied = None
    if options["applies"]:
        why = "the change needs an edit, or there is none"
        try:
            if found.evidence.failed or found.exit_code > SIGNALLED:
                raise DataError("the script failed or was interrupted")
            applied = apply(found.evidence, diagnosis, plan, run)
        except DataError as error:  # what the first run said is still true
            why = str(error)
        if applied is None:
            click.echo(f"\nnothing was applied: {why}", err=True)
    if options["json_file"]:
        said = to_json(found.evidence, diagnosis, applied)
        write_output(options["json_file"], json.dumps(said, indent=1).encode())
    if options["html_file"]:
        kept = profile if found.is_profiled else None
        text = as_page(found.evidence, diagnosis, applied, kept)
        write_output(options["html_file"], text.encode())
    with suppress(BrokenPipeError):  # as of `2>&1 | head`
        click.echo(err=True)  # a progress bar may have left its line open
        for line in lines(found.evidence, diagnosis, applied):
            click.echo(line, err=True)
    return found.exit_code
