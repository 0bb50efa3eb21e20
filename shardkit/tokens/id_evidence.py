"""Evidence for and against a ``.bin`` without a header being token ids.

Nothing in such a file says what it is: points of a lidar as float32 would be read as ids, too. So
files of other formats with the same ending are refused by their first bytes, ``meta.json`` next to
the file is believed, and without it the caller is told that it is a guess.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shardkit.arrays import Tokens
from shardkit.errors import FormatError
from shardkit.memory.maps import read_file
from shardkit.system.paths import show_path

META = "meta.json"
"""The file that ``convert --to bin`` writes next to its files."""

_PICKLED_META = "meta.pkl"
"""nanoGPT's own, which is never read, since a pickle may run any code: that it is there tells."""

_MAX_META_BYTES = 1 << 20
_DTYPES = {"uint16": "<u2", "uint32": "<u4"}

_MAGIC = (
    (b"PK\3\4", "a zip archive, as torch.save writes it (pytorch_model.bin)"),
    (b"\x1f\x8b\x08", "compressed by gzip"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (b"\xfd7zXZ\0", "compressed by xz"),
    (b"7z\xbc\xaf", "a 7z archive"),
    (b"\x7fELF", "a program"),
    (b"%PDF-", "a PDF"),
    (b"\x93NUMPY", "an array of numpy's"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"GGUF", "a model of llama.cpp's"),
    (b"RIFF", "audio, video or a picture"),
    (b"OggS", "audio or video"),
    (b"fLaC", "audio"),
    (b"\xff\xd8\xff", "a picture (jpg)"),
    (b"\x89PNG", "a picture (png)"),
    (b"GIF8", "a picture (gif)"),
    (b"II*\0", "a picture (tif)"),
    (b"MM\0*", "a picture (tif)"),
)
"""Three bytes at least: two are one id, which any text may begin with."""

_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


def refuse_other_files(path: Path, held: memoryview) -> None:
    """Raise FormatError for what begins as files do that hold no ids."""
    head = bytes(held[:8])
    found = next((what for magic, what in _MAGIC if head.startswith(magic)), None)
    if found is None and bytes(held[4:8]) == b"ftyp":
        found = "video or a picture"
    if found is None and _is_pickle(held):
        found = "a pickle, which shardkit never reads, since it may run any code"
    if found is not None:
        raise FormatError(
            f"{show_path(path)} is no file of token ids: it begins as {found}; to store such files"
            " as they are, run shardkit pack FOLDER --corpus files"
        )


def _is_pickle(held: memoryview) -> bool:
    """Return True for a pickle.

    Its first two bytes may be an id, so its last byte must fit, too, and from protocol 4 on the
    frame that follows; older ones of a program of its own begin with a mapping, an object, a list
    or a number."""
    head = bytes(held[:3])
    if head[:2] not in _PICKLES or bytes(held[-1:]) != b".":
        return False
    return head[2:3] == b"\x95" if head[1] >= 4 else head[2:3] in b"}]()c\x8aXqK"


def dtype_of(path: Path, num_bytes: int) -> str | None:
    """Return the dtype of the ids by ``meta.json`` next to them; None if it says nothing of them.

    Raises:
        FormatError: it tells of another number of ids.
    """
    meta = _meta(path)
    dtype = _DTYPES.get(str(meta.get("dtype")))
    splits = meta.get("splits")
    own = splits.get(path.stem) if isinstance(splits, dict) else None
    if dtype is None or not isinstance(own, dict) or type(own.get("tokens")) is not int:
        return None
    expected = own["tokens"] * int(dtype[-1])
    if num_bytes != expected:
        raise FormatError(
            f"{show_path(path)} has {num_bytes} bytes, expected {expected} for the {own['tokens']}"
            f" tokens of {META} beside it; fetch or make both again, or move {META} away if it"
            " tells of other files"
        )
    return dtype


_LARGEST_HALF, _LEAST_LARGE = 15, 32


def wide_dtype(ids: Tokens) -> str | None:
    """Return the dtype that ids read as uint16 seem to have, if it is a wider one.

    Of uint32 or int64 each second one is then a high half: 0, up to 15 for a vocabulary of a
    million, or 65,535 for a negative number, as -100 for what is not learnt. All of these are
    small, and 32 or more of the low halves are larger than any of them. Of real uint16 ids each
    large one may stand at an even or an odd place, so 32 of them stand at even places alone in one
    of 2**32 files, however many ids are small or 0.

    Args:
        ids: from the front of the file.
    """
    fours = ids[: len(ids) // 4 * 4].reshape(-1, 4)
    fours = np.where(fours == 0xFFFF, 0, fours)
    largest = int(fours[:, 1::2].max(initial=0))
    is_wide = np.count_nonzero(fours[:, ::2] > largest) >= _LEAST_LARGE
    if largest > _LARGEST_HALF or not is_wide:
        return None
    return "uint32" if fours[:, 2:].any() else "int64"


def _meta(path: Path) -> dict[str, Any]:
    beside = path.with_name(META)
    if not beside.is_file() or beside.stat().st_size > _MAX_META_BYTES:
        return {}
    try:
        held = json.loads(read_file(beside, _MAX_META_BYTES))
    except (ValueError, RecursionError):  # it may be anybody's
        return {}
    return held if isinstance(held, dict) else {}


def told(path: Path, num_tokens: int, largest: int) -> str:
    """Return a note on a file of which only the ending says that it holds ids."""
    has_meta = path.with_name(_PICKLED_META).is_file()
    why = f"as {_PICKLED_META} beside it suggests" if has_meta else "which nothing in it tells"
    return (
        f"taken for token ids of uint16 as nanoGPT writes them ({num_tokens:,} tokens, ids up to"
        f" {largest:,}), {why}; if it holds anything else (float32 points, pixels ...), pack its"
        " folder with --corpus files; ids of another dtype need stored_dtype (--stored-dtype)"
    )
