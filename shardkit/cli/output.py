"""What the commands print."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from shardkit.storage import format_bytes, show_path

if TYPE_CHECKING:
    from shardkit.packing.pack import PackResult


class Interrupted(click.ClickException):
    """Ctrl-C, and how to go on."""

    exit_code = 130  # as shells expect it of a program that ends on SIGINT


@contextmanager
def interrupted(how_to_go_on: str) -> Iterator[None]:
    """Say that instead of a traceback when Ctrl-C ends the block."""
    try:
        yield
    except KeyboardInterrupt as error:
        click.echo(err=True)  # ends the line of the terminal's own ^C
        raise Interrupted(f"interrupted; {how_to_go_on}") from error


def echo_json(value: Any) -> None:
    """Print dataclasses, paths and plain values as JSON."""
    click.echo(json.dumps(value, indent=1, default=_plain))


def _plain(value: Any) -> Any:
    return vars(value) if dataclasses.is_dataclass(value) else str(value)


def count(number: int, noun: str, ending: str = "s") -> str:
    """``count(1, "shard")`` -> ``"1 shard"``; ``count(1200, "shard")`` -> ``"1,200 shards"``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{ending}"


def echo_pack(result: PackResult, verb: str) -> None:
    """A pack or convert in a few lines."""
    rate = result.num_samples / max(result.seconds, 1e-9)
    click.echo(
        f"{verb} {count(result.num_samples, 'sample')} ({result.kind}) into"
        f" {count(result.num_shards, 'shard')} of {result.container}: {show_path(result.dest)}"
    )
    click.echo(
        f"  {format_bytes(result.input_bytes)} in, {format_bytes(result.dataset_bytes)} out,"
        f" {result.seconds:.2f} s, {rate:,.0f} samples/s"
    )
    if result.num_tokens:
        per_s = 1 / max(result.seconds, 1e-9)
        click.echo(
            f"  {count(result.num_tokens, 'token')}, {result.num_tokens * per_s:,.0f} tokens/s,"
            f" {format_bytes(result.input_bytes * per_s)}/s"
        )
    if len(result.splits) > 1:
        parts = ", ".join(f"{name} {rows:,}" for name, rows in result.splits.items())
        click.echo(f"  splits: {parts}")
    if result.resumed_shards:
        click.echo(f"  {count(result.resumed_shards, 'shard')} found done from an earlier run")
    if result.ignored:
        parts = ", ".join(
            f"{number:,} {show_path(ending) or 'without extension'}"
            for ending, number in sorted(result.ignored.items())
        )
        click.echo(f"  files passed over: {parts}")
    if result.num_rejects:
        listed = show_path(result.dest / "rejected.jsonl")
        click.echo(f"  {count(result.num_rejects, 'input')} rejected: {listed}")
    for note in result.notes:
        click.echo(f"  {note}")
