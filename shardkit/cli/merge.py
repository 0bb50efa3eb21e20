"""``shardkit merge``."""

from __future__ import annotations

import shlex
from typing import Any

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import echo_json, echo_pack, interrupted
from shardkit.cli.pictures import destination_options
from shardkit.system.paths import show_path


@click.command()
@click.argument("parts", nargs=-1, required=True, type=click.Path(), metavar="PARTS...")
@click.argument("dest", type=click.Path())
@destination_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
@cloud_options
def merge(parts: tuple[str, ...], dest: str, as_json: bool, **options: Any) -> None:
    """Make DEST of all PARTS of one pack: what shardkit pack makes of the whole, to the byte.

    Or make one dataset of several, which are PARTS then. They must be of one format. Their samples
    follow one another as they are given; classes go by name, those of the first keep their numbers,
    and keys must differ.

    PARTS are the folders that shardkit pack --part made, 1/N to N/N, in any order, on any machines,
    of one source with the same options. The source is not needed. Shards are hard links where the
    file system allows, else copies; PARTS stay, and may be removed. DEST is a folder or the URL of
    one (s3://, gs://, az://).

    Interrupted, even by kill -9, the same command goes on where it was.
    """
    from shardkit.versions.merge import merge as run

    with interrupted("what is done is kept, run the same command again to go on"):
        result = run(parts, dest, progress=False if as_json else None, **options)
    if as_json:
        echo_json(result)
    else:
        echo_pack(result, "merged")
        click.echo(f"  next: shardkit info {shlex.quote(show_path(result.dest))}")
