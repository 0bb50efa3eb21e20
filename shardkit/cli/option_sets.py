"""Options that several commands share: pictures, bad inputs, workers, destinations, URLs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click import option

from shardkit.errors import UsageError
from shardkit.remote.urls import CACHE_BYTES, CACHE_DIR, STANDS_FOR, as_settings, environment
from shardkit.system.byte_sizes import parse_size
from shardkit.system.paths import is_url

Command = Callable[..., Any]


def together(*options: Command) -> Command:
    """Return a decorator that adds options to a command, in their order."""

    def add(command: Command) -> Command:
        for each in reversed(options):
            command = each(command)
        return command

    return add


class NumberList(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """``0,1,2``."""

    name = "numbers"

    def __init__(self, what: str, example: str) -> None:
        self._what = what
        self._example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return [int(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of {self._what}, as in {self._example}", param, ctx)


KINDS = ["images", "paired", "parallel", "companions", "metadata", "coco"]
KINDS += ["text", "jsonl", "arrays", "parquet", "hf", "rows", "tfrecord", "lmdb", "media", "files"]
"""Names in :data:`shardkit.inputs.detection.CORPORA`, which is too much to import for help."""

IMAGE_FORMATS = ["keep", "jpeg", "png", "webp", "raw"]
"""Those of :data:`shardkit.images.choice.FORMATS`, which imports NumPy, too."""

CONTAINERS = ["lmdb", "hdf5", "h5", "webdataset", "wds", "tar", "npy"]
"""Names and other names in :data:`shardkit.formats.FORMATS`, which imports NumPy."""

json_option = option("--json", "as_json", is_flag=True, help="Print the result as JSON; no bars.")
print_option = option("--json", "as_json", is_flag=True, help="Print as JSON.")

corpus_option = option(
    "--corpus",
    type=click.Choice([*KINDS, "captions", "yolo"]),  # earlier names of metadata and parallel
    help="Kind of input.  [default: detected]",
)
text_option = option(
    "--text-field", metavar="NAME", help="Key of .jsonl lines, or column, that is the text."
)
check_option = option("--check-images", is_flag=True, help="Decode each image before accepting it.")
compression_option = option(
    "--compression", type=int, metavar="1-9", help="zlib level for arrays in hdf5."
)

image_options = together(
    option(
        "--resize",
        type=int,
        metavar="PIXELS",
        help="Scale pictures down to this short side; never up.",
    ),
    option("--max-side", type=int, metavar="PIXELS", help="Scale pictures down to this long side."),
    option(
        "--crop",
        type=int,
        metavar="PIXELS",
        help="Then cut this square from the centre, scaling up what is smaller.",
    ),
    option(
        "--image-format",
        type=click.Choice(IMAGE_FORMATS),
        default="keep",
        help="What to write pictures as; raw: arrays. jpeg makes progressive ones baseline. A"
        " picture within the limits and of this format keeps its bytes.",
    ),
    option(
        "--quality",
        type=int,
        metavar="1-100",
        help="Of JPEG and WebP; with --image-format, of every picture.  [default: 90]",
    ),
    option(
        "--restarts",
        is_flag=True,
        help="Rewrite JPEGs, without loss, with restart markers: a crop is then decoded without"
        " decoding all of the picture. unpack gives the original bytes.",
    ),
)
"""Those of :class:`shardkit.images.choice.ImageChoice`."""

reject_options = together(
    option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        help="What to do with a bad input; skipped ones go to rejected.jsonl.",
    ),
    option("--max-rejects", type=float, default=0.01, help="Share over which skip fails."),
)
"""Options for bad inputs."""

engine_options = together(
    option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        help="Where to work: this machine, or a Ray cluster, whose machines share all folders.",
    ),
    option(
        "--address",
        metavar="HOST:PORT",
        help="Of the Ray cluster; auto: the one this machine is part of.  [default: $RAY_ADDRESS,"
        " or one of this machine alone]",
    ),
)
"""Options for where jobs are done."""

worker_options = together(
    option(
        "--workers",
        type=int,
        help="Processes that pack; 0 packs in this one.  [default: one a core]",
    ),
    engine_options,
)

destination_options = together(
    option(
        "--overwrite",
        is_flag=True,
        help="Start afresh; a dataset at DEST goes when the new one is whole.",
    ),
    option(
        "--staging",
        metavar="DIR",
        help="Where to pack what goes to a URL.  [default: in the user's cache folder]",
    ),
    option(
        "--staging-bytes",
        metavar="SIZE",
        help="Finished shards that may wait there to be uploaded.  [default: 4GiB]",
    ),
)
"""Options for what lies at the destination, and for what goes to a URL."""

writing_options = together(
    option("--dali-index", is_flag=True, help="Write DALI's own index beside each tar."),
    destination_options,
)

# --- URLs ---------------------------------------------------------------------------------

_cloud_options = together(
    option(
        "--endpoint",
        metavar="URL",
        help="Of a URL: the server that has the bucket, if not Amazon's, Google's or Microsoft's.",
    ),
    option("--anonymous", is_flag=True, help="Of a URL: the bucket is public; use no credentials."),
    option("--profile", metavar="NAME", help="Of a URL: the credentials of ~/.aws to use."),
    option(
        "--cache-dir",
        metavar="DIR",
        help="Of a URL: where to keep what is fetched.  [default: $SHARDKIT_CACHE_DIR, or in the"
        " user's cache folder]",
    ),
    option(
        "--cache-bytes",
        metavar="SIZE",
        help="How much of it, at most; 0 for none.  [default: $SHARDKIT_CACHE_BYTES, or all but"
        " 1 GiB of the disk]",
    ),
)


def cloud_options(command: Command) -> Command:
    """Add options to a command whose arguments may be URLs: how to reach what lies there, and where
    to keep it. They are set in the environment, of all processes that the command starts, too."""

    @wraps(command)
    def with_cloud(**options: Any) -> Any:
        names = ("endpoint", "anonymous", "profile", "cache_dir", "cache_bytes")
        given = {name: options.pop(name) for name in names}
        given = {name: value for name, value in given.items() if value not in (None, False)}
        if given:
            _refuse_unused(*given)
        settings = as_settings({name: given[name] for name in STANDS_FOR if name in given})
        if "cache_dir" in given:
            settings[CACHE_DIR] = given["cache_dir"]
        if "cache_bytes" in given:
            settings[CACHE_BYTES] = str(parse_size(given["cache_bytes"]))
        with environment(settings):
            return command(**options)

    with_options: Command = _cloud_options(with_cloud)
    return with_options


def _refuse_unused(first: str, *_: str) -> None:
    """Raise UsageError for an option of URLs where there is none: nothing would come of it."""
    ctx = click.get_current_context()
    for argument in ctx.command.params:
        if isinstance(argument, click.Argument):
            value = ctx.params[str(argument.name)]
            if any(map(is_url, value if isinstance(value, tuple) else (value,))):
                return
    raise UsageError(
        f"--{first.replace('_', '-')} is for what lies behind a URL, and none was given:"
        " leave it out"
    )
