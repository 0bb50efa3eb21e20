"""Options of commands that take URLs: how what lies there is reached, and where it is kept here."""

from __future__ import annotations

import os
from typing import Any

import click

from shardkit.cli.pictures import together
from shardkit.remote.options import CACHE_BYTES, CACHE_DIR, as_settings
from shardkit.system.byte_sizes import parse_size


def _in_environment(ctx: click.Context, variables: dict[str, str]) -> None:
    """For this command, and all processes that it starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)

    def restore() -> None:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    ctx.call_on_close(restore)


def _reach(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        _in_environment(ctx, as_settings({str(param.name): value}))


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    if param.name == "cache_bytes":
        value = str(parse_size(value))
    _in_environment(ctx, {CACHE_DIR if param.name == "cache_dir" else CACHE_BYTES: value})


cloud_options = together(
    click.option(
        "--endpoint",
        metavar="URL",
        expose_value=False,
        callback=_reach,
        help="Of a URL: the server that has the bucket, if not Amazon's, Google's or Microsoft's.",
    ),
    click.option(
        "--anonymous",
        is_flag=True,
        expose_value=False,
        callback=_reach,
        help="Of a URL: the bucket is public; use no credentials.",
    ),
    click.option(
        "--profile",
        metavar="NAME",
        expose_value=False,
        callback=_reach,
        help="Of a URL: the credentials of ~/.aws to use.",
    ),
    click.option(
        "--cache-dir",
        metavar="DIR",
        expose_value=False,
        callback=_keep,
        help="Of a URL: where to keep what is fetched.  [default: $SHARDKIT_CACHE_DIR, or in the"
        " user's cache folder]",
    ),
    click.option(
        "--cache-bytes",
        metavar="SIZE",
        expose_value=False,
        callback=_keep,
        help="How much of it, at most.  [default: $SHARDKIT_CACHE_BYTES, or all but 1 GiB of the"
        " disk]",
    ),
)
