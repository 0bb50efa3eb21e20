"""What the commands print."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

from shardkit.packing.pack import PackResult
from shardkit.storage import format_bytes


def plain(value: Any) -> Any:
    """Dataclasses and paths as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def echo_json(value: Any) -> None:
    click.echo(json.dumps(plain(value), indent=1))


def count(number: int, noun: str) -> str:
    """``count(1, "shard")`` -> ``"1 shard"``; ``count(1200, "shard")`` -> ``"1,200 shards"``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def echo_pack(result: PackResult, verb: str) -> None:
    """A pack or convert in a few lines."""
    rate = result.num_samples / max(result.seconds, 1e-9)
    click.echo(
        f"{verb} {count(result.num_samples, 'sample')} ({result.kind}) into"
        f" {count(result.num_shards, 'shard')} of {result.container}: {result.dest}"
    )
    click.echo(
        f"  {format_bytes(result.input_bytes)} in, {format_bytes(result.dataset_bytes)} out,"
        f" {result.seconds:.2f} s, {rate:,.0f} samples/s"
    )
    if len(result.splits) > 1:
        parts = ", ".join(f"{name} {rows:,}" for name, rows in result.splits.items())
        click.echo(f"  splits: {parts}")
    if result.resumed_shards:
        click.echo(f"  {count(result.resumed_shards, 'shard')} found done from an earlier run")
    if result.ignored:
        parts = ", ".join(f"{n:,} {ext}" for ext, n in sorted(result.ignored.items()))
        click.echo(f"  files passed over as not of this kind: {parts}")
    if result.num_rejects:
        click.echo(f"  {count(result.num_rejects, 'input')} rejected: {result.dest}/rejected.jsonl")
