"""The group of all commands, whose errors name the options of who typed one.

A function under a command says which of its arguments is wrong. Whoever typed the command knows
that argument as an option: ``max_rejects`` as ``--max-rejects``, ``to`` as ``--to``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from shardkit import __version__
from shardkit.errors import UsageError

_VERBS = "is|are|must|was|wants|takes"

_COMPLETION = """\b
To complete commands, options and files with Tab, in ~/.bashrc (zsh: zsh_source):
  eval "$(_SHARDKIT_COMPLETE=bash_source shardkit)"
"""


class Commands(click.Group):
    """A group whose commands' errors name options."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            command = self.commands.get(ctx.invoked_subcommand or "")
            if command is not None:
                error.args = (with_options(str(error), options_of(command)),)
            raise


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog=_COMPLETION,
)
@click.version_option(__version__, prog_name="shardkit")
def group() -> None:
    """Pack millions of small files into shards that keep a GPU fed.

    Exit codes: 0 done, 1 the data or the machine is at fault, 2 the call is.
    """


def options_of(command: click.Command) -> dict[str, str]:
    """Return name of an argument in Python -> the option it is on the command line."""
    return {
        str(option.name): option.opts[0]
        for option in command.params
        if isinstance(option, click.Option)
    }


def with_options(message: str, options: Mapping[str, str]) -> str:
    """Return a message with the options in place of the arguments that it names.

    A name of several words can be nothing else, wherever it stands. One of a single word may be any
    word: it counts where a message begins with it and a verb, before "was", and where the caller is
    told to pass it.
    """
    whole = rf"(?<![\w-])(?:{_any_of(options)})(?![\w-])"
    compound = rf"(?<![\w-])(?:{_any_of(name for name in options if '_' in name)})(?![\w-])"
    listed = rf"\b(?:pass|give)(?: either)? {whole}(?:(?:, or |, | or ){whole})*"

    def option(found: re.Match[str]) -> str:
        return options[found[0]]

    message = re.sub(rf"^{whole}(?= (?:{_VERBS})\b|: )", option, message)
    message = re.sub(rf"{whole}(?= was )", option, message)
    message = re.sub(listed, lambda found: re.sub(whole, option, found[0]), message)
    return re.sub(compound, option, message)


def _any_of(names: Any) -> str:
    """Return a pattern for one of these names; of none, one that nothing matches."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)"
