"""The last step of feeding pictures, on the device: from uint8 pixels to the model's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from shardkit.errors import UsageError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Normalize:
    """``batch -> batch``: a field of (B, H, W, 3) uint8 becomes (B, 3, H, W) of ``dtype``, each
    channel as ``(value / 255 - mean) / std``. Other fields stay.

    The bus carries bytes, a quarter of float32, and the device does the arithmetic, in float32.
    With ``channels_last`` the pixels stay where they are: it is how they lie already.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Any
    channels_last: bool
    field: str

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Raises UsageError if the field is missing, or not (B, H, W, channels) uint8."""
        import torch

        pixels = batch.get(self.field)
        if not isinstance(pixels, torch.Tensor) or pixels.dtype != torch.uint8:
            raise UsageError(f"normalize wants a uint8 tensor in field {self.field!r}")
        if pixels.ndim != 4 or pixels.shape[3] != len(self.mean):
            raise UsageError(
                f"normalize wants (B, H, W, {len(self.mean)}) in field {self.field!r}, got"
                f" {tuple(pixels.shape)}"
            )
        mean, std = (_levels(values, pixels.device) for values in (self.mean, self.std))
        values = pixels.float().sub_(mean).div_(std)
        values = values.to(self.dtype or torch.float32).permute(0, 3, 1, 2)
        if not self.channels_last:
            values = values.contiguous()
        return {**batch, self.field: values}


@cache
def _levels(values: tuple[float, ...], device: Any) -> Any:
    """(channels,) float32 of 0 to 255. Kept: making them anew each batch, a GPU would wait."""
    import torch

    return torch.tensor(values, dtype=torch.float32, device=device) * 255


def normalize(
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    *,
    dtype: Any = None,
    channels_last: bool = True,
    field: str = "image",
) -> Normalize:
    """A ``device_transform`` for :class:`shardkit.Loader`, or a ``transform`` for
    :class:`shardkit.CudaPrefetcher`.

    Args:
        mean, std: of each channel, of values from 0 to 1; by default ImageNet's.
        dtype: of the result, a torch dtype; None means float32.
        channels_last: in that memory format, which costs nothing here; else contiguous.
        field: the pictures.

    Raises:
        UsageError: not as many means as deviations, or a deviation that is not above 0.
    """
    if len(mean) != len(std) or not mean or not min(std) > 0:
        raise UsageError(f"mean and std must be as many, and std above 0, got {mean} and {std}")
    return Normalize(tuple(mean), tuple(std), dtype, channels_last, field)
