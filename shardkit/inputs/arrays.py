"""The kind ``arrays``: ``.npy`` files and ``.pt``/``.pth`` files of one tensor, each a sample."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from shardkit.errors import FormatError, SampleError
from shardkit.inputs.base import Run
from shardkit.inputs.class_folders import PlainClassCorpus
from shardkit.inputs.files import Reason, extension
from shardkit.inputs.folders import batch_of, encode_paths
from shardkit.samples.encoding import npy_header, parse_npy
from shardkit.samples.sample import SampleBatch, Value

TENSOR_EXTENSIONS = frozenset({".pt", ".pth"})
ARRAY_EXTENSIONS = frozenset({".npy"}) | TENSOR_EXTENSIONS


class ArrayCorpus(PlainClassCorpus):
    """Field ``npy`` holds a ``.npy`` file's bytes as they are, or a tensor as a ``.npy``.

    Folders are classes where they plainly are. A tensor's path is its key with ``.npy``, since that
    is what can be restored from it.
    """

    kind = "arrays"
    noun = "arrays"
    extensions = ARRAY_EXTENSIONS
    reading = "each .npy or .pt file is a sample"

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = self.contents(run)
        paths = encode_paths(run)
        for i, value in enumerate(values):
            if isinstance(value, Reason):
                continue
            try:
                if not value:
                    raise SampleError("empty file")
                if extension(os.fsdecode(run.locators[i])) in TENSOR_EXTENSIONS:
                    values[i] = tensor_to_npy(value)
                    folder, slash, _ = paths[i].rpartition(b"/")
                    paths[i] = folder + slash + run.keys[i].rpartition(b"/")[2] + b".npy"
                else:
                    parse_npy(value)
            except (SampleError, FormatError) as error:
                values[i] = str(error)
        return batch_of(run, values, "npy", paths)


def tensor_to_npy(value: Value) -> bytes:
    """Return the ``.npy`` file of the tensor that ``torch.save`` wrote.

    Raises:
        SampleError: the file is damaged, holds anything else, or a tensor NumPy cannot hold.
    """
    import torch

    try:
        if zipfile.is_zipfile(io.BytesIO(value)):  # torch.save does not compress
            with zipfile.ZipFile(io.BytesIO(value)) as members:
                _refuse_more(sum(member.file_size for member in members.infolist()), value)
        # weights_only: of the pickle inside, nothing but tensors and containers is ever built.
        held = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    except SampleError:
        raise
    # A damaged file raises nearly anything: BadZipFile, UnpicklingError, RuntimeError, EOFError ...
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise SampleError(f"torch.load refused it: {type(error).__name__}: {first_line}") from error
    if not isinstance(held, torch.Tensor):
        raise SampleError(
            f"holds a {type(held).__name__}, expected one tensor; pack it with fn=:"
            " docs/recipes/arrays.md"
        )
    try:
        _refuse_more(held.nbytes, value)
        array = held.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:  # sparse, quantized, bfloat16
        what = f"{held.layout}, {held.dtype}".replace("torch.", "")
        raise SampleError(f"NumPy has no such tensor ({what}); save tensor.float()") from error
    return npy_header(array.dtype.str, array.shape) + array.tobytes()


def _refuse_more(num_bytes: int, value: Value) -> None:
    """Raise SampleError if a file makes more bytes than it has, by ``expand()`` or compressed: a
    kilobyte may make terabytes."""
    if num_bytes > len(value):
        raise SampleError(
            f"makes {num_bytes} bytes of a file of {len(value)}: it is expanded or compressed; save"
            " tensor.clone(memory_format=torch.contiguous_format)"
        )
