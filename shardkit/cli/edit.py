"""``shardkit edit``."""

from __future__ import annotations

from typing import Any

import click

from shardkit.cli.output import echo_json, echo_version, interrupted


@click.command()
@click.argument("dataset", type=click.Path())
@click.option("--keep-keys", metavar="FILE", help="Keep only samples whose keys are its lines.")
@click.option("--drop-keys", metavar="FILE", help="Leave out samples whose keys are its lines.")
@click.option(
    "--keep-class",
    "keep_classes",
    metavar="NAME",
    multiple=True,
    help="Keep only this class; may be repeated. A number, where classes have no names.",
)
@click.option(
    "--drop-class", "drop_classes", metavar="NAME", multiple=True, help="Leave it out; likewise."
)
@click.option(
    "--filter",
    metavar="FILE.py:NAME",
    help="Keep samples of which this function says True; it is given what dataset[i] gives.",
)
@click.option(
    "--drop-duplicates",
    is_flag=True,
    help="Of samples that are equal but for keys and labels, keep the first.",
)
@click.option(
    "--labels", metavar="FILE", help="Give these samples these labels: a .csv of key,class."
)
@click.option(
    "--val-fraction", type=float, help="Put train and val together, and draw so much as val."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For --val-fraction.")
@click.option("--restore", type=int, metavar="VERSION", help="Have again what this version had.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
def edit(dataset: str, as_json: bool, **options: Any) -> None:
    """Choose samples, labels or splits of DATASET anew, as its next version.

    Nothing is packed again: there is a new row index over the same shards, so other tools that read
    shards by themselves see what it leaves out, too. shardkit convert makes a compact dataset of
    it. Old versions stay, until shardkit prune.
    """
    from shardkit.versions.edit import edit as run

    with interrupted("nothing was changed"):
        result = run(dataset, progress=False if as_json else None, **options)
    echo_json(result) if as_json else echo_version(result)
