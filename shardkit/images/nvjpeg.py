"""JPEGs decoded on an NVIDIA GPU, a batch at a time, by torchvision's nvJPEG.

torchvision brings pillow, which takes the place of pillow-simd: so it is never required, and the
environment that has it usually has plain Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardkit.errors import BadImageError, UsageError
from shardkit.images.decode import decode, header
from shardkit.images.limits import MAX_PIXELS
from shardkit.samples.sample import Value


def is_available() -> bool:
    """Whether torchvision is installed, and torch sees a CUDA device."""
    try:
        import torch
        import torchvision.io  # noqa: F401  only whether it is there
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def decode_batch(
    values: Sequence[Value], device: Any = "cuda", max_pixels: int = MAX_PIXELS
) -> list[Any]:
    """All pixels of a batch of pictures, on the device.

    What nvJPEG does not take (other kinds of files, CMYK) is decoded on the CPU and copied. nvJPEG
    is not libjpeg: pixels differ by some levels where colour is interpolated.

    Returns:
        (H, W, 3) uint8 tensors on the device, RGB, one a picture, each of its own size.

    Raises:
        BadImageError: a picture does not decode; ``slot`` says which. UsageError: no torchvision.
    """
    try:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg
    except ImportError as error:
        raise UsageError(
            "decoding on the GPU needs torchvision: pip install torchvision"
        ) from error
    out: list[Any] = [None] * len(values)
    jpegs = {}
    for slot, value in enumerate(values):
        try:
            if header(value, max_pixels).is_plain_jpeg:
                jpegs[slot] = torch.frombuffer(bytearray(value), dtype=torch.uint8)
            else:
                out[slot] = torch.from_numpy(decode(value, max_pixels=max_pixels)).to(device)
        except BadImageError as error:
            error.slot = slot
            raise
    try:
        files = list(jpegs.values())
        decoded = decode_jpeg(files, ImageReadMode.RGB, device=device) if files else []
    except RuntimeError as error:
        raise _first_bad(values, jpegs, max_pixels, error) from error
    for slot, pixels in zip(jpegs, decoded, strict=True):
        out[slot] = pixels.permute(1, 2, 0)
    return out


def _first_bad(values: Sequence[Value], slots: Any, max_pixels: int, error: Exception) -> Exception:
    """nvJPEG says that one of the batch is bad, not which: the CPU finds it."""
    for slot in slots:
        try:
            decode(values[slot], max_pixels=max_pixels)
        except BadImageError as bad:
            bad.slot = slot
            return bad
    return BadImageError(f"nvJPEG does not decode a picture that the CPU does: {error}", min(slots))
