"""``shardkit convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import echo_json, echo_pack, interrupted, quiet
from shardkit.cli.pack import CONTAINERS
from shardkit.cli.pictures import (
    engine_options,
    image_options,
    reject_options,
    workers_option,
    writing_options,
)

EXPORTS = ["bin", "megatron", "parquet"]
"""Those of :data:`shardkit.operations.convert.EXPORTS`, which is too much to import for a help
text."""


@click.command()
@click.argument("dataset", nargs=-1, required=True, type=click.Path(), metavar="DATASET... [DEST]")
@click.option(
    "--to",
    required=True,
    type=click.Choice([*CONTAINERS, *EXPORTS]),
    help="Container format, or files of another tool.",
)
@workers_option
@engine_options
@image_options
@reject_options
@click.option("--compression", type=int, metavar="1-9", help="zlib level for arrays in hdf5.")
@click.option("--eos", type=int, metavar="ID", help="Of files of ids: the one that ends documents.")
@click.option("--stored-dtype", metavar="DTYPE", help="Of ids without a header, if not uint16.")
@writing_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
@cloud_options
def convert(dataset: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Write DATASET in another container format into DEST; or its pictures smaller, too.

    DEST, a folder or the URL of one (s3://, gs://, az://), defaults to DATASET's name and the
    format, in the current folder. Interrupted, even by kill
    -9, the same command goes on where it was.

    DATASET is a packed dataset, or WebDataset tars made by others: a folder of them, one, several,
    or a pattern in quotes, as "a-{000000..000002}.tar". Samples, keys, bytes
    and the cut into shards stay as they are: converting there and back gives identical files. Only
    --resize and the like write pictures anew, and --restarts rewrites JPEGs so that unpack undoes
    it.

    Or it is token ids: nanoGPT's .bin, cut into documents if --eos says how they end, or Megatron's
    .bin and .idx. They become a dataset of tokens. TFRecord, .npz, HDF5 and LMDB
    files of others are packed, as by shardkit pack.

    Other tools read bin (nanoGPT), megatron and parquet (Hugging Face datasets), which are no
    datasets of shardkit. DEST is there when all of it is whole; interrupted, nothing is.
    """
    from shardkit.operations.convert import convert as run

    sources, dest = _words(dataset)
    kept = "what is done is kept, run the same command again to go on"
    kept = "nothing was written" if options["to"] in EXPORTS else kept
    with interrupted(kept), quiet(options["engine"]):
        result = run(sources, dest, progress=False if as_json else None, **options)
    if as_json:
        echo_json(result)
    else:
        echo_pack(result, "converted")


def _words(words: tuple[str, ...]) -> tuple[str | list[str], str | None]:
    """What to convert, and where to: shells write out patterns, so several tars may stand there."""
    from shardkit.tars.find import is_tar_source

    tars = [word for word in words if Path(word).is_file() and is_tar_source(Path(word))]
    if len(words) == 1:
        return words[0], None
    if len(tars) == len(words):
        return [*words], None
    if len(words) == 2:
        return words[0], words[1]
    gone = [word for word in words[:-1] if word.endswith(".tar") and not Path(word).exists()]
    if gone:
        raise click.UsageError(f"{gone[0]} is not there.")
    if len(tars) < len(words) - 1 or words[-1] in tars:
        others = " ".join(word for word in words[1:] if word not in tars)
        raise click.UsageError(f"Got unexpected extra arguments ({others})")
    return [*words[:-1]], words[-1]
