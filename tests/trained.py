"""What tests of trainers share: rows to train on, and a script that is watched, and killed.

``python trained.py SCRIPT NOTES LAST`` runs a script of docs/trainers.md as one rank, and notes
what it trains on: SIGKILL comes in the step that has the LAST batch, unless that is 0.
"""

from __future__ import annotations

import functools
import hashlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from typing import Any


class Rows:
    """Rows that are what is in them; by default twelve, which are four batches of three."""

    def __init__(self, num_rows: int = 12) -> None:
        self.num_rows = num_rows

    def __len__(self) -> int:
        return self.num_rows

    def read(self, rows: Any) -> dict[str, Any]:
        return {"row": rows}

    def keys(self, rows: Any) -> list[str]:
        return [str(row) for row in rows]


def digest(batch: dict[str, Any]) -> str:
    """What is in a batch: the pixels of random crops and the labels, or tokens."""
    parts = [batch[name].cpu().contiguous().numpy().tobytes() for name in sorted(batch)]
    return hashlib.sha1(b"".join(parts)).hexdigest()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watch(net: Any, notes: Callable[[], str], last: int, end: Callable[[], None] = kill) -> None:
    """Have a model's class note each batch that it is given in the file of this name, which is
    asked for with each, and call ``end`` in the step of the batch ``last``."""
    forward = net.forward
    number = 0

    @functools.wraps(forward)
    def noted(self: Any, **batch: Any) -> Any:
        nonlocal number
        number += 1
        with open(notes(), "a") as file:
            file.write(digest(batch) + "\n")
        if number == last:
            end()
        return forward(self, **batch)

    net.forward = noted


def main(script: str, notes: str, last: int) -> None:
    sys.path.insert(0, os.getcwd())
    import data  # the page's own, beside the script

    watch(data.Net, lambda: notes, last)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
