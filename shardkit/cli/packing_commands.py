"""Commands that write datasets: pack, convert, merge, append, edit, prune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import argument, option

from shardkit.cli import option_sets
from shardkit.cli.command_group import group
from shardkit.cli.output import call, echo_pack, echo_version, interrupted
from shardkit.errors import UsageError

if TYPE_CHECKING:
    from shardkit.packing.result import PackResult

EXPORTS = ["bin", "megatron", "parquet"]
"""Those of :data:`shardkit.operations.exports.EXPORTS`, which is too much to import for a help
text."""

token_options = option_sets.together(
    option(
        "--tokenizer",
        metavar="PATH_OR_NAME",
        help="Store text as ids: of a tokenizer.json, a transformers folder, or a tiktoken encoding"
        " by name.",
    ),
    option(
        "--train-tokenizer",
        type=int,
        metavar="ENTRIES",
        help="The same, by a byte-level BPE of so many entries trained on SOURCE.",
    ),
    option(
        "--eos",
        metavar="TOKEN",
        default="auto",
        help="Token that ends each document; auto: the tokenizer's own; none.",
    ),
    option("--bos", metavar="TOKEN", default="none", help="Token that begins each document."),
    option(
        "--invalid-utf8",
        type=click.Choice(["reject", "replace"]),
        default="reject",
        help="What to do with text that is not UTF-8: a bad input, or U+FFFD in its place.",
    ),
)
"""Options for making tokens of text."""


@group.command()
@argument("source", type=click.Path())
@argument("dest", type=click.Path(), required=False)
@option(
    "--to",
    type=click.Choice(option_sets.CONTAINERS),
    help="Container format.  [default: npy for tokens]",
)
@option_sets.corpus_option
@option(
    "--labels",
    metavar="FILE[:COLUMN]",
    help="Table that names files and their labels: .csv, .tsv or .txt. COLUMN, by title or"
    " number, holds the labels where there are more than two, as in train.csv:breed.",
)
@option_sets.text_option
@option(
    "--fields",
    metavar="A,B",
    help="Columns of tables, or keys of .jsonl lines, to pack.  [default: all; whole lines]",
)
@option(
    "--fn",
    metavar="FILE.py:NAME",
    help="Function that returns a sample for each input, or yields several. Inputs are the lines"
    " of SOURCE, or the files in it.",
)
@option_sets.worker_options
@option(
    "--shard-size",
    metavar="SIZE",
    help="Input bytes a shard.  [default: from 4MB, growing with the input to 256MB; of text to"
    " tokenize 1MB to 32MB]",
)
@option("--shuffle", is_flag=True, help="Pack in an order drawn from --seed.")
@option("--seed", type=int, default=0, help="For --shuffle, --val-fraction, --estimate.")
@option(
    "--val-fraction",
    type=float,
    default=0.0,
    show_default=False,
    help="Share of train to cut off as val; of each at least one.",
)
@option_sets.reject_options
@option_sets.check_option
@option("--drop-duplicates", is_flag=True, hidden=True)  # refused: edit has it
@option_sets.image_options
@token_options
@option(
    "--estimate",
    "only_estimate",
    is_flag=True,
    help="Write nothing: measure what choices for pictures cost and gain, on a few hundred.",
)
@option_sets.compression_option
@option(
    "--part",
    metavar="I/N",
    help="Make part I of N, of all shards each N-th; shardkit merge makes the dataset of them.",
)
@option("--limit", type=int, help="Pack the first LIMIT samples of each split.")
@option(
    "--dry-run", is_flag=True, help="Write nothing: say what was found, and one sample's fields."
)
@option_sets.writing_options
@option_sets.json_option
@option_sets.cloud_options
def pack(source: str, dest: str | None, only_estimate: bool, **options: Any) -> None:
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
    if only_estimate:
        from shardkit.cli.estimates import print_estimate

        if options.pop("fn") is not None or options.pop("dry_run"):
            raise UsageError("--estimate is for images in files: leave out --fn and --dry-run")
        with interrupted("nothing was written"):
            print_estimate(source, options.pop("as_json"), options)
        return
    from shardkit.packing.pack import pack as run

    def echo(result: PackResult) -> None:
        if options["dry_run"]:
            for note in result.notes:
                click.echo(note)
        else:
            echo_pack(result, "packed", has_next=result.part is None)

    call(run, source, dest, echo=echo, **options)


@group.command()
@argument("dataset", nargs=-1, required=True, type=click.Path(), metavar="DATASET... [DEST]")
@option(
    "--to",
    required=True,
    type=click.Choice([*option_sets.CONTAINERS, *EXPORTS]),
    help="Container format, or files of another tool.",
)
@option_sets.worker_options
@option_sets.image_options
@option_sets.reject_options
@option_sets.compression_option
@option("--eos", type=int, metavar="ID", help="Of files of ids: the one that ends documents.")
@option("--stored-dtype", metavar="DTYPE", help="Of ids without a header, if not uint16.")
@option_sets.writing_options
@option_sets.json_option
@option_sets.cloud_options
def convert(dataset: tuple[str, ...], **options: Any) -> None:
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
    from shardkit.operations.exports import convert as run

    if options["to"] in EXPORTS:
        options["how_to_go_on"] = "nothing was written"
    call(run, *_words(dataset), echo=lambda result: echo_pack(result, "converted"), **options)


def _words(words: tuple[str, ...]) -> tuple[str | list[str], str | None]:
    """Return what to convert, and where to: shells write out patterns, so several tars may stand
    there."""
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


@group.command()
@argument("parts", nargs=-1, required=True, type=click.Path(), metavar="PARTS...")
@argument("dest", type=click.Path())
@option_sets.destination_options
@option_sets.json_option
@option_sets.cloud_options
def merge(parts: tuple[str, ...], dest: str, **options: Any) -> None:
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
    from shardkit.versions.merge_datasets import merge as run

    call(
        run, parts, dest, echo=lambda result: echo_pack(result, "merged", has_next=True), **options
    )


# --- next versions ------------------------------------------------------------------------


@group.command()
@argument("dataset", type=click.Path())
@argument("source", type=click.Path())
@option_sets.corpus_option
@option(
    "--labels", metavar="FILE[:COLUMN]", help="Table that names files and their labels, as of pack."
)
@option_sets.text_option
@option("--fields", metavar="A,B", help="Columns of tables, or keys of .jsonl lines.")
@option_sets.worker_options
@option("--shard-size", metavar="SIZE", help="Input bytes a shard, as of pack.")
@option("--shuffle", is_flag=True, help="Pack what is new in an order drawn from --seed.")
@option("--seed", type=int, default=0, help="For --shuffle and --val-fraction.")
@option(
    "--val-fraction",
    type=float,
    default=0.0,
    show_default=False,
    help="Share of what is new to go to val, not train.",
)
@option_sets.reject_options
@option_sets.check_option
@option_sets.compression_option
@option("--limit", type=int, help="Add the first LIMIT samples of each split.")
@option_sets.json_option
def append(dataset: str, source: str, **options: Any) -> None:
    """Add the samples in SOURCE to DATASET, as its next version.

    Shards that are there are not touched, and what is open stays as it was opened. Format, what
    becomes of pictures, and the tokenizer are the dataset's; known classes keep their numbers, and
    new ones follow. SOURCE is what shardkit pack takes, on this machine; or another dataset of the
    same format, whose shards are linked.

    Interrupted, even by kill -9, the same command goes on; until it has ended, DATASET is what it
    was.
    """
    from shardkit.versions.append import append as run

    call(run, dataset, source, echo=echo_version, **options)


@group.command()
@argument("dataset", type=click.Path())
@option("--keep-keys", metavar="FILE", help="Keep only samples whose keys are its lines.")
@option("--drop-keys", metavar="FILE", help="Leave out samples whose keys are its lines.")
@option(
    "--keep-class",
    "keep_classes",
    metavar="NAME",
    multiple=True,
    help="Keep only this class; may be repeated. A number, where classes have no names.",
)
@option(
    "--drop-class", "drop_classes", metavar="NAME", multiple=True, help="Leave it out; likewise."
)
@option(
    "--filter",
    metavar="FILE.py:NAME",
    help="Keep samples of which this function says True; it is given what dataset[i] gives.",
)
@option(
    "--drop-duplicates",
    is_flag=True,
    help="Of samples that are equal but for keys and labels, keep the first.",
)
@option("--labels", metavar="FILE", help="Give these samples these labels: a .csv of key,class.")
@option(
    "--val-fraction",
    type=float,
    help="Put train and val together, and draw so much as val.",
)
@option("--seed", type=int, default=0, help="For --val-fraction.")
@option("--restore", type=int, metavar="VERSION", help="Have again what this version had.")
@option_sets.json_option
def edit(dataset: str, **options: Any) -> None:
    """Choose samples, labels or splits of DATASET anew, as its next version.

    Nothing is packed again: there is a new row index over the same shards, so other tools that read
    shards by themselves see what it leaves out, too. shardkit convert makes a compact dataset of
    it. Old versions stay, until shardkit prune.
    """
    from shardkit.versions.edit import edit as run

    call(run, dataset, echo=echo_version, how_to_go_on="nothing was changed", **options)


@group.command()
@argument("dataset", type=click.Path())
@option("--keep", type=int, default=1, help="How many of the last versions stay.")
@option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def prune(dataset: str, **options: Any) -> None:
    """Forget old versions of DATASET, and remove from the disk what only they need.

    Nothing else ever removes a file of a dataset that was changed.
    """
    from shardkit.versions.revision import prune as run

    how = "run the same command again to end it"
    call(run, dataset, echo=echo_version, how_to_go_on=how, has_bar=False, **options)
