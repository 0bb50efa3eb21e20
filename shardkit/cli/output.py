"""What the commands print."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from shardkit.errors import UsageError
from shardkit.measure.figures import table
from shardkit.system.byte_sizes import format_bytes
from shardkit.system.paths import as_path, show_path

if TYPE_CHECKING:
    from shardkit.packing.result import PackResult
    from shardkit.versions.revision import VersionResult


class Interrupted(click.ClickException):
    """Stopped by Ctrl-C, a scheduler or a closing terminal; says how to go on."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = 128 + number  # as shells expect of what a signal ends


@contextmanager
def quiet(engine: str) -> Iterator[None]:
    """Print nothing of Ray's: 20 lines on stdout, where the result belongs, for each node that is
    lost. What comes of that in the end is in the result, or in the error."""
    if engine != "ray":
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


class _SignalReceived(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def interrupted(how_to_go_on: str) -> Iterator[None]:
    """Say that instead of a traceback when Ctrl-C ends the block, or SIGTERM or SIGHUP, which
    would end the process at once and leave temporary files behind."""

    def stop(number: int, frame: object) -> None:
        raise _SignalReceived(number)

    ending = (signal.SIGTERM, signal.SIGHUP)
    numbers = [number for number in ending if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, stop)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
    except KeyboardInterrupt as error:
        click.echo(err=True)  # ends the line of the terminal's own ^C
        by = error.number if isinstance(error, _SignalReceived) else signal.SIGINT
        raise Interrupted(f"interrupted; {how_to_go_on}", by) from error


def call(
    run: Callable[..., Any],
    *places: Any,
    echo: Callable[[Any], None],
    as_json: bool,
    how_to_go_on: str = "what is done is kept, run the same command again to go on",
    has_bar: bool = True,
    **options: Any,
) -> None:
    """Call a function, which may be interrupted, and print its result: as JSON, or by ``echo``."""
    if has_bar:
        options["progress"] = False if as_json else None
    with interrupted(how_to_go_on), quiet(options.get("engine", "local")):
        result = run(*places, **options)
    echo_json(result) if as_json else echo(result)


def refuse_no_file(path: str) -> None:
    """Raise UsageError for what cannot be written to, before minutes of work."""
    place = as_path(path, "the file to write")
    if place.is_dir():
        raise UsageError(f"{show_path(path)} is a folder: name a file to write")
    if not place.parent.is_dir():
        raise UsageError(f"{show_path(path)} cannot be written: there is no such folder")
    if not os.access(place.parent, os.W_OK):
        raise UsageError(f"{show_path(path)} cannot be written: the folder is read-only")
    place = place.resolve()  # of a link, where it leads to
    if place.exists() and not place.is_file():  # a pipe, which opening would wait at
        return
    try:  # which leaves a file as it is, and none where there was none
        try:
            place.open("xb").close()
        except FileExistsError:
            place.open("ab").close()
        else:
            place.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"{show_path(path)} cannot be written: {reason}") from error


def echo_json(value: Any) -> None:
    """Print dataclasses, paths and plain values as JSON."""

    def plain(value: Any) -> Any:
        return vars(value) if dataclasses.is_dataclass(value) else str(value)

    click.echo(json.dumps(value, indent=1, default=plain))


def echo_table(lines: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> None:
    """Print lines of cells, as :func:`shardkit.measure.figures.table` has them."""
    for line in table(lines, left) if lines else ():
        click.echo(f"  {line}")


def count(number: int, noun: str, ending: str = "s") -> str:
    """Return ``"1 shard"`` for ``count(1, "shard")``, and ``"1,200 shards"`` for 1,200."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{ending}"


def visible(text: str) -> str:
    """Return text on one line, with nothing in it that moves the cursor, hides or turns round what
    follows.

    Not only control characters: those that change the direction of writing count, too, and all
    spaces but the plain one.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def echo_pack(result: PackResult, verb: str, *, has_next: bool = False) -> None:
    """Print a pack or convert in a few lines, and what to do next."""
    shards = f"{count(result.num_shards, 'shard')} of {result.container}: {show_path(result.dest)}"
    samples = count(result.num_samples, "sample")
    if result.was_complete:
        click.echo(f"complete already, from an earlier run: {samples} in {shards}")
    else:
        click.echo(f"{verb} {samples} ({result.kind}) into {shards}")
        _echo_work(result)
    if has_next:
        click.echo(f"  next: shardkit info {shlex.quote(show_path(result.dest))}")


def _echo_work(result: PackResult) -> None:
    rate = result.num_samples / max(result.seconds, 1e-9)
    click.echo(
        f"  {format_bytes(result.input_bytes)} in, {format_bytes(result.dataset_bytes)} out,"
        f" {result.seconds:.2f} s, {rate:,.0f} samples/s"
    )
    if result.num_tokens:
        per_s = 1 / max(result.seconds, 1e-9)
        click.echo(
            f"  {count(result.num_tokens, 'token')}, {result.num_tokens * per_s:,.0f} tokens/s,"
            f" {format_bytes(result.input_bytes * per_s)}/s"
        )
    if len(result.splits) > 1:
        parts = ", ".join(f"{name} {rows:,}" for name, rows in result.splits.items())
        click.echo(f"  splits: {parts}")
    if result.resumed_shards:
        click.echo(f"  {count(result.resumed_shards, 'shard')} found done from an earlier run")
    if result.ignored:
        parts = ", ".join(
            f"{number:,} {show_path(ending) or 'without extension'}"
            for ending, number in sorted(result.ignored.items())
        )
        click.echo(f"  files passed over: {parts}")
    if result.num_rejects:
        listed = show_path(f"{result.dest}/rejected.jsonl")
        click.echo(f"  {count(result.num_rejects, 'input')} rejected: {listed}")
    for note in result.notes:
        click.echo(f"  {note}")


def echo_version(result: VersionResult) -> None:
    """Print what a change of a dataset made."""
    splits = ", ".join(f"{number:,} in {name}" for name, number in result.splits.items())
    click.echo(f"{show_path(result.dest)}: version {result.version}, {splits}")
    click.echo(f"  {show_path(result.what)}")
    for what, number in (("added", result.num_added), ("left out", result.num_removed)):
        if number:
            click.echo(f"  {count(number, 'sample')} {what}")
    if result.num_bytes:
        click.echo(f"  {format_bytes(result.num_bytes)} removed")
    for note in result.notes:
        click.echo(f"  {show_path(note)}")
