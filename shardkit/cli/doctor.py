"""``shardkit doctor``."""

from __future__ import annotations

import dataclasses
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from shardkit.arguments import integer, positive
from shardkit.cli.output import refuse_no_file
from shardkit.commit.durable_files import write_output
from shardkit.errors import DataError, UsageError

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


@click.command(cls=DoctorCommand)
@click.argument("dataset", required=False, type=click.Path())
@click.option(
    "--apply",
    "applies",
    is_flag=True,
    help="Where the change needs no edit, run the script again with it: what did it bring?",
)
@click.option(
    "--quick",
    is_flag=True,
    help="Compare with free loading only: read no batch again.",
)
@click.option(
    "--watch-only",
    is_flag=True,
    help="Change nothing: no batch is replayed, none read again. Says less, predicts roughly.",
)
@click.option("--steps", type=int, default=60, show_default=True, help="To measure, of each kind.")
@click.option(
    "--seconds",
    type=float,
    default=300.0,
    show_default=True,
    help="At most, after the first steps; then the script is ended. A loop may begin 120 s late.",
)
@click.option("--to-end", is_flag=True, help="Let the script run to its own end.")
@click.option(
    "--trace",
    type=click.Path(),
    metavar="NAME.pt.trace.json.gz",
    help="Keep a trace of some steps of rank 0, for Perfetto or (by that name) TensorBoard.",
)
@click.option(
    "--profile", type=click.Path(), metavar="FILE", help="Keep the sampled profile, for speedscope."
)
@click.option(
    "--json", "json_file", type=click.Path(), metavar="FILE", help="Write all that was seen."
)
@click.option(
    "--html", "html_file", type=click.Path(), metavar="FILE", help="Write the report as a page."
)
@click.option("--peak-tflops", type=float, help="Of the device, where it is not in the table.")
@click.option("--ranks", type=int, help="With DATASET: processes that will train on this machine.")
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
    if command is None:
        _preflight(str(dataset), options["ranks"], options["json_file"])
        return
    sys.exit(_examine(command, options))


def _refuse_what_is_not_for(is_script: bool) -> None:
    """Raise UsageError for options that a script, or a dataset, has no use for."""
    context = click.get_current_context()
    of_datasets = {"ranks", "json_file"}
    for option in context.command.params:
        name = str(option.name)
        is_given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        fits = name != "ranks" if is_script else name in of_datasets
        if isinstance(option, click.Option) and is_given and not fits:
            other = "a dataset" if is_script else "a script, after --"
            raise UsageError(f"{option.opts[0]} is for {other}")


def _preflight(dataset: str, ranks: int | None, json_file: str | None) -> None:
    from shardkit.measure.doctor.preflight import preflight, preflight_lines

    if json_file is not None:
        refuse_no_file(json_file)
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

    if options["quick"] and options["watch_only"]:
        raise UsageError("--quick replays batches, which --watch-only forbids: give one of the two")
    trace = options["trace"]
    if trace is not None and not trace.endswith(".json.gz"):
        raise UsageError(
            f"--trace {trace}: a trace is compressed; give a name that ends in .json.gz, for"
            " TensorBoard in .pt.trace.json.gz"
        )
    steps = integer("steps", options["steps"], least=12)
    positive("seconds", options["seconds"])
    if options["peak_tflops"] is not None:
        positive("peak_tflops", options["peak_tflops"])
    files = {name: options[name] for name in ("trace", "profile", "json_file", "html_file")}
    for file in filter(None, files.values()):
        refuse_no_file(file)
    plan = Plan(
        steps=steps,
        replays=not options["watch_only"],
        rereads=not (options["quick"] or options["watch_only"]),
        counts=not options["watch_only"],
        traces="yes" if options["trace"] else "no" if options["watch_only"] else "gpu",
        profiles=True,
    )
    every_s = REWRITTEN_S if sys.stderr.isatty() else SAME_S
    run = RunOptions(
        options["to_end"],
        options["seconds"],
        _tell,
        every_s,
        trace=files["trace"] and Path(files["trace"]),
        profiles=True,
        profile=files["profile"] and Path(files["profile"]),
        peak_tflops=options["peak_tflops"],
    )
    found = examine(command, plan, run)
    diagnosis = diagnose(found.evidence)
    applied = None
    if options["applies"] and (found.evidence.failed or found.exit_code > SIGNALLED):
        click.echo("\nnothing was applied: the script failed or was interrupted", err=True)
    elif options["applies"]:
        try:
            applied = apply(found.evidence, diagnosis, plan, run)
            why = "the change needs an edit, or there is none"
        except DataError as error:  # what the first run said is still true
            why = str(error)
        if applied is None:
            click.echo(f"\nnothing was applied: {why}", err=True)
    if files["json_file"]:
        said = to_json(found.evidence, diagnosis, applied)
        write_output(files["json_file"], json.dumps(said, indent=1).encode())
    if files["html_file"]:
        profile = files["profile"] if found.is_profiled else None
        text = as_page(found.evidence, diagnosis, applied, profile)
        write_output(files["html_file"], text.encode())
    with suppress(BrokenPipeError):  # as of `2>&1 | head`
        click.echo(err=True)  # a progress bar may have left its line open
        for line in lines(found.evidence, diagnosis, applied):
            click.echo(line, err=True)
    return found.exit_code
