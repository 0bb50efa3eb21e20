"""What ``shardkit tune`` found on this machine, kept in the user's cache folder.

One file, ``shardkit/tune.json`` in ``$XDG_CACHE_HOME`` or ``~/.cache``: a result for each machine,
dataset, batch size and kind of work. It can be lost at any time: what cannot be read is as if it
were not there, and a warning says so.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from shardkit.batches.maker import BatchMaker
from shardkit.commit.durable_files import atomic_write
from shardkit.errors import UsageError
from shardkit.loading.settings import Settings
from shardkit.system.paths import show_path, user_cache
from shardkit.system.resources import Allowance

VERSION = 1

MOST = 1000
"""How many results are kept; the oldest are dropped first."""

_MOST_BYTES = 16 << 20

_MOST_WORKERS, _MOST_PREFETCH = 1024, 64
"""No tuning finds more: a result that has them is damaged."""


def cache_file() -> Path:
    """In the user's cache folder. Raises OSError where there is no home."""
    cache = user_cache()
    if cache is None:
        raise FileNotFoundError(errno.ENOENT, "no home folder: set XDG_CACHE_HOME")
    return cache / "tune.json"


# --- what a result is for -----------------------------------------------------------------


def about(maker: BatchMaker, found: Allowance, ranks: int) -> dict[str, Any]:
    """The machine and the work that settings are for; JSON."""
    return {
        "cpu": found.cpu,
        "cores": found.cores,
        "cpu_quota": found.cpu_quota,
        "ranks": ranks,
        **work(maker),
    }


def work(maker: BatchMaker) -> dict[str, Any]:
    """What a loader does, but for where its batches are made; JSON."""
    source, options = maker.source.given, maker.options
    read_with = {
        name: getattr(source, name)
        for name in ("decode", "fields", "verify", "seq_len")
        if isinstance(getattr(source, name, None), bool | str | int | list)
    }
    transform = maker.transform
    return {
        "dataset": maker.source.fingerprint,
        "container": getattr(getattr(source, "info", None), "container", None),
        "source": {"type": type(source).__name__, **read_with},
        "transform": None if transform is None else transform.words,
        "backend": None if transform is None else getattr(transform.transform, "backend", None),
        "as_buffer": list(options.as_buffer),
        "batch_size": options.batch_size,
        "shuffle": options.shuffle,
        "order": options.of_order,
    }


def _key(described: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(described, sort_keys=True).encode())


# --- the file -----------------------------------------------------------------------------


def load(described: dict[str, Any]) -> Settings | None:
    """The settings found for this; None if there are none. Warns of what cannot be read."""
    try:
        path = cache_file()
    except OSError:
        return None
    entry = _read(path).get(_key(described))
    if entry is None:
        return None
    try:
        settings = Settings(entry["workers"], entry["worker_type"], entry["prefetch"])
        if settings.workers > _MOST_WORKERS or settings.prefetch > _MOST_PREFETCH:
            raise UsageError(f"nobody needs {settings}")
    except (TypeError, KeyError, UsageError):
        _warn(path, f"the result {_key(described)} is damaged")
        return None
    return replace(settings, why="tuned on this machine")


def save(described: dict[str, Any], settings: Settings, samples_per_s: float) -> Path:
    """Keep settings for :func:`load`; returns the file.

    Raises:
        OSError: it cannot be written.
    """
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
        results = _read(path)
        results.pop(_key(described), None)
        results[_key(described)] = {
            "workers": settings.workers,
            "worker_type": settings.worker_type,
            "prefetch": settings.prefetch,
            "samples_per_s": round(samples_per_s, 1),
            "about": described,
        }
        kept = dict(list(results.items())[-MOST:])
        text = json.dumps({"version": VERSION, "results": kept}, indent=1)
        atomic_write(path, [text.encode()])
    finally:
        os.close(lock)
    return path


def _read(path: Path) -> dict[str, Any]:
    """Results by key; none where there is no file, or none that can be used."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        found = json.loads(text) if len(text) <= _MOST_BYTES else None
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _warn(path, getattr(error, "strerror", None) or "it is no JSON")
        return {}
    if not isinstance(found, dict) or not isinstance(found.get("results"), dict):
        _warn(path, "it holds no results")
        return {}
    if found.get("version") != VERSION:
        _warn(path, f"it is of version {found.get('version')!r}, here it is {VERSION}")
        return {}
    return dict(found["results"])


def _warn(path: Path, why: str) -> None:
    warnings.warn(
        f"tuned settings in {show_path(path)} are ignored: {why}; `shardkit tune` writes them anew",
        stacklevel=4,
    )
