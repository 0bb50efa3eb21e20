"""What ``pack`` and ``convert`` share: the options for pictures, bad inputs, and the writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shardkit.images.choice import FORMATS

Command = Callable[..., Any]


def together(*options: Command) -> Command:
    """A decorator that adds options to a command, in their order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


image_options = together(
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
    click.option(
        "--restarts",
        is_flag=True,
        help="Rewrite JPEGs, without loss, with restart markers: a crop is then decoded without"
        " decoding all of the picture. unpack gives the original bytes.",
    ),
)
"""Those of :class:`shardkit.images.choice.ImageChoice`."""

reject_options = together(
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
"""What becomes of bad inputs."""

workers_option = click.option(
    "--workers", type=int, help="Processes that pack; 0 packs in this one.  [default: one a core]"
)

engine_options = together(
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where to work: this machine, or a Ray cluster, whose machines share all folders.",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="Of the Ray cluster; auto: the one this machine is part of.  [default: $RAY_ADDRESS,"
        " or one of this machine alone]",
    ),
)
"""Where jobs are done."""

destination_options = together(
    click.option(
        "--overwrite",
        is_flag=True,
        help="Start afresh; a dataset at DEST goes when the new one is whole.",
    ),
    click.option(
        "--staging",
        metavar="DIR",
        help="Where to pack what goes to a URL.  [default: in the user's cache folder]",
    ),
    click.option(
        "--staging-bytes",
        metavar="SIZE",
        help="Finished shards that may wait there to be uploaded.  [default: 4GiB]",
    ),
)
"""Of what lies at the destination, and of what goes to a URL."""

writing_options = together(
    click.option("--dali-index", is_flag=True, help="Write DALI's own index beside each tar."),
    destination_options,
)
