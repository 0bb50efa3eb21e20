"""What a task on a Ray cluster is told, and how it answers: plain values, and errors sorted."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

import shardkit
from shardkit.errors import ShardkitError, UsageError
from shardkit.packing.answers import Answer, error_answer
from shardkit.remote.options import CACHE_BYTES, CACHE_DIR, settings_of

_PASSING = {errno.ESTALE, errno.EIO, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNRESET}
_PASSING |= {errno.EREMOTEIO, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH}
"""What a shared file system says when its server restarts, or a network fails: that passes. That
the disk is full, or a file is bad, does not."""

PASSING_S = 3.0
"""Before such a job is begun again."""

Told = dict[str, Any]
"""Plain values: what all calls are told, or one."""


class PassingError(Exception):
    """A job failed in a way that may pass: Ray begins it again, on another node perhaps."""


def told_to_tasks(is_remote: bool) -> Told:
    """What any task must know of this process: the release, and for what lies behind a URL, how it
    is reached."""
    names = (CACHE_DIR, CACHE_BYTES)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    environment = settings_of(os.environ) | kept if is_remote else {}
    return {"release": shardkit.__version__, "environment": environment}


def answered(told: Told, do: Callable[[], Any]) -> Answer:
    """In a task: what ``do`` comes to, as plain values.

    Raises:
        PassingError: it failed in a way that may pass.
    """
    os.environ.update(told["environment"])
    try:
        if told["release"] != shardkit.__version__:
            raise UsageError(
                f"{here()} has shardkit {shardkit.__version__}, and {told['release']} asks: install"
                " the same release on all machines of the cluster"
            )
        return {"done": do(), "node": here()}
    except ShardkitError as error:
        if _is_passing(error):
            time.sleep(PASSING_S)
            raise PassingError(str(error)) from error
        return {**error_answer(error), "node": here()}


def here() -> str:
    return f"node {os.uname().nodename}"


def _is_passing(error: BaseException | None) -> bool:
    while error is not None and not (isinstance(error, OSError) and error.errno):
        error = error.__cause__
    return error is not None and error.errno in _PASSING
