"""``shardkit show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import show_path

if TYPE_CHECKING:
    from shardkit.operations.show import ShownField, ShownSample

SHOWN_LINES = 12
LINE_CHARACTERS = 200


def _numbers(_context: Any, _parameter: Any, value: str | None) -> list[int] | None:
    if value is None:
        return None
    try:
        return [int(word) for word in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is no list of row numbers, as in 0,5,7") from error


@click.command()
@click.argument("dataset", type=click.Path())
@click.option("--split", help="Which split.  [default: train, or the only one]")
@click.option("--rows", metavar="ROW,ROW...", callback=_numbers, help="Which samples, from 0.")
@click.option("--num", type=int, help="Or so many, drawn at random.  [default: 3; with --out 24]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of that draw.")
@click.option(
    "--out", type=click.Path(), help="Draw their pictures, too: on a contact sheet, a PNG."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@cloud_options
def show(
    dataset: str,
    split: str | None,
    rows: list[int] | None,
    num: int | None,
    seed: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Look at some samples of DATASET: text and tokens as text, what pictures there are.

    Characters that would drive the terminal are printed as \\x1b and the like. Exit code 1 if one
    of the samples is broken.
    """
    from shardkit.operations.show import show as run

    found = run(dataset, split=split, rows=rows, num=num, seed=seed, out=out)
    if as_json:
        echo_json(found)
    else:
        shown = f"{len(found.samples):,} of {count(found.num_samples, 'sample')}"
        click.echo(f"{show_path(dataset)}, {found.split}: {shown}")
        for sample in found.samples:
            _echo_sample(sample)
        for note in found.notes:
            click.echo(_visible(note))
        if found.sheet is not None:
            click.echo(f"their pictures: {show_path(found.sheet)}")
    if not found.ok:
        raise SystemExit(1)


def _echo_sample(sample: ShownSample) -> None:
    click.echo(f"row {sample.row}: {show_path(sample.key)}")
    for field in sample.fields:
        _echo_field(field)


def _echo_field(field: ShownField) -> None:
    kind = "BROKEN" if field.kind == "broken" else field.kind
    parts = [kind, _visible(field.what), format_bytes(field.num_bytes)]
    if field.kind == "class":
        parts = parts[1:2]
    click.echo(f"  {field.name}: {', '.join(filter(None, parts))}")
    if field.numbers:
        more = " ..." if len(field.numbers) < (field.num_numbers or 0) else ""
        click.echo(f"    {' '.join(map(str, field.numbers))}{more}")
    if field.text is not None:
        _echo_text(field.text, field.is_cut)


def _echo_text(text: str, is_cut: bool) -> None:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    for line in lines[:SHOWN_LINES]:
        cut = " ..." if len(line) > LINE_CHARACTERS else ""
        click.echo(f"    | {_visible(line[:LINE_CHARACTERS])}{cut}" if line else "    |")
    if is_cut or len(lines) > SHOWN_LINES:
        click.echo("    ...")


def _visible(text: str) -> str:
    """On one line, and nothing in it that moves the cursor, hides or turns round what follows.

    Not only control characters: those that change the direction of writing count, too, and all
    spaces but the plain one.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
