"""``shardkit cache``."""

from __future__ import annotations

import click

from shardkit.cli.output import count, echo_json
from shardkit.errors import UsageError
from shardkit.measure.figures import table
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--clear", is_flag=True, help="Remove what is kept: of these URLs, or of all.")
@click.option(
    "--cache-dir",
    metavar="DIR",
    help="The cache.  [default: $SHARDKIT_CACHE_DIR, or in the user's cache folder]",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def cache(urls: tuple[str, ...], clear: bool, cache_dir: str | None, as_json: bool) -> None:
    """Say what was fetched from behind URLs and is kept on this machine; or remove it.

    Whoever reads a dataset meanwhile goes on: it is fetched again.
    """
    from shardkit.operations import cache as run

    if urls and not clear:
        raise UsageError("URLs are for --clear; without it, all that is kept is shown")
    found = run.clear_cache(urls or None, cache_dir) if clear else run.cache(cache_dir)
    if as_json:
        echo_json(found)
        return
    rows = [
        (
            show_path(one.url or one.name),
            one.container,
            format_bytes(one.kept_bytes),
            f"of {format_bytes(one.shard_bytes)}",
            f"+ {format_bytes(one.index_bytes)} index",
        )
        for one in found.datasets
    ]
    kept = sum(one.kept_bytes + one.index_bytes for one in found.datasets)
    what = "removed" if clear else "kept"
    datasets = count(len(rows), "dataset")
    click.echo(f"{show_path(found.folder)}: {datasets}, {format_bytes(kept)} {what}")
    for line in table(rows, left=(0, 1)) if rows else ():
        click.echo(f"  {line}")
