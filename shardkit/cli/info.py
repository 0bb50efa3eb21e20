"""``shardkit info``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from shardkit import __version__
from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json
from shardkit.images.choice import describe, is_lossless
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import first_few, is_url, show_path

if TYPE_CHECKING:
    from shardkit.operations.duplicates import Duplicates
    from shardkit.operations.info import SplitSummary, Summary

SHOWN_CLASSES = SHOWN_COPIES = 5


@click.command()
@click.argument("dataset", type=click.Path(), required=False)
@click.option(
    "--system", is_flag=True, help="Say instead what works on pictures here, and how fast."
)
@click.option(
    "--open",
    "only_open",
    is_flag=True,
    help="Print instead the lines of Python with which each tool opens it.",
)
@click.option("--version", type=int, help="Say it of this version.  [default: the last]")
@click.option("--duplicates", is_flag=True, help="Find samples that are there more than once, too.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@cloud_options
def info(
    dataset: str | None,
    system: bool,
    only_open: bool,
    version: int | None,
    duplicates: bool,
    as_json: bool,
) -> None:
    """Say what is in DATASET and how to open it, with shardkit and with other tools."""
    if system == (dataset is not None):
        raise click.UsageError("give either a DATASET or --system")
    if duplicates and (system or only_open):
        raise click.UsageError("--duplicates is not for --system, nor for --open")
    if dataset is None:
        _info_of_system(as_json)
        return
    from shardkit.operations.info import info as run

    found = run(dataset, version=version, duplicates=duplicates)
    if as_json:
        echo_json(found)
        return
    if only_open:
        for tool, lines in found.recipes.items():
            click.echo(f"# {tool}\n{lines}\n")
        return
    kind = found.corpus.get("kind") or "files"
    click.echo(f"{show_path(dataset)}: {found.container}, packed from {show_path(kind)}")
    if made := found.corpus.get("images", []):
        how = "rewritten without loss" if all(map(is_lossless, made)) else "written anew"
        click.echo(f"  pictures {how}: {show_path(', then '.join(map(describe, made)))}")
        if any(one.get("restarts") for one in made) and not made[-1].get("restarts"):
            click.echo("  what was written anew after --restarts has no restart markers")
    if tokens := found.corpus.get("tokens"):
        click.echo(f"  tokens of {_tokenizer(tokens)}")
    if kind == "nanogpt" and found.corpus.get("tokens", {}).get("eos") is None:
        click.echo("  samples are pieces of 1,048,576 tokens: where documents end is not known")
    if found.classes:
        names = first_few(found.classes, SHOWN_CLASSES)
        click.echo(f"  {count(len(found.classes), 'class', 'es')}: {names}")
    for name, split in found.splits.items():
        _echo_split(name, split, found.classes)
    if found.history:
        _echo_history(found)
    if found.duplicates is not None:
        _echo_duplicates(found.duplicates)
    click.echo("  open with:")
    for line in found.open_with:
        click.echo(f"    {line}")
    if not is_url(dataset):
        click.echo(f"  with other tools: shardkit info {shlex.quote(show_path(dataset))} --open")


def _echo_history(found: Summary) -> None:
    there = set(found.versions)
    click.echo("  versions:")
    for line in found.history:
        splits = ", ".join(f"{number:,} in {name}" for name, number in line.num_rows.items())
        when = "" if line.when is None else f", {show_path(line.when)}"
        gone = "" if line.number in there else " (pruned)"
        click.echo(f"    {line.number}{gone}: {show_path(line.what)}; {splits}{when}")


def _tokenizer(tokens: dict[str, Any]) -> str:
    """A tokenizer in a line, from its entry in ``shardkit.json``."""
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
        click.echo(f"    {field}: {_value(field, encoding, classes)}")
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
    for group in found.examples:
        said = [f"{copy.split} {copy.key}{_labelled(copy.label)}" for copy in group]
        click.echo(f"    {first_few(said, SHOWN_COPIES)}")


def _labelled(label: int | None) -> str:
    return "" if label is None else f" (class {label})"


def _value(field: str, encoding: str, classes: list[str] | None) -> str:
    """What a field's values are. Those of ``cls`` are numbers, however a format stores them."""
    if field != "cls" or encoding == "absent":
        return encoding
    return "class number" + (f" ({count(len(classes), 'class', 'es')})" if classes else "")


def _info_of_system(as_json: bool) -> None:
    from shardkit.measure.machine import system

    found = system()
    if as_json:
        echo_json(found)
    else:
        _echo_system(found)


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
