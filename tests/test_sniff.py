"""A picture's kind by its content."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardkit.images.sniff import HEAD_BYTES, IMAGE_EXTENSIONS, IMAGE_FIELDS, image_field

HEADS = {
    b"\xff\xd8\xff\xe0\x00\x10JFIF\x00": "jpg",
    b"\xff\xd8\xff\xe1\x12\x34Exif\x00": "jpg",
    b"\xff\xd8\xff\xdb": "jpg",
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR": "png",
    b"GIF87a\x01\x00": "gif",
    b"GIF89a\x01\x00": "gif",
    b"BM\x36\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00": "bmp",
    b"BM\x36\x00\x00\x00\x00\x00\x00\x00\x8a\x00\x00\x00\x7c\x00\x00\x00": "bmp",
    b"RIFF\x24\x00\x00\x00WEBPVP8 ": "webp",
    b"II*\x00\x08\x00\x00\x00": "tif",
    b"MM\x00*\x00\x00\x00\x08": "tif",
    b"II+\x00\x08\x00\x00\x00": "tif",
    b"\x00\x00\x00\x20ftypavif\x00\x00\x00\x00avifmif1": "avif",
    b"\x00\x00\x00\x20ftypavis\x00\x00\x00\x00avifavis": "avif",
    b"\x00\x00\x00\x1cftypmif1\x00\x00\x00\x00mif1avif": "avif",
    b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic": "heic",
    b"\x00\x00\x00\x18ftypmif1\x00\x00\x00\x00mif1heic": "heic",
    b"\x00\x00\x00\x14ftypmif1\x00\x00\x00\x00mif1": "heic",
    b"\x00\x00\x00\x0cjP  \r\n\x87\n\x00\x00\x00\x14ftypjp2 ": "jp2",
    b"\xff\x4f\xff\x51\x00\x2f": "j2k",
    b"P6\n2 2\n255\n": "ppm",
    b"P5 2 2 255 ": "pgm",
    b"P4\n# made by hand\n": "pbm",
    b"P3\n2 2\n": "ppm",
}

NOT_IMAGES = [
    b"",
    b"\xff",
    b"\xff\xd8",
    b"hello, this is text",
    b"BMW makes cars and motorcycles.",
    b"P6",
    b"P6abc",
    b"P7\nWIDTH",
    b"PK\x03\x04",
    b"RIFF\x24\x00\x00\x00WAVEfmt ",
    b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00isomiso2mp41",
    b"\x89PNG\n\x1a\n",
    b"\x93NUMPY\x01\x00",
    b"II*",
]


@pytest.mark.parametrize(("head", "field"), HEADS.items(), ids=lambda value: repr(value)[:20])
def test_each_kind_by_its_first_bytes(head: bytes, field: str) -> None:
    assert image_field(head) == field
    assert image_field(head + bytes(100)) == field


@pytest.mark.parametrize("head", NOT_IMAGES, ids=repr)
def test_what_is_no_image(head: bytes) -> None:
    assert image_field(head) is None


@given(st.binary(max_size=80))
def test_only_the_head_counts_and_names_are_known(data: bytes) -> None:
    head = data.ljust(HEAD_BYTES, b"\0")[:HEAD_BYTES]
    assert image_field(head) == image_field(head + b"\xff" * 100)
    for begun in (head, data):
        assert image_field(begun) in {None, *IMAGE_FIELDS}


def test_extensions_are_lower_case_with_their_dot() -> None:
    assert {".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".ppm"} <= IMAGE_EXTENSIONS
    assert all(e == e.lower() and e.startswith(".") for e in IMAGE_EXTENSIONS)
    assert not IMAGE_EXTENSIONS & {".txt", ".json", ".npy", ""}
