"""A folder of arrays: ``.npy`` files and ``.pt``/``.pth`` files of one tensor each."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from shardkit.errors import CorpusError, FormatError, SampleError
from shardkit.inputs.base import Run
from shardkit.inputs.files import Reason
from shardkit.inputs.folders import batch_of, encode_paths
from shardkit.inputs.names import extension, join
from shardkit.inputs.text_folders import PlainClassCorpus
from shardkit.samples.encoding import MAX_NPY_HEADER, npy_header, npy_layout, parse_npy
from shardkit.samples.sample import SampleBatch, Value
from shardkit.system.paths import show_path

TENSOR_EXTENSIONS = frozenset({".pt", ".pth"})
ARRAY_EXTENSIONS = frozenset({".npy"}) | TENSOR_EXTENSIONS


class ArrayCorpus(PlainClassCorpus):
    """Field ``npy`` holds a ``.npy`` file's bytes as they are, or a tensor as a ``.npy``.

    Folders are classes where they plainly are (:mod:`shardkit.inputs.text_folders`).

    A tensor's path is its key with ``.npy``, since that is what can be restored from it.
    """

    kind = "arrays"
    noun = "arrays"
    extensions = ARRAY_EXTENSIONS

    def runs(self, scratch: Path) -> Iterator[Run]:
        seen: dict[str, int] = {}
        for run in super().runs(scratch):
            _refuse_taken_names(run)
            if run.locators and not seen:
                first = self.source / run.base / os.fsdecode(run.locators[0])
            seen[run.split] = seen.get(run.split, 0) + len(run)
            yield run
        if seen and max(seen.values()) <= FEW_FILES:
            self.notes += _note_on_rows(first, sum(seen.values()))

    def read(self, run: Run, scratch: Path) -> SampleBatch:
        values = self.contents(run)
        paths = encode_paths(run)
        for i, value in enumerate(values):
            if isinstance(value, Reason):
                continue
            try:
                if _is_tensor(run.locators[i]):
                    values[i] = tensor_to_npy(value)
                    paths[i] = _restored(paths[i], run.keys[i])
                else:
                    check_npy(value)
            except (SampleError, FormatError) as error:
                values[i] = str(error)
        return batch_of(run, values, "npy", paths)


FEW_FILES = 4
"""A split of as few is seldom one of so few samples."""


def _note_on_rows(path: Path, num_files: int) -> list[str]:
    """What to say where there are so few files, of which ``path`` is the first: their rows may be
    what is meant."""
    if extension(path.name) in TENSOR_EXTENSIONS:
        return [
            f"each of {num_files} files is a sample; if each row of them is one, save them by"
            " np.save as .npy, of which --corpus rows takes each row"
        ] * (num_files > 1)
    try:
        with path.open("rb") as file:
            _, shape, _ = npy_layout(file.read(MAX_NPY_HEADER))
    except (OSError, FormatError):
        return []  # reading it says what is wrong
    if len(shape) < 2 or shape[0] < 2:
        return []
    shown = ", ".join(map(str, shape))
    if num_files > 1:
        return [
            f"each file is a sample, as {path.name} of ({shown}) is; if each row is one, --corpus"
            " rows takes them, or says how to join files of which each is a class"
        ]
    return [f"1 array of ({shown}) is one sample; --corpus rows makes each of its rows one"]


def check_npy(value: Value) -> None:
    """Whether this is a whole ``.npy`` file without pickles.

    Raises:
        SampleError, FormatError: otherwise.
    """
    if not value:
        raise SampleError("empty file")
    parse_npy(value)


def tensor_to_npy(value: Value) -> bytes:
    """The ``.npy`` file of the tensor that ``torch.save`` wrote.

    Raises:
        SampleError: the file is damaged, holds anything else, or a tensor NumPy cannot hold.
    """
    import torch

    if not value:
        raise SampleError("empty file")
    _refuse_more(_zipped_bytes(value), value)
    try:
        # weights_only: of the pickle inside, nothing but tensors and containers is ever built.
        held = torch.load(io.BytesIO(value), map_location="cpu", weights_only=True)
    # A damaged file raises nearly anything: UnpicklingError, RuntimeError, EOFError, KeyError ...
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise SampleError(f"torch.load refused it: {type(error).__name__}: {first_line}") from error
    if not isinstance(held, torch.Tensor):
        raise SampleError(
            f"holds {_a(type(held).__name__)}, expected one tensor; save each one of"
            " it as 0.NAME.npy, 1.NAME.npy and so on, which --corpus paired joins by their numbers"
        )
    if held.layout is not torch.strided or held.is_quantized:
        raise SampleError(
            "the tensor is sparse or quantized; save tensor.to_dense() or .dequantize()"
        )
    _refuse_more(held.nbytes, value)
    try:
        array = held.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        name = str(held.dtype).removeprefix("torch.")
        raise SampleError(f"NumPy has no {name}; save tensor.float() instead") from error
    return npy_header(array.dtype.str, array.shape) + array.tobytes()


def _zipped_bytes(value: Value) -> int:
    """What the members of a zip come to (``torch.save`` does not compress); 0 if it is none."""
    if not zipfile.is_zipfile(io.BytesIO(value)):
        return 0
    try:
        with zipfile.ZipFile(io.BytesIO(value)) as members:
            return sum(member.file_size for member in members.infolist())
    # BadZipFile, but also struct.error, NotImplementedError, UnicodeDecodeError ...
    except Exception as error:
        raise SampleError(f"damaged .pt: {error}") from error


def _refuse_more(num_bytes: int, value: Value) -> None:
    """A file of a kilobyte may say that it holds terabytes: by ``expand()``, or compressed."""
    if num_bytes > len(value):
        raise SampleError(
            f"makes {num_bytes} bytes of a file of {len(value)}: it is expanded or compressed;"
            " save tensor.clone(memory_format=torch.contiguous_format)"
        )


def _a(word: str) -> str:
    return f"{'an' if word[:1] in 'aeiouAEIOU' else 'a'} {word}"


def _is_tensor(name: bytes) -> bool:
    return extension(os.fsdecode(name)) in TENSOR_EXTENSIONS


def _restored(path: bytes, key: bytes) -> bytes:
    folder, slash, _ = path.rpartition(b"/")
    return folder + slash + key.rpartition(b"/")[2] + b".npy"


def _refuse_taken_names(run: Run) -> None:
    names = set(run.locators)
    for name, key in zip(run.locators, run.keys, strict=True):
        if _is_tensor(name) and _restored(name, key) in names:
            taken, path = _restored(name, key), join(run.base, os.fsdecode(name))
            raise CorpusError(
                f"{show_path(path)} would be restored as {show_path(taken)}, which is there"
                " already; rename one"
            )
