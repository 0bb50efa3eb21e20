"""Commands that read datasets: info, show, diff, verify, unpack, stage, cache."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click
from click import argument, option

from shardkit import __version__
from shardkit.cli import option_sets
from shardkit.cli.command_group import group
from shardkit.cli.output import call, count, echo_json, echo_table, interrupted, quiet, visible
from shardkit.errors import UsageError
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import first_few, is_url, show_path

if TYPE_CHECKING:
    from shardkit.operations.cache import CacheContents
    from shardkit.operations.diff import DatasetDiff, SplitDiff
    from shardkit.operations.duplicates import Duplicates
    from shardkit.operations.info import SplitSummary, Summary
    from shardkit.operations.show import Shown, ShownField
    from shardkit.operations.stage import StageResult

SHOWN_CLASSES = SHOWN_COPIES = 5
SHOWN_LINES = 12
LINE_CHARACTERS = 200
SHOWN_PROBLEMS = 20


@group.command()
@argument("dataset", type=click.Path(), required=False)
@option("--system", is_flag=True, help="Say instead what works on pictures here, and how fast.")
@option(
    "--open",
    "only_open",
    is_flag=True,
    help="Print instead the lines of Python with which each tool opens it.",
)
@option("--version", type=int, help="Say it of this version.  [default: the last]")
@option("--duplicates", is_flag=True, help="Find samples that are there more than once, too.")
@option_sets.print_option
@option_sets.cloud_options
def info(dataset: str | None, system: bool, only_open: bool, as_json: bool, **options: Any) -> None:
    """Say what is in DATASET and how to open it, with shardkit and with other tools."""
    if system == (dataset is not None):
        raise click.UsageError("give either a DATASET or --system")
    if options["duplicates"] and (system or only_open):
        raise click.UsageError("--duplicates is not for --system, nor for --open")
    if dataset is None:
        from shardkit.measure.machine import system as look

        about = look()
        echo_json(about) if as_json else _echo_system(about)
        return
    from shardkit.operations.info import info as run

    found = run(dataset, **options)
    if as_json:
        echo_json(found)
    elif only_open:
        for tool, lines in found.recipes.items():
            click.echo(f"# {tool}\n{lines}\n")
    else:
        _echo_summary(dataset, found)


def _echo_summary(dataset: str, found: Summary) -> None:
    from shardkit.images.choice import describe, is_lossless

    kind = found.corpus.get("kind") or "files"
    click.echo(f"{show_path(dataset)}: {found.container}, packed from {show_path(kind)}")
    if made := found.corpus.get("images", []):
        how = "rewritten without loss" if all(map(is_lossless, made)) else "written anew"
        click.echo(f"  pictures {how}: {show_path(', then '.join(map(describe, made)))}")
        if any(one.get("restarts") for one in made) and not made[-1].get("restarts"):
            click.echo("  what was written anew after --restarts has no restart markers")
    if tokens := found.corpus.get("tokens"):
        click.echo(f"  tokens of {_tokenizer(tokens)}")
    if kind == "nanogpt" and (tokens or {}).get("eos") is None:
        click.echo("  samples are pieces of 1,048,576 tokens: where documents end is not known")
    if found.classes:
        names = first_few(found.classes, SHOWN_CLASSES)
        click.echo(f"  {count(len(found.classes), 'class', 'es')}: {names}")
    for name, split in found.splits.items():
        _echo_split(name, split, found.classes)
    if found.history:
        click.echo("  versions:")
    for line in found.history:
        splits = ", ".join(f"{number:,} in {name}" for name, number in line.num_rows.items())
        when = "" if line.when is None else f", {show_path(line.when)}"
        gone = "" if line.number in found.versions else " (pruned)"
        click.echo(f"    {line.number}{gone}: {show_path(line.what)}; {splits}{when}")
    if found.duplicates is not None:
        _echo_duplicates(found.duplicates)
    click.echo("  open with:")
    for text in found.open_with:
        click.echo(f"    {text}")
    if not is_url(dataset):
        click.echo(f"  with other tools: shardkit info {shlex.quote(show_path(dataset))} --open")


def _tokenizer(tokens: dict[str, Any]) -> str:
    """Return a tokenizer in a line, from its entry in ``shardkit.json``."""
    name = tokens["name"] or tokens["file"] or "an unknown tokenizer"
    ends = [
        f"{what} {tokens[key]}" if tokens[key] is not None else f"no {what}"
        for key, what in (("eos", "EOS"), ("bos", "BOS"))
    ]
    if tokens["file"] and not tokens["is_lossless"]:
        ends.append("does not keep all of a text")
    return f"{show_path(name)}: {count(tokens['vocab_size'], 'id')}, {', '.join(ends)}"


def _echo_split(name: str, split: SplitSummary, classes: list[str] | None) -> None:
    click.echo(
        f"  {name}: {count(split.num_samples, 'sample')} in {count(split.num_shards, 'shard')},"
        f" {format_bytes(split.shard_bytes)} + {format_bytes(split.index_bytes)} index"
    )
    if split.num_left_out:
        click.echo("    its shards hold samples that are not of this split, too")
    for field, encoding in split.encodings.items():
        # Those of ``cls`` are numbers, however a format stores them.
        if field == "cls" and encoding != "absent":
            number = f" ({count(len(classes), 'class', 'es')})" if classes else ""
            encoding = f"class number{number}"
        click.echo(f"    {field}: {encoding}")
    if split.num_tokens is not None:
        click.echo(f"    {count(split.num_tokens, 'token')}")
    if split.labels_in_order:
        click.echo("    labels in class order: shuffle fully when training, or pack with --shuffle")
    elif split.labels_in_order is not None:
        click.echo("    labels are mixed")


def _echo_duplicates(found: Duplicates) -> None:
    if found.num_unplain:
        click.echo(
            f"  duplicates: {count(found.num_unplain, 'class number')} not stored as plain digits"
            " count as content: copies that differ in these alone are not found"
        )
    if not found.num_copies:
        click.echo("  duplicates: none, by the checksums of all fields but the class number")
        return
    click.echo(
        f"  duplicates: {count(found.num_copies, 'sample')} of {found.num_samples:,} could be left"
        f" out, copies of {found.num_groups:,}"
    )
    for names, number in found.num_across.items():
        click.echo(f"    in several splits ({names}): {number:,}")
    if found.num_contradictions:
        click.echo(f"    with different class numbers: {found.num_contradictions:,}")
    for group_ in found.examples:
        said = [
            f"{copy.split} {copy.key}" + ("" if copy.label is None else f" (class {copy.label})")
            for copy in group_
        ]
        click.echo(f"    {first_few(said, SHOWN_COPIES)}")


def _echo_system(found: dict[str, Any]) -> None:
    facts, pil, torch, kernel = (found[name] for name in ("machine", "pillow", "torch", "kernel"))
    click.echo(
        f"shardkit {__version__}, Python {facts.python} on {facts.cpu},"
        f" {count(facts.cores, 'core')}, {facts.memory_bytes / 2**30:.0f} GiB"
    )
    click.echo(f"  JPEGs: {', '.join(found['jpeg_backends']) or 'nothing decodes them'}")
    name = f"{pil['name']} {pil['version']}" if pil else "nothing: no Pillow"
    click.echo(f"  other pictures: {name}")
    speed = " (vectorised)" if pil and pil["is_simd"] else ""
    click.echo(f"  resizing: {name}{speed}")
    click.echo(f"  kernel: {'built' if kernel['is_available'] else kernel['why_not']}")
    click.echo(f"  on the GPU: {'nvJPEG, by torchvision' if found['nvjpeg'] else 'nothing'}")
    click.echo(f"  torch: {torch['version']}, {torch['device'] or 'no CUDA device'}")
    if found["advice"]:
        click.echo("  to get faster:")
    for line in found["advice"]:
        click.echo(f"    {line}")


# --- samples ------------------------------------------------------------------------------


@group.command()
@argument("dataset", type=click.Path())
@option("--split", help="Which split.  [default: train, or the only one]")
@option(
    "--rows",
    type=option_sets.NumberList("row numbers", "0,5,7"),
    metavar="ROW,ROW...",
    help="Which samples, from 0.",
)
@option("--num", type=int, help="Or so many, drawn at random.  [default: 3; with --out 24]")
@option("--seed", type=int, default=0, help="Of that draw.")
@option("--out", type=click.Path(), help="Draw their pictures, too: on a contact sheet, a PNG.")
@option_sets.print_option
@option_sets.cloud_options
def show(dataset: str, as_json: bool, **options: Any) -> None:
    """Look at some samples of DATASET: text and tokens as text, what pictures there are.

    Characters that would drive the terminal are printed as \\x1b and the like. Exit code 1 if one
    of the samples is broken.
    """
    from shardkit.operations.show import show as run

    found = run(dataset, **options)
    echo_json(found) if as_json else _echo_samples(dataset, found)
    if not found.ok:
        raise SystemExit(1)


def _echo_samples(dataset: str, found: Shown) -> None:
    shown = f"{len(found.samples):,} of {count(found.num_samples, 'sample')}"
    click.echo(f"{show_path(dataset)}, {found.split}: {shown}")
    for sample in found.samples:
        click.echo(f"row {sample.row}: {show_path(sample.key)}")
        for field in sample.fields:
            _echo_field(field)
    for note in found.notes:
        click.echo(visible(note))
    if found.sheet is not None:
        click.echo(f"their pictures: {show_path(found.sheet)}")


def _echo_field(field: ShownField) -> None:
    kind = "BROKEN" if field.kind == "broken" else field.kind
    parts = [kind, visible(field.what), format_bytes(field.num_bytes)]
    if field.kind == "class":
        parts = parts[1:2]
    click.echo(f"  {field.name}: {', '.join(filter(None, parts))}")
    if field.numbers:
        more = " ..." if len(field.numbers) < (field.num_numbers or 0) else ""
        click.echo(f"    {' '.join(map(str, field.numbers))}{more}")
    if field.text is None:
        return
    lines = field.text.removesuffix("\n").split("\n") if field.text else []
    for line in lines[:SHOWN_LINES]:
        cut = " ..." if len(line) > LINE_CHARACTERS else ""
        click.echo(f"    | {visible(line[:LINE_CHARACTERS])}{cut}" if line else "    |")
    if field.is_cut or len(lines) > SHOWN_LINES:
        click.echo("    ...")


@group.command()
@argument("first", type=click.Path())
@argument("second", type=click.Path(), required=False)
@option("--from-version", type=int, help="Of FIRST.  [default: the last]")
@option(
    "--to-version", type=int, help="Of SECOND, which is FIRST if left out.  [default: the last]"
)
@option("--limit", type=int, default=10, help="Keys to name, of each kind and split.")
@option_sets.print_option
@option_sets.cloud_options
def diff(first: str, second: str | None, **options: Any) -> None:
    """Say which samples SECOND has and FIRST has not (+), the reverse (-), and which changed (~).

    Both are packed datasets, of any formats, or URLs of these; or two versions of one, as in
    shardkit diff FIRST --from-version 1. They are compared by the checksums
    in their indexes: no sample is read. Exit code 0 whether they differ or not.
    """
    from shardkit.operations.diff import diff as run

    unchanged = "nothing was changed"
    call(run, first, second, echo=_echo_diff, how_to_go_on=unchanged, has_bar=False, **options)


def _echo_diff(found: DatasetDiff) -> None:
    if found.is_same:
        total = sum(split.num_same for split in found.splits.values())
        click.echo(f"the same: {count(total, 'sample')}, in the same order")
        return
    for name, split in found.splits.items():
        _echo_split_diff(name, split)
    for what, names in (("added", found.classes_added), ("removed", found.classes_removed)):
        if names:
            shown = first_few(names, SHOWN_CLASSES)
            click.echo(f"  {count(len(names), 'class', 'es')} {what}: {shown}")
    if found.are_classes_moved:
        click.echo("  classes that both have, have other numbers")


def _echo_split_diff(name: str, split: SplitDiff) -> None:
    if split.is_same_order:
        click.echo(f"  {name}: the same, {count(split.num_same, 'sample')}")
        return
    kinds = (
        ("-", "removed", split.num_removed, split.removed),
        ("+", "added", split.num_added, split.added),
        ("~", "changed", split.num_changed, split.changed),
    )
    said = [f"{number:,} {kind}" for _, kind, number, _ in kinds if number]
    order = "" if said else ", in another order"
    click.echo(f"  {name}: {', '.join([*said, f'{split.num_same:,} the same'])}{order}")
    for sign, _, number, keys in kinds:
        for key in keys:
            click.echo(f"    {sign} {show_path(key)}")
        if 0 < len(keys) < number:
            click.echo(f"    {sign} and {number - len(keys):,} more")


# --- files --------------------------------------------------------------------------------


@group.command()
@argument("dataset", type=click.Path())
@option("--against", type=click.Path(), help="Also compare with the original input.")
@option("--version", type=int, help="Check this version.  [default: the last]")
@option_sets.engine_options
@option_sets.json_option
@option_sets.cloud_options
def verify(dataset: str, against: str | None, as_json: bool, **options: Any) -> None:
    """Check every checksum of DATASET; name each broken shard and sample.

    Exit code 1 if anything is wrong.
    """
    from shardkit.operations.verify import verify as run

    with interrupted("nothing was changed"), quiet(options["engine"]):
        result = run(dataset, against, progress=False if as_json else None, **options)
    if as_json:
        echo_json({"ok": result.ok, **vars(result)})
    else:
        for problem in result.problems[:SHOWN_PROBLEMS]:
            click.echo(f"BROKEN {problem}")
        if (more := len(result.problems) - SHOWN_PROBLEMS) > 0:
            click.echo(f"and {more:,} more; --json lists all")
        checked = f"{count(result.num_samples, 'sample')}, {format_bytes(result.num_bytes)}"
        if not result.has_checksums:
            checked += "; these tars carry no checksums, only sizes were checked"
        if result.is_compared:
            checked += f"; {result.num_compared:,} compared with {show_path(str(against))}"
        elif against is not None:
            checked += f"; not compared with {show_path(against)} while it is broken"
        verdict = "whole" if result.ok else count(len(result.problems), "problem")
        click.echo(f"{show_path(dataset)}: {verdict} ({checked})")
        for note in result.notes:
            click.echo(f"  {show_path(note)}")
    if not result.ok:
        raise SystemExit(1)


@group.command()
@argument("dataset", type=click.Path())
@argument("dest", type=click.Path())
@option_sets.json_option
@option_sets.cloud_options
def unpack(dataset: str, dest: str, **options: Any) -> None:
    """Write the files DATASET was packed from, under their original names, into DEST.

    Interrupted, even by kill -9, the same command goes on: it compares the files that are there,
    and writes the others. No file has its name before it is complete.
    """
    from shardkit.operations.unpack import UnpackResult
    from shardkit.operations.unpack import unpack as run

    def echo(result: UnpackResult) -> None:
        size = format_bytes(result.num_bytes)
        click.echo(f"unpacked {count(result.num_files, 'file')} ({size}) into {show_path(dest)}")

    call(run, dataset, dest, echo=echo, **options)


@group.command()
@argument("dataset", type=click.Path())
@argument("dest", type=click.Path())
@option(
    "--overwrite", is_flag=True, help="Start afresh; a dataset at DEST goes when the copy is whole."
)
@option(
    "--staging",
    metavar="DIR",
    help="Where to note what was sent to a URL, and where files lie that go from one to another."
    "  [default: in the user's cache folder]",
)
@option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bar.")
@option_sets.cloud_options
def stage(dataset: str, dest: str, **options: Any) -> None:
    """Copy DATASET to DEST, a folder to be made on a faster medium or behind a URL (s3://, gs://,
    az://), and check the copy.

    Until it is whole, nothing that opens as a dataset is there.
    """
    from shardkit.operations.stage import stage as run

    call(run, dataset, dest, echo=_echo_copy, **options)


def _echo_copy(result: StageResult) -> None:
    before = result.num_bytes - result.copied_bytes
    found = f", {format_bytes(before)} of it by an earlier run" if before else ""
    size = format_bytes(result.num_bytes)
    click.echo(
        f"copied and checked {count(result.num_files, 'file')}, {size}{found},"
        f" in {result.seconds:.2f} s: {show_path(result.dest)}"
    )


@group.command()
@argument("urls", nargs=-1, metavar="[URL]...")
@option("--clear", is_flag=True, help="Remove what is kept: of these URLs, or of all.")
@option(
    "--cache-dir",
    metavar="DIR",
    help="The cache.  [default: $SHARDKIT_CACHE_DIR, or in the user's cache folder]",
)
@option_sets.print_option
def cache(urls: tuple[str, ...], clear: bool, cache_dir: str | None, as_json: bool) -> None:
    """Say what was fetched from behind URLs and is kept on this machine; or remove it.

    Whoever reads a dataset meanwhile goes on: it is fetched again.
    """
    from shardkit.operations import cache as run

    if urls and not clear:
        raise UsageError("URLs are for --clear; without it, all that is kept is shown")
    found = run.clear_cache(urls or None, cache_dir) if clear else run.cache(cache_dir)
    echo_json(found) if as_json else _echo_cache(found, "removed" if clear else "kept")


def _echo_cache(found: CacheContents, what: str) -> None:
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
    datasets = count(len(rows), "dataset")
    click.echo(f"{show_path(found.folder)}: {datasets}, {format_bytes(kept)} {what}")
    echo_table(rows, left=(0, 1))
