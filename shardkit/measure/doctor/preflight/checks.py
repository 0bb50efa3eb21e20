"""``shardkit doctor DATASET``: what would slow or stop a training, before it begins."""

from __future__ import annotations

import os
import re
import resource
import textwrap
from pathlib import Path

from shardkit.arguments import integer
from shardkit.loading.auto import local_ranks
from shardkit.measure.doctor.preflight import machine, storage
from shardkit.measure.doctor.preflight.check import Check
from shardkit.measure.doctor.preflight.dataset import Found, find
from shardkit.measure.table import table
from shardkit.system.file_systems import is_remote, mount_at
from shardkit.system.paths import show_path
from shardkit.system.refusals import os_errors
from shardkit.system.resources import Allowance, allowance

WIDTH = 100
"""Of a line of advice, in characters."""

INDENT = 6 * " "

_COMMAND = re.compile("`[^`]*`")
_NO_BREAK = "\N{NO-BREAK SPACE}"


def preflight(path: str | Path, ranks: int | None = None) -> list[Check]:
    """Look at a dataset of ours, tars of others or plain files, and at the machine that is to train
    from it. Nothing is written; it takes a second or two.

    Args:
        ranks: processes that train on this machine; None: as many as LOCAL_WORLD_SIZE says, or one.

    Raises:
        DatasetMissingError: nothing is there, or nothing in it. UsageError: ``ranks`` is no number
        from 1 on. IndexFileError: a dataset of ours is damaged. StorageError: it may not be read.
    """
    ranks = local_ranks() if ranks is None else integer("ranks", ranks, 1)
    found = find(path)
    with os_errors(f"looking at {show_path(path)}"):
        return [*_of_storage(found), *_of_machine(found, allowance(), ranks)]


def _of_storage(found: Found) -> list[Check]:
    return [
        storage.layout(found),
        storage.file_system(found, mount_at(found.path), is_remote(found.path)),
        storage.free_space(found),
    ]


def _of_machine(found: Found, here: Allowance, ranks: int) -> list[Check]:
    feeding = machine.usual_feeding(found, here, ranks)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    checks = [
        machine.cores(here, os.cpu_count() or here.cores, ranks),
        machine.shared_memory(here.shm_bytes, feeding),
        machine.open_files(
            here.open_files,
            None if hard == resource.RLIM_INFINITY else hard,
            feeding,
            found.num_shards,
        ),
        storage.shards(found, ranks, feeding.workers),
    ]
    return [check for check in checks if check is not None]


def preflight_lines(checks: list[Check]) -> list[str]:
    """For a terminal: a line each, and below it what to do."""
    heads = table([(check.state, check.name, check.got) for check in checks], left=(0, 1, 2))
    lines = []
    for head, check in zip(heads, checks, strict=True):
        lines.append(head)
        lines += _wrapped(check.why)
    return lines


def _wrapped(why: str) -> list[str]:
    """In lines that leave commands whole, so that they can be copied."""
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), why)
    lines = textwrap.wrap(
        whole,
        WIDTH,
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines]
