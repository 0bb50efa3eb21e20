"""``shardkit bench``."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import interrupted, refuse_no_file
from shardkit.commit.durable_files import write_output
from shardkit.measure.figures import table

if TYPE_CHECKING:
    from shardkit.measure.bench.bench_report import Report


class Counts(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """``0,1,2``."""

    name = "counts"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of counts, as in 0,1,2", param, ctx)


@click.command()
@click.argument("targets", nargs=-1, type=click.Path())
@click.option(
    "--read",
    type=click.Choice(["raw", "train", "tokens"]),
    default="raw",
    show_default=True,
    help="Samples as they are; crops of 224 for training; windows of 2,048 tokens.",
)
@click.option(
    "--workers",
    type=Counts(),
    metavar="N,N",
    help="Counts, each measured with every target.  [default: 0 and one a core]",
)
@click.option(
    "--worker-type", type=click.Choice(["thread", "process"]), default="thread", show_default=True
)
@click.option("--batch-size", type=int, default=64, show_default=True)
@click.option("--cold", is_flag=True, help="Drop files from the page cache before each case.")
@click.option("--rounds", type=int, help="In each, all in turn.  [default: 20, or 12 cold]")
@click.option(
    "--formats",
    metavar="all|NAMES",
    help="Pack a sample of the one TARGET, a folder, into each of these, and measure them, too.",
)
@click.option(
    "--limit",
    type=int,
    metavar="N",
    help="Measure N samples, drawn by --seed.  [default: all; warm, at most 20,000]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report; - is stdout.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as a page.")
@cloud_options
def bench(
    targets: tuple[str, ...],
    json_file: str | None,
    html_file: str | None,
    **options: Any,
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
    report = replace(found, command=shlex.join(["shardkit", *sys.argv[1:]]))
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
    for text in table([heads, *lines], left=(0, len(heads) - 1)):
        click.echo(f"  {text}")
    for text in in_words(report.rows, report.notes):
        click.echo(text)
