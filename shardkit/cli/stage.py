"""``shardkit stage``."""

from __future__ import annotations

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json, interrupted
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path


@click.command()
@click.argument("dataset", type=click.Path())
@click.argument("dest", type=click.Path())
@click.option(
    "--overwrite",
    is_flag=True,
    help="Start afresh; a dataset at DEST goes when the copy is whole.",
)
@click.option(
    "--staging",
    metavar="DIR",
    help="Where to note what was sent to a URL, and where files lie that go from one to another."
    "  [default: in the user's cache folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bar.")
@cloud_options
def stage(dataset: str, dest: str, overwrite: bool, staging: str | None, as_json: bool) -> None:
    """Copy DATASET to DEST, a folder to be made on a faster medium or behind a URL (s3://, gs://,
    az://), and check the copy.

    Until it is whole, nothing that opens as a dataset is there.
    """
    from shardkit.operations.stage import stage as run

    with interrupted("what is done is kept, run the same command again to go on"):
        progress = False if as_json else None
        result = run(dataset, dest, overwrite=overwrite, progress=progress, staging=staging)
    if as_json:
        echo_json(result)
        return
    before = result.num_bytes - result.copied_bytes
    found = f", {format_bytes(before)} of it by an earlier run" if before else ""
    size = format_bytes(result.num_bytes)
    click.echo(
        f"copied and checked {count(result.num_files, 'file')}, {size}{found},"
        f" in {result.seconds:.2f} s: {show_path(result.dest)}"
    )
