"""What ``pack`` and ``convert`` share: the options for pictures, and for bad inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import click

from shardkit.images.choice import FORMATS, ImageChoice

Command = Callable[..., Any]

_IMAGE_OPTIONS = (
    click.option(
        "--resize",
        type=int,
        metavar="PIXELS",
        help="Scale pictures down to this short side; never up.",
    ),
    click.option(
        "--max-side", type=int, metavar="PIXELS", help="Scale pictures down to this long side."
    ),
    click.option(
        "--crop",
        type=int,
        metavar="PIXELS",
        help="Then cut this square from the centre, scaling up what is smaller.",
    ),
    click.option(
        "--image-format",
        type=click.Choice(FORMATS),
        default="keep",
        show_default=True,
        help="What to write pictures as; raw: arrays. jpeg makes progressive ones baseline. A"
        " picture within the limits and of this format keeps its bytes.",
    ),
    click.option(
        "--quality",
        type=int,
        metavar="1-100",
        help="Of JPEG and WebP; with --image-format, of every picture.  [default: 90]",
    ),
)

_REJECT_OPTIONS = (
    click.option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="What to do with a bad input; skipped ones go to rejected.jsonl.",
    ),
    click.option(
        "--max-rejects",
        type=float,
        default=0.01,
        show_default=True,
        help="Share over which skip fails.",
    ),
)


def chosen(options: dict[str, Any]) -> bool:
    """Whether anything is to be done to pictures. Raises UsageError if it makes no sense."""
    return bool(ImageChoice(**{f.name: options[f.name] for f in fields(ImageChoice)}))


def image_options(command: Command) -> Command:
    """The options of :class:`shardkit.images.choice.ImageChoice`."""
    return with_options(_IMAGE_OPTIONS, command)


def reject_options(command: Command) -> Command:
    """What becomes of bad inputs."""
    return with_options(_REJECT_OPTIONS, command)


def with_options(options: tuple[Command, ...], command: Command) -> Command:
    """A command with options before it, in their order."""
    for option in reversed(options):
        command = option(command)
    return command
