"""What reads a dataset: forked workers, ranks, and the decoders of its pictures."""

from __future__ import annotations

import platform
from importlib import metadata

from shardkit.formats import FORMATS, TARS, Format
from shardkit.images import pillow
from shardkit.images.augment import kernel_or_why_not
from shardkit.measure.doctor.preflight.check import Check
from shardkit.measure.doctor.preflight.dataset import Found
from shardkit.measure.image_support import pillow_advice
from shardkit.system.paths import show_path

STRAYS = 0.1
"""At most so many of the files are not what the folder is for."""


def fork_safety(found: Found) -> Check:
    """Ours keep nothing open that a fork could break: they read by position, or map files, and a
    child opens its own. Libraries with locks or a cursor of their own do not bear it."""
    name = "forked workers"
    if found.container is None:
        risky = [
            made
            for made in FORMATS.values()
            if not made.is_fork_safe and found.endings[f".{made.suffix}"] > STRAYS * found.num_files
        ]
        if not risky:
            return Check(name, "ok", "nothing that breaks by fork")
        first = risky[0]
        return Check(
            name, "warn", f".{first.suffix} files, read by {_version(first)}", _open(first)
        )
    if found.container.is_fork_safe:
        return Check(name, "ok", "nothing that breaks by fork")
    why = "shardkit.open may be called before the fork; " + _open(found.container)
    return Check(name, "ok", f"read by shardkit, or by {_version(found.container)}", why)


def _open(container: Format) -> str:
    return (
        f"files of {container.library} must be opened in each worker, on first use, never before"
        " DataLoader forks: processes that share one handle deadlock or get each other's bytes"
    )


def _version(container: Format) -> str:
    try:
        return f"{container.library} {metadata.version(container.library)}"
    except metadata.PackageNotFoundError:
        return f"{container.library}, which is not installed"


def shards(found: Found, ranks: int, workers: int) -> Check | None:
    """Readers that give whole shards away need one for each worker of each rank; of our formats
    those of tars do. None where there are no shards."""
    if found.container is None:
        return None
    name, num, needed = "shards", found.num_shards, ranks * workers
    got = f"{num:,} for {_workers(workers)}" if ranks == 1 else (
        f"{num:,} for {ranks} ranks with {_workers(workers)} each"
    )  # fmt: skip
    if found.container.name != TARS or num >= needed:
        return Check(name, "ok", got)
    return Check(
        name,
        "warn" if found.kind == "tars" else "ok",
        got,
        "shardkit.Loader and Stream deal rows to ranks and workers, and any number of shards will"
        f" do; the loaders of {found.container.library} deal whole shards, and with fewer than"
        f" {needed} some worker gets none: read it with shardkit.open, or `shardkit convert"
        f" {show_path(found.path)}` with a smaller --shard-size",
    )


def _workers(num: int) -> str:
    return f"{num} worker" if num == 1 else f"{num} workers"


def pillow_build(version: tuple[str, str] | None, has_turbo: bool, processor: str) -> Check:
    """Which PIL there is, as :func:`shardkit.images.pillow.version` says, and what is under it."""
    name, to_do = "Pillow", pillow_advice(version, processor)
    if version is None:
        return Check(name, "warn", "not installed", to_do)
    got = " ".join(version)
    if has_turbo:
        return Check(name, "warn" if to_do else "ok", f"{got}, with libjpeg-turbo", to_do)
    how = "install a wheel from PyPI, or build it where libjpeg-turbo's headers are"
    why = f"it decodes JPEGs at half the speed or less: {how}"
    return Check(name, "warn", f"{got}, without libjpeg-turbo", why)


def kernel(why_not: str) -> Check:
    """Our compiled decoder, the fastest there is for crops. ``why_not`` is empty where it is."""
    if why_not:
        return Check("kernel", "warn", "not there", f"pictures decode slower without it: {why_not}")
    return Check("kernel", "ok", "built")


def of_pictures() -> list[Check]:
    """What decodes them here."""
    version = pillow.version()
    return [
        pillow_build(version, version is not None and _has_turbo(), platform.machine()),
        kernel(kernel_or_why_not()[1]),
    ]


def _has_turbo() -> bool:
    from PIL import features

    return bool(features.check_feature("libjpeg_turbo"))
