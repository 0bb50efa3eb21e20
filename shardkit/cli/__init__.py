"""The command line: one thin click command a file, over Python functions with the same options."""

from __future__ import annotations

import os
import sys

import click

from shardkit import __version__
from shardkit.cli.convert import convert
from shardkit.cli.info import info
from shardkit.cli.pack import pack
from shardkit.cli.unpack import unpack
from shardkit.cli.verify import verify
from shardkit.errors import ShardkitError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardkit")
def group() -> None:
    """Pack millions of small files into shards that keep a GPU fed.

    Exit codes: 0 done, 1 the data or the machine is at fault, 2 the call is.
    """


for command in (pack, convert, unpack, verify, info):
    group.add_command(command)


def main() -> None:
    """Run the command line; every error of ours is one line on stderr."""
    try:
        sys.exit(group.main(standalone_mode=False))
    except ShardkitError as error:
        _fail(str(error), error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted; what is done is kept, run the same command again to go on", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split("\n"))
    click.echo(f"shardkit: error: {line}", err=True)
    sys.exit(code)
