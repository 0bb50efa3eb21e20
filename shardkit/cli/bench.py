"""``shardkit bench``."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from shardkit.cli.bench_table import echo_report
from shardkit.cli.output import interrupted, refuse_no_file
from shardkit.errors import UsageError
from shardkit.system.durable_files import atomic_write
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors


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
    type=click.Choice(["raw", "decode", "train", "tokens"]),
    default="raw",
    show_default=True,
    help="Samples as they are; pictures whole; crops of 224 for training; windows of 2,048 tokens.",
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
@click.option("--raw", type=click.Path(), help="A plain folder, measured before the targets.")
@click.option(
    "--formats",
    metavar="all|NAMES",
    help="Pack a sample of the one TARGET, a folder, into each of these, and measure them, too.",
)
@click.option("--also", type=click.Path(), metavar="FOLDER", help="Measure a copy there, too.")
@click.option(
    "--limit",
    type=int,
    metavar="N",
    help="Measure N samples, drawn by --seed.  [default: all; warm, what is read in a second]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order.")
@click.option("--json", "json_file", metavar="FILE", help="Write the report; - is stdout.")
@click.option("--html", "html_file", metavar="FILE", help="Write it as a page with charts.")
@click.option(
    "--with", "earlier", metavar="FILE", help="On that page, an earlier --json: warm beside --cold."
)
def bench(
    targets: tuple[str, ...],
    json_file: str | None,
    html_file: str | None,
    earlier: str | None,
    **options: Any,
) -> None:
    """Measure how fast the same samples come out of TARGETS, side by side.

    A TARGET is a dataset in any format, WebDataset tars, or a plain folder. The others are compared
    with the first. All run in turn, round after round, so that a noisy machine is noisy for all.
    """
    from shardkit.measure.bench.benchmark import bench as measure
    from shardkit.measure.report.data import load
    from shardkit.measure.report.page import page

    for path in (json_file, html_file):
        if path and path != "-":
            refuse_no_file(path)
    if earlier and not html_file:
        raise UsageError("--with puts an earlier report on a page: name that with --html FILE")
    # What is wrong with it is said before minutes of measuring.
    others = [load(earlier)] if earlier else []
    with interrupted("temporary files are removed"):
        found = measure(*targets, say=lambda line: click.echo(line, err=True), **options)
    report = replace(found, command=shlex.join(["shardkit", *sys.argv[1:]]))
    text = json.dumps(report.to_json(), indent=1)
    if json_file == "-":
        click.echo(text)
    else:
        echo_report(report)
        _write(json_file, text + "\n")
    if html_file:
        _write(html_file, page([report, *others]))


def _write(path: str | None, text: str) -> None:
    if path:
        with os_errors(f"writing {show_path(path)}"):
            atomic_write(Path(path), [text.encode()])
