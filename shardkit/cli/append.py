"""``shardkit append``."""

from __future__ import annotations

from typing import Any

import click

from shardkit.cli.output import echo_json, echo_version, interrupted, quiet
from shardkit.cli.pack import corpus_option
from shardkit.cli.pictures import engine_options, reject_options, workers_option


@click.command()
@click.argument("dataset", type=click.Path())
@click.argument("source", type=click.Path())
@corpus_option
@click.option(
    "--labels", metavar="FILE[:COLUMN]", help="Table that names files and their labels, as of pack."
)
@click.option(
    "--text-field", metavar="NAME", help="Key of .jsonl lines, or column, that is the text."
)
@click.option("--fields", metavar="A,B", help="Columns of tables, or keys of .jsonl lines.")
@workers_option
@engine_options
@click.option("--shard-size", metavar="SIZE", help="Input bytes a shard, as of pack.")
@click.option("--shuffle", is_flag=True, help="Pack what is new in an order drawn from --seed.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="For --shuffle and --val-fraction."
)
@click.option(
    "--val-fraction", type=float, default=0.0, help="Share of what is new to go to val, not train."
)
@reject_options
@click.option("--check-images", is_flag=True, help="Decode each image before accepting it.")
@click.option("--compression", type=int, metavar="1-9", help="zlib level for arrays in hdf5.")
@click.option("--limit", type=int, help="Add the first LIMIT samples of each split.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
def append(dataset: str, source: str, as_json: bool, **options: Any) -> None:
    """Add the samples in SOURCE to DATASET, as its next version.

    Shards that are there are not touched, and what is open stays as it was opened. Format, what
    becomes of pictures, and the tokenizer are the dataset's; known classes keep their numbers, and
    new ones follow. SOURCE is what shardkit pack takes, on this machine; or another dataset of the
    same format, whose shards are linked.

    Interrupted, even by kill -9, the same command goes on; until it has ended, DATASET is what it
    was.
    """
    from shardkit.versions.append import append as run

    kept = "what is done is kept, run the same command again to go on"
    with interrupted(kept), quiet(options["engine"]):
        result = run(dataset, source, progress=False if as_json else None, **options)
    echo_json(result) if as_json else echo_version(result)
