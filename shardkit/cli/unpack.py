"""``shardkit unpack``."""

from __future__ import annotations

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json, interrupted
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path


@click.command()
@click.argument("dataset", type=click.Path())
@click.argument("dest", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
@cloud_options
def unpack(dataset: str, dest: str, as_json: bool) -> None:
    """Write the files DATASET was packed from, under their original names, into DEST.

    Interrupted, even by kill -9, the same command goes on: it compares the files that are there,
    and writes the others. No file has its name before it is complete.
    """
    from shardkit.operations.unpack import unpack as run

    with interrupted("what is done is kept, run the same command again to go on"):
        result = run(dataset, dest, progress=False if as_json else None)
    if as_json:
        echo_json(result)
    else:
        size = format_bytes(result.num_bytes)
        click.echo(f"unpacked {count(result.num_files, 'file')} ({size}) into {show_path(dest)}")
