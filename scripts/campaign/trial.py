"""One attempt at the public API or the command: a result, an error of ours, or a finding."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from cases import Outcome

import shardkit
from shardkit.cli import main

MOST_MESSAGE = 2000
NOTHING = object()
"""What an attempt gives that was refused."""


class Trial:
    """Attempts of one case, and what came of them."""

    def __init__(self) -> None:
        self.outcome = Outcome()

    def attempt(
        self, name: str, step: Callable[[], Any], also: tuple[type[Exception], ...] = ()
    ) -> Any:
        """What the step returns, or NOTHING if it was refused, as is right, by an error of ours or
        by one of ``also``, which are documented there."""
        try:
            made = step()
        except shardkit.ShardkitError as error:
            self.outcome.counts["refused"] += 1
            text = str(error)
            if "\n" in text or len(text) > MOST_MESSAGE:
                self.outcome.finding(f"{name}: an error that is not one line: {text[:300]!r}")
        except also:
            self.outcome.counts["refused"] += 1
        except Exception as error:
            self.outcome.finding(f"{name}: {type(error).__name__}: {error} ({_where(error)})")
        else:
            self.outcome.counts["done"] += 1
            return made
        return NOTHING

    def command(self, work: Path, *args: object) -> int | None:
        """The exit status of a ``shardkit`` command, run in this process; None after a finding."""
        line = ["shardkit", *map(str, args)]
        out, err = work / "stdout.txt", work / "stderr.txt"
        with (
            out.open("w") as stdout,
            err.open("w") as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            mock.patch.object(sys, "argv", line),
        ):
            try:
                main()
                code: Any = 0
            except SystemExit as ended:
                code = ended.code or 0
            except Exception as error:
                self.outcome.finding(f"{' '.join(line)}: {error!r} ({_where(error)})")
                return None
        said = err.read_text(errors="replace")
        if code not in (0, 1, 2):
            self.outcome.finding(f"{' '.join(line)}: exit status {code!r}: {said[-300:]}")
        if "Traceback" in said:
            self.outcome.finding(f"{' '.join(line)}: a traceback: {said[-600:]}")
        self.outcome.counts[f"exit {code}"] += 1
        return int(code)


def _where(error: BaseException) -> str:
    """The last line of ours that an error went through, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if re.search(r"/shardkit/", frame.filename)]
    named = [*ours[-1:], *frames[-1:]]
    return ", ".join(f"{os.path.relpath(f.filename)}:{f.lineno} in {f.name}" for f in named)
