"""``shardkit prune``."""

from __future__ import annotations

import click

from shardkit.cli.output import echo_json, echo_version, interrupted


@click.command()
@click.argument("dataset", type=click.Path())
@click.option(
    "--keep", type=int, default=1, show_default=True, help="How many of the last versions stay."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prune(dataset: str, keep: int, as_json: bool) -> None:
    """Forget old versions of DATASET, and remove from the disk what only they need.

    Nothing else ever removes a file of a dataset that was changed.
    """
    from shardkit.versions.prune import prune as run

    with interrupted("run the same command again to end it"):
        result = run(dataset, keep=keep)
    echo_json(result) if as_json else echo_version(result)
