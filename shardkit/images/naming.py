"""What fields and files are called whose pictures were written anew."""

from __future__ import annotations

RAW_FIELD = "image.npy"
"""Where pictures go that are stored as arrays."""

IMAGE = "image"
"""Where a training sample's pixels are."""

_KIND_OF_ENDING = dict.fromkeys((b"jpeg", b"jpe", b"jfif"), b"jpg")


def field_of(kind: str) -> str:
    """The field for a picture that :func:`shardkit.images.encode.rewrite` says is a ``kind``."""
    return RAW_FIELD if kind == "npy" else kind


def renamed(path: bytes, key: bytes, field: str) -> bytes:
    """A picture's path once it is a ``field``: as ``jpg``, ``a/b.PNG`` becomes ``a/b.jpg``.

    The ending stays if it says so already (``.JPEG``), and if it is part of the key, as where
    ``b.png`` and ``b.bmp`` lie side by side: ``b.png.jpg``.
    """
    stem, dot, ending = path.rpartition(b".")
    if _KIND_OF_ENDING.get(ending.lower(), ending.lower()) == field.encode():
        return path
    kept = path if not dot or path.endswith(key) else stem
    return kept + b"." + field.encode()
