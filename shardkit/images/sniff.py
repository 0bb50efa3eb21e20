"""What kind of picture a file holds, by its first bytes: real corpora have PNGs named .JPEG."""

from __future__ import annotations

HEAD_BYTES = 32
"""Bytes of a file that :func:`image_field` looks at."""

_ENDINGS = """
jpg jpeg jpe jfif png gif bmp dib webp tif tiff avif avifs heic heif hif
jp2 j2k jpf jpx j2c jpc pbm pgm ppm pnm
"""

IMAGE_EXTENSIONS = frozenset("." + ending for ending in _ENDINGS.split())
"""Extensions, lower case with their dot, of files that are taken for pictures."""

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"II+\0", "tif"),
    (b"MM\0+", "tif"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jp2"),
    (b"\xff\x4f\xff\x51", "j2k"),
)
_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_BMP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})
_NETPBM = {49: "pbm", 50: "pgm", 51: "ppm", 52: "pbm", 53: "pgm", 54: "ppm"}

IMAGE_FIELDS = frozenset(
    [name for _, name in _MAGIC] + [*_NETPBM.values()] + ["bmp", "webp", "avif", "heic"]
)
"""All names :func:`image_field` gives."""


def image_field(head: bytes) -> str | None:
    """The field name (``jpg``, ``png``, ``tif`` ...) of a file that begins with ``head``.

    None if it is no picture of a known kind.
    """
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        return _heif_field(head)
    # Two letters are no magic: "BM" also begins English text, so the header's size must fit.
    if head[:2] == b"BM" and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "bmp"
    if head[:1] == b"P" and head[2:3] in (b"\n", b" ", b"\t", b"\r", b"#"):
        return _NETPBM.get(head[1])
    return None


def _heif_field(head: bytes) -> str | None:
    """The container AVIF and HEIC share: the major brand decides, else the compatible ones."""
    brands = [head[at : at + 4] for at in (8, *range(16, len(head) - 3, 4))]
    for brand in brands:
        if brand in (b"avif", b"avis"):
            return "avif"
        if brand in _HEIC_BRANDS:
            return "heic"
    return "heic" if brands[0] in (b"mif1", b"msf1") else None
