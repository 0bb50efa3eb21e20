"""What an estimate looks like on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from shardkit.cli.output import count
from shardkit.measure.table import table
from shardkit.system.byte_sizes import format_bytes

if TYPE_CHECKING:
    from shardkit.packing.estimate import Estimate, Estimates

_HEAD = ("choice", "a sample", "in all", "decoded/s", "PSNR", "made/s", "to make")


def echo_estimates(found: Estimates) -> None:
    """A table with one line a choice."""
    from shardkit.images import losses, restarting

    workers = count(max(found.workers, 1), "worker")
    bad = f", {found.num_bad:,} bad ones apart" if found.num_bad else ""
    measured = f"{found.num_measured:,} of {count(found.num_samples, 'sample')}{bad}"
    click.echo(f"measured on {measured}; decoded/s and made/s by one thread, to make by {workers}")
    for line in table([_HEAD, *map(_cells, found.choices)]):
        click.echo(f"  {line}")
    for one in found.choices:
        if any(one.lost.values()):
            click.echo(f"  {one.choice} changes, of those measured: {losses.told(one.lost)}")
        if one.restarts:
            click.echo(f"  {one.choice}, of those measured: {restarting.told(one.restarts)}")
    for why in dict.fromkeys(found.left_out.values()):
        choices = ", ".join(choice for choice, own in found.left_out.items() if own == why)
        click.echo(f"  no estimate of {choices}: {why}")
    if any(one.restarts for one in found.choices):
        click.echo("  decoded/s is of whole pictures: restart markers speed up crops of them")


def _cells(one: Estimate) -> tuple[str, ...]:
    return (
        one.choice,
        format_bytes(one.sample_bytes),
        format_bytes(one.total_bytes),
        f"{one.decodes_per_s:,.0f}",
        "-" if one.psnr_db is None else f"{one.psnr_db:.1f} dB",
        "-" if one.made_per_s is None else f"{one.made_per_s:,.0f}",
        format_seconds(one.added_s) if one.added_s else "-",
    )


def format_seconds(seconds: float) -> str:
    """``5400`` -> ``"1.5 h"``."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
