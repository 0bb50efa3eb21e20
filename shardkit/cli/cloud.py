"""Options of commands that take URLs: how what lies there is reached, and where it is kept here."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from shardkit.cli.pictures import together
from shardkit.errors import UsageError
from shardkit.remote.options import CACHE_BYTES, CACHE_DIR, as_settings
from shardkit.system.byte_sizes import parse_size
from shardkit.system.paths import is_url


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
        _note(ctx, param)
        _in_environment(ctx, as_settings({str(param.name): value}))


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    _note(ctx, param)
    if param.name == "cache_bytes":
        value = str(parse_size(value))
    _in_environment(ctx, {CACHE_DIR if param.name == "cache_dir" else CACHE_BYTES: value})


def _note(ctx: click.Context, param: click.Parameter) -> None:
    ctx.meta.setdefault(_GIVEN, []).append(param.opts[0])


def _refuse_unused(ctx: click.Context) -> None:
    """Raises UsageError for an option of URLs where there is none: nothing would come of it."""
    arguments = [p.name for p in ctx.command.params if isinstance(p, click.Argument)]
    places = [ctx.params[str(name)] for name in arguments]
    given = [one for place in places for one in (place if isinstance(place, tuple) else [place])]
    if ctx.meta.get(_GIVEN) and not any(isinstance(one, str) and is_url(one) for one in given):
        raise UsageError(
            f"{ctx.meta[_GIVEN][0]} is for what lies behind a URL, and none was given: leave it out"
        )


def cloud_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds the options to a command whose arguments may be URLs."""

    @wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        _refuse_unused(click.get_current_context())
        return command(*args, **options)

    with_options: Callable[..., Any] = _options(checked)
    return with_options


_GIVEN = f"{__name__}.given"

_options = together(
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
        help="How much of it, at most; 0 for none.  [default: $SHARDKIT_CACHE_BYTES, or all but"
        " 1 GiB of the disk]",
    ),
)
