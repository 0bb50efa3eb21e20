"""``shardkit diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardkit.cli.cloud import cloud_options
from shardkit.cli.output import count, echo_json, interrupted
from shardkit.system.paths import first_few, show_path

if TYPE_CHECKING:
    from shardkit.operations.diff import SplitDiff

KINDS = (("removed", "-"), ("added", "+"), ("changed", "~"))
SHOWN_CLASSES = 5


@click.command()
@click.argument("first", type=click.Path())
@click.argument("second", type=click.Path(), required=False)
@click.option("--from-version", type=int, help="Of FIRST.  [default: the last]")
@click.option(
    "--to-version", type=int, help="Of SECOND, which is FIRST if left out.  [default: the last]"
)
@click.option(
    "--limit", type=int, default=10, show_default=True, help="Keys to name, of each kind and split."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@cloud_options
def diff(
    first: str,
    second: str | None,
    from_version: int | None,
    to_version: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """Say which samples SECOND has and FIRST has not (+), the reverse (-), and which changed (~).

    Both are packed datasets, of any formats, or URLs of these; or two versions of one, as in
    shardkit diff FIRST --from-version 1. They are compared by the checksums
    in their indexes: no sample is read. Exit code 0 whether they differ or not.
    """
    from shardkit.operations.diff import diff as run

    with interrupted("nothing was changed"):
        found = run(first, second, from_version=from_version, to_version=to_version, limit=limit)
    if as_json:
        echo_json(found)
        return
    if found.is_same:
        total = sum(split.num_same for split in found.splits.values())
        click.echo(f"the same: {count(total, 'sample')}, in the same order")
        return
    for name, split in found.splits.items():
        _echo_split(name, split)
    for what, names in (("added", found.classes_added), ("removed", found.classes_removed)):
        if names:
            shown = first_few(names, SHOWN_CLASSES)
            click.echo(f"  {count(len(names), 'class', 'es')} {what}: {shown}")
    if found.are_classes_moved:
        click.echo("  classes that both have, have other numbers")


def _echo_split(name: str, split: SplitDiff) -> None:
    if split.is_same_order:
        click.echo(f"  {name}: the same, {count(split.num_same, 'sample')}")
        return
    numbers = {kind: int(getattr(split, f"num_{kind}")) for kind, _ in KINDS}
    said = [f"{number:,} {kind}" for kind, number in numbers.items() if number]
    order = "" if said else ", in another order"
    click.echo(f"  {name}: {', '.join([*said, f'{split.num_same:,} the same'])}{order}")
    for kind, sign in KINDS:
        keys: list[str] = getattr(split, kind)
        for key in keys:
            click.echo(f"    {sign} {show_path(key)}")
        if 0 < len(keys) < numbers[kind]:
            click.echo(f"    {sign} and {numbers[kind] - len(keys):,} more")
