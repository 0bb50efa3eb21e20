"""A packing process: reads jobs as JSON lines from stdin, answers on stdout.

A program of its own rather than multiprocessing: the caller's script is not imported again, no
``__main__`` guard is asked of it, and nothing is pickled. It dies with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from shardkit.corpus import from_spec
from shardkit.errors import ShardkitError
from shardkit.packing.job import Job, JobContext, run_job

_PR_SET_PDEATHSIG = 1
REPORT_BYTES = 8_000_000
"""Progress is reported once that much input was read, or at the end of a shard."""


def main() -> None:
    """Serve until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not break the protocol
    setup = json.loads(sys.stdin.readline())
    corpus = from_spec(Path(setup["source"]), setup["spec"])
    context = JobContext(**setup["context"])
    _send(answers, {"ready": True})
    for line in sys.stdin:
        job = Job(**json.loads(line))
        try:
            head = run_job(corpus, job, context, _reporter(answers))
        except ShardkitError as error:
            _send(answers, {"error": [type(error).__name__, str(error)]})
            continue
        _send(answers, {"done": asdict(head)})


def _reporter(answers: TextIO) -> Callable[[int, int], None]:
    held = [0, 0]

    def report(num_entries: int, num_bytes: int) -> None:
        held[0] += num_entries
        held[1] += num_bytes
        if held[1] >= REPORT_BYTES:
            _send(answers, {"progress": held})
            held[:] = 0, 0

    return report


def _send(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _die_with_parent() -> None:
    """Ask Linux to kill us when the packer is killed; elsewhere the closed stdin ends us."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent or parent == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
