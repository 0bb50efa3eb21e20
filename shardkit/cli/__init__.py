"""The command line: one thin click command a file, over Python functions with the same options."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Sequence

import click

from shardkit import __version__
from shardkit.cli.append import append
from shardkit.cli.bench import bench
from shardkit.cli.cache import cache
from shardkit.cli.convert import convert
from shardkit.cli.diff import diff
from shardkit.cli.doctor import doctor
from shardkit.cli.edit import edit
from shardkit.cli.info import info
from shardkit.cli.merge import merge
from shardkit.cli.option_names import Commands
from shardkit.cli.pack import pack
from shardkit.cli.prune import prune
from shardkit.cli.show import show
from shardkit.cli.stage import stage
from shardkit.cli.tune import tune
from shardkit.cli.unpack import unpack
from shardkit.cli.verify import verify
from shardkit.errors import ShardkitError
from shardkit.system import program
from shardkit.system.paths import show_path

_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""click < 8.2 has none: it prints the help and exits with 0."""

_COMPLETION = """\b
To complete commands, options and files with Tab, in ~/.bashrc (zsh: zsh_source):
  eval "$(_SHARDKIT_COMPLETE=bash_source shardkit)"
"""


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_COMPLETION,
)
@click.version_option(__version__, prog_name="shardkit")
def group() -> None:
    """Pack millions of small files into shards that keep a GPU fed.

    Exit codes: 0 done, 1 the data or the machine is at fault, 2 the call is.
    """


for command in (
    pack,
    merge,
    append,
    edit,
    prune,
    convert,
    unpack,
    verify,
    info,
    show,
    diff,
    bench,
    stage,
    tune,
    doctor,
    cache,
):
    group.add_command(command)


def main() -> None:
    """Run the command line; every error is one line on stderr, and below it what its notes hold:
    lines of Python that mend the data."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names need not be valid in any encoding
            stream.reconfigure(errors="backslashreplace")
    program.is_command_line = True
    try:
        sys.exit(group.main(prog_name="shardkit", standalone_mode=False))
    except ShardkitError as error:
        _fail(str(error), error.exit_code, getattr(error, "__notes__", ()))
    except OSError as error:  # of writing to stdout, if it names no file
        if isinstance(error.filename, str | bytes):
            _fail(f"{show_path(error.filename)}: {error.strerror}", 1)
        _drop_output()
        _fail(f"cannot write the output: {error.strerror or error}", 1)
    except click.Abort:
        _fail("interrupted", 128 + signal.SIGINT)
    except click.UsageError as error:
        if isinstance(error, _NO_ARGUMENTS):
            error.show()  # the help
            sys.exit(error.exit_code)
        command = error.ctx.command_path if error.ctx else "shardkit"
        _fail(f"{error.format_message().rstrip('.')}; see {command} --help", error.exit_code)
    except click.ClickException as error:
        _fail(error.format_message(), error.exit_code)
    finally:
        program.is_command_line = False


def _drop_output() -> None:
    """Send what stdout still holds nowhere: written at exit, it would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int, notes: Sequence[str] = ()) -> None:
    line = re.sub(r"\s*\n\s*", " ", message)
    click.echo("\n\n".join([f"shardkit: error: {line}", *notes]), err=True)
    sys.exit(code)
