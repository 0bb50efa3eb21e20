"""``shardkit verify``."""

from __future__ import annotations

from typing import Any

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json, interrupted, quiet
from shardkit.cli.pictures import engine_options
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path

SHOWN_PROBLEMS = 20


@click.command()
@click.argument("dataset", type=click.Path())
@click.option("--against", type=click.Path(), help="Also compare with the original input.")
@click.option("--version", type=int, help="Check this version.  [default: the last]")
@engine_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
@cloud_options
def verify(dataset: str, against: str | None, as_json: bool, **options: Any) -> None:
    """Check every checksum of DATASET; name each broken shard and sample.

    Exit code 1 if anything is wrong.
    """
    from shardkit.operations.verify import verify as run

    with interrupted("nothing was changed"), quiet(options["engine"]):
        result = run(dataset, against, progress=False if as_json else None, **options)
    if as_json:
        echo_json({"ok": result.ok, **vars(result)})
    else:
        for problem in result.problems[:SHOWN_PROBLEMS]:
            click.echo(f"BROKEN {problem}")
        if (more := len(result.problems) - SHOWN_PROBLEMS) > 0:
            click.echo(f"and {more:,} more; --json lists all")
        checked = f"{count(result.num_samples, 'sample')}, {format_bytes(result.num_bytes)}"
        if not result.has_checksums:
            checked += "; these tars carry no checksums, only sizes were checked"
        if result.is_compared:
            checked += f"; {result.num_compared:,} compared with {show_path(str(against))}"
        elif against is not None:
            checked += f"; not compared with {show_path(against)} while it is broken"
        verdict = "whole" if result.ok else count(len(result.problems), "problem")
        click.echo(f"{show_path(dataset)}: {verdict} ({checked})")
        for note in result.notes:
            click.echo(f"  {show_path(note)}")
    if not result.ok:
        raise SystemExit(1)
