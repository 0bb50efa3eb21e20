"""Which kind of input a file is by itself, by the ending of its name."""

from __future__ import annotations

from shardkit.images.sniff import IMAGE_EXTENSIONS
from shardkit.inputs.arrays import ARRAY_EXTENSIONS
from shardkit.inputs.lines import is_compressed, plain_name
from shardkit.inputs.names import extension
from shardkit.inputs.text import TEXT_EXTENSIONS

JSONL_EXTENSIONS = frozenset({".jsonl", ".ndjson"})
COMPRESSED_EXTENSIONS = frozenset({".gz", ".zst"})
PACKED_JSONL_EXTENSIONS = frozenset(
    ending + packed for ending in JSONL_EXTENSIONS for packed in ("", *COMPRESSED_EXTENSIONS)
)
PARQUET_EXTENSIONS = frozenset({".parquet"})
LMDB_EXTENSIONS = frozenset({".lmdb", ".mdb"})

NPY = ".npy"
SAFETENSORS = ".safetensors"
NPZ = ".npz"
HDF5_EXTENSIONS = frozenset({".h5", ".hdf5", ".he5"})
CONTAINER_EXTENSIONS = frozenset({SAFETENSORS, NPZ}) | HDF5_EXTENSIONS
"""Of files that hold several arrays."""

ONE_FILE = (
    ".jsonl (also .gz, .zst), .parquet, .npy, .npz, .safetensors, .h5, .tfrecord, .lmdb or idx"
)
"""What a single file may be, in words."""

TAR = "tar"
"""Stands for tars, which are converted and not packed."""

EXTENSIONS = {
    "images": IMAGE_EXTENSIONS,
    "text": TEXT_EXTENSIONS,
    "jsonl": PACKED_JSONL_EXTENSIONS,
    "arrays": ARRAY_EXTENSIONS,
    "parquet": PARQUET_EXTENSIONS,
    TAR: frozenset({".tar"}),
}
"""Kinds that are told by names alone. Sound and film are not: clips among pictures are strays."""

KIND_OF = {ending: kind for kind, endings in EXTENSIONS.items() for ending in endings}
"""Ending, lower case with its dot -> kind."""


PAIRED_KINDS = ("images", "arrays")
"""Those whose files may each be a part of a sample of several files; pictures come first."""


def kind_of(name: str) -> str:
    """The kind that a file of this name belongs to; ``""`` if none."""
    ending = extension(name)
    if is_compressed(name):
        ending = extension(plain_name(name)) + ending
    return KIND_OF.get(ending, "")
