"""The command line: one thin click command a file, over Python functions with the same options."""

from __future__ import annotations

import io
import sys

import click

from shardkit import __version__
from shardkit.cli.convert import convert
from shardkit.cli.info import info
from shardkit.cli.output import Interrupted
from shardkit.cli.pack import pack
from shardkit.cli.unpack import unpack
from shardkit.cli.verify import verify
from shardkit.errors import ShardkitError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardkit")
def group() -> None:
    """Pack millions of small files into shards that keep a GPU fed.

    Exit codes: 0 done, 1 the data or the machine is at fault, 2 the call is.
    """


for command in (pack, convert, unpack, verify, info):
    group.add_command(command)


def main() -> None:
    """Run the command line; every error is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names need not be valid in any encoding
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(group.main(prog_name="shardkit", standalone_mode=False))
    except ShardkitError as error:
        _fail(str(error), error.exit_code)
    except click.Abort:
        _fail("interrupted", Interrupted.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)


def _fail(message: str, code: int) -> None:
    click.echo(f"shardkit: error: {' '.join(message.split())}", err=True)
    sys.exit(code)
