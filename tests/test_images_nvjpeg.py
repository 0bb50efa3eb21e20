"""JPEGs decoded on the GPU, where there is one."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from odd_pictures import JPEGS, OTHERS, jpeg

from shardkit.errors import BadImageError, UsageError
from shardkit.images import decode, nvjpeg

needs_gpu = pytest.mark.skipif(not nvjpeg.is_available(), reason="needs torchvision and CUDA")


def test_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert not nvjpeg.is_available()
    with pytest.raises(UsageError, match="pip install torchvision"):
        nvjpeg.decode_batch([jpeg()])


@pytest.mark.gpu
@needs_gpu
def test_pixels_are_near_those_of_the_cpu() -> None:
    kinds = JPEGS | OTHERS
    kinds.pop("bytes too many")
    values = [make() for make in kinds.values()]
    for kind, value, pixels in zip(kinds, values, nvjpeg.decode_batch(values), strict=True):
        assert pixels.is_cuda and pixels.dtype == torch.uint8, kind
        apart = pixels.cpu().numpy().astype(np.int16) - decode(value)
        assert np.abs(apart).mean() < 4, kind  # nvJPEG does not interpolate colour


@pytest.mark.gpu
@needs_gpu
def test_a_bad_picture_is_named() -> None:
    with pytest.raises(BadImageError) as caught:
        nvjpeg.decode_batch([jpeg(), jpeg()[:-200], jpeg()])
    assert caught.value.slot == 1
    assert nvjpeg.decode_batch([]) == []
