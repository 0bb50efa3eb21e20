"""``shardkit pack``."""

from __future__ import annotations

import shlex
from typing import Any

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import echo_json, echo_pack, interrupted, quiet
from shardkit.cli.pictures import (
    engine_options,
    image_options,
    reject_options,
    together,
    workers_option,
    writing_options,
)
from shardkit.errors import UsageError
from shardkit.formats import FORMATS
from shardkit.system.paths import show_path

KINDS = ["images", "paired", "parallel", "companions", "metadata", "coco"]
KINDS += ["text", "jsonl", "arrays", "parquet", "hf", "rows", "tfrecord", "lmdb", "media", "files"]
"""Names in :data:`shardkit.inputs.open.CORPORA`, which is too much to import for a help text."""

corpus_option = click.option(
    "--corpus",
    type=click.Choice([*KINDS, "captions", "yolo"]),  # earlier names of metadata and parallel
    help="Kind of input.  [default: detected]",
)

CONTAINERS = [name for made in FORMATS.values() for name in (made.name, *made.aliases)]

token_options = together(
    click.option(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="Store text as ids: of a tokenizer.json, a transformers folder, or a tiktoken encoding"
        " by name.",
    ),
    click.option(
        "--train-tokenizer",
        type=int,
        metavar="ENTRIES",
        help="The same, by a byte-level BPE of so many entries trained on SOURCE.",
    ),
    click.option(
        "--eos",
        metavar="TOKEN",
        default="auto",
        show_default=True,
        help="Token that ends each document; auto: the tokenizer's own; none.",
    ),
    click.option(
        "--bos",
        metavar="TOKEN",
        default="none",
        show_default=True,
        help="Token that begins each document.",
    ),
    click.option(
        "--invalid-utf8",
        type=click.Choice(["reject", "replace"]),
        default="reject",
        show_default=True,
        help="What to do with text that is not UTF-8: a bad input, or U+FFFD in its place.",
    ),
)
"""What makes tokens of text."""


@click.command()
@click.argument("source", type=click.Path())
@click.argument("dest", type=click.Path(), required=False)
@click.option(
    "--to", type=click.Choice(CONTAINERS), help="Container format.  [default: npy for tokens]"
)
@corpus_option
@click.option(
    "--labels",
    metavar="FILE[:COLUMN]",
    help="Table that names files and their labels: .csv, .tsv or .txt. COLUMN, by title or"
    " number, holds the labels where there are more than two, as in train.csv:breed.",
)
@click.option(
    "--text-field", metavar="NAME", help="Key of .jsonl lines, or column, that is the text."
)
@click.option(
    "--fields",
    metavar="A,B",
    help="Columns of tables, or keys of .jsonl lines, to pack.  [default: all; whole lines]",
)
@click.option(
    "--fn",
    metavar="FILE.py:NAME",
    help="Function that returns a sample for each input, or yields several. Inputs are the lines"
    " of SOURCE, or the files in it.",
)
@workers_option
@engine_options
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Input bytes a shard.  [default: from 4MB, growing with the input to 256MB; of text to"
    " tokenize 1MB to 32MB]",
)
@click.option("--shuffle", is_flag=True, help="Pack in an order drawn from --seed.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="For --shuffle, --val-fraction, --estimate.",
)
@click.option(
    "--val-fraction",
    type=float,
    default=0.0,
    help="Share of train to cut off as val; of each at least one.",
)
@reject_options
@click.option("--check-images", is_flag=True, help="Decode each image before accepting it.")
@click.option("--drop-duplicates", is_flag=True, hidden=True)  # refused: edit has it
@image_options
@token_options
@click.option(
    "--estimate",
    "only_estimate",
    is_flag=True,
    help="Write nothing: measure what choices for pictures cost and gain, on a few hundred.",
)
@click.option("--compression", type=int, metavar="1-9", help="zlib level for arrays in hdf5.")
@click.option(
    "--part",
    metavar="I/N",
    help="Make part I of N, of all shards each N-th; shardkit merge makes the dataset of them.",
)
@click.option("--limit", type=int, help="Pack the first LIMIT samples of each split.")
@click.option(
    "--dry-run", is_flag=True, help="Write nothing: say what was found, and one sample's fields."
)
@writing_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
@cloud_options
def pack(source: str, dest: str | None, only_estimate: bool, as_json: bool, **options: Any) -> None:
    """Pack the small files in SOURCE into shards in DEST, a folder or the URL of one (s3://, gs://,
    az://).

    SOURCE may be the URL of a folder in a bucket (s3://, gs://, az://), which is first fetched into
    DEST.spool.
    It is a folder of images (class folders or flat), of image-text pairs, of images with masks,
    boxes or other annotations, of text, of .jsonl, of .parquet, of arrays, of sound or film, or one
    that Hugging Face datasets saved; arrays of rows (images.npy beside labels.npy, .npz, HDF5),
    TFRecord or LMDB files, one or a folder; or any files, with --corpus files.
    Every column of a table becomes a field: pictures, sounds, labels, text, numbers. With a
    tokenizer, text is stored as ids, in npy unless --to says otherwise. DEST defaults to SOURCE's
    name and the format, in the current folder.

    Interrupted, even by kill -9, the same command goes on where it was; the result is the same to
    the byte, whatever the number of workers. On what it has completed, it says so and exits with 0.
    """
    from shardkit.packing.pack import pack as run

    if only_estimate:
        _estimate(source, as_json, options)
        return
    kept = "what is done is kept, run the same command again to go on"
    with interrupted(kept), quiet(options["engine"]):
        result = run(source, dest, progress=False if as_json else None, **options)
    if as_json:
        echo_json(result)
    elif options["dry_run"]:
        for note in result.notes:
            click.echo(note)
    else:
        echo_pack(result, "packed")
        if result.part is None:
            click.echo(f"  next: shardkit info {shlex.quote(show_path(result.dest))}")


def _estimate(source: str, as_json: bool, options: dict[str, Any]) -> None:
    from shardkit.cli.estimates import print_estimate

    if options.pop("fn") is not None or options.pop("dry_run"):
        raise UsageError("--estimate is for images in files: leave out --fn and --dry-run")
    with interrupted("nothing was written"):
        print_estimate(source, as_json, options)
