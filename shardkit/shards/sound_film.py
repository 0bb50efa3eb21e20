"""Sound and film decoded by torchcodec, where that is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shardkit.errors import UsageError
from shardkit.samples.sample import Value

SOUND_ENDINGS = frozenset(
    (
        *("wav", "wave", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac"),
        *("aif", "aiff", "aifc", "au", "wma", "amr"),
    )
)
FILM_ENDINGS = frozenset(
    ("mp4", "m4v", "mkv", "webm", "avi", "mov", "mpg", "mpeg", "wmv", "flv", "ogv", "3gp")
)
"""Endings of fields, lower case, that are taken for sound or film."""


def opener(ending: str) -> Callable[[Value], Any] | None:
    """What opens values of a field of this ending; None if they are neither sound nor film.

    It makes an ``AudioDecoder`` or a ``VideoDecoder`` of torchcodec, which decode what they are
    asked for: all samples, some seconds, some frames.

    Raises:
        UsageError: torchcodec, or the FFmpeg that it needs, is not there.
    """
    if ending not in SOUND_ENDINGS | FILM_ENDINGS:
        return None
    try:
        from torchcodec.decoders import AudioDecoder, VideoDecoder
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageError(
            "decode='torchcodec' needs torchcodec and FFmpeg: pip install torchcodec, and FFmpeg as"
            f" your system has it ({' '.join(str(error).split())})"[:200]
        ) from error
    decoder = AudioDecoder if ending in SOUND_ENDINGS else VideoDecoder
    return lambda value: decoder(bytes(value))
