"""``shardkit convert``."""

from __future__ import annotations

from typing import Any

import click

from shardkit.cli.output import echo_json, echo_pack, interrupted
from shardkit.cli.pack import CONTAINERS
from shardkit.cli.pictures import image_options, reject_options, workers_option, writing_options


@click.command()
@click.argument("dataset", type=click.Path())
@click.argument("dest", type=click.Path(), required=False)
@click.option("--to", required=True, type=click.Choice(CONTAINERS), help="Container format.")
@workers_option
@image_options
@reject_options
@click.option("--compression", type=int, metavar="1-9", help="zlib level for arrays in hdf5.")
@click.option("--eos", type=int, metavar="ID", help="Of files of ids: the one that ends documents.")
@writing_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
def convert(dataset: str, dest: str | None, as_json: bool, **options: Any) -> None:
    """Write DATASET in another container format into DEST; or its pictures smaller, too.

    DEST defaults to DATASET's name and the format, in the current folder. Interrupted, even by kill
    -9, the same command goes on where it was.

    DATASET is a packed dataset, or WebDataset tars made by others. Samples, keys, bytes and the cut
    into shards stay as they are: converting there and back gives identical files. Only --resize and
    the like write pictures anew.

    Or it is token ids: nanoGPT's .bin, cut into documents if --eos says how they end, or Megatron's
    .bin and .idx. They become a dataset of tokens.
    """
    from shardkit.packing.convert import convert as run

    with interrupted("what is done is kept, run the same command again to go on"):
        result = run(dataset, dest, progress=False if as_json else None, **options)
    if as_json:
        echo_json(result)
    else:
        echo_pack(result, "converted")
