"""The command line: thin click commands over Python functions with the same options."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Sequence

import click

from shardkit import system
from shardkit.cli import dataset_commands, measuring_commands, packing_commands
from shardkit.cli.command_group import group
from shardkit.errors import ShardkitError
from shardkit.system.paths import show_path

__all__ = ["dataset_commands", "group", "main", "measuring_commands", "packing_commands"]

_NO_ARGUMENTS = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""click < 8.2 has none: it prints the help and exits with 0."""


def main() -> None:
    """Run the command line; every error is one line on stderr, and below it what its notes hold:
    lines of Python that mend the data."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names need not be valid in any encoding
            stream.reconfigure(errors="backslashreplace")
    system.is_command_line = True
    try:
        sys.exit(group.main(prog_name="shardkit", standalone_mode=False))
    except ShardkitError as error:
        _fail(str(error), error.exit_code, getattr(error, "__notes__", ()))
    except OSError as error:  # of writing to stdout, if it names no file
        if isinstance(error.filename, str | bytes):
            _fail(f"{show_path(error.filename)}: {error.strerror}", 1)
        # What stdout still holds goes nowhere: written at exit, it would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
        system.is_command_line = False


def _fail(message: str, code: int, notes: Sequence[str] = ()) -> None:
    line = re.sub(r"\s*\n\s*", " ", message)
    click.echo("\n\n".join([f"shardkit: error: {line}", *notes]), err=True)
    sys.exit(code)
