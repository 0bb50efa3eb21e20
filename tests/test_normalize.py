"""From bytes to the model's numbers, on the device."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import shardkit
from shardkit.errors import UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EXPECTED = ((PIXELS / 255 - MEAN) / STD).transpose(0, 3, 1, 2)


def batch() -> dict[str, Any]:
    return {"cls": torch.arange(2), "image": torch.from_numpy(PIXELS.copy())}


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    ("dtype", "apart"), [(None, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 2e-2)]
)
def test_values_and_layout(channels_last: bool, dtype: Any, apart: float) -> None:
    transform = shardkit.normalize(dtype=dtype, channels_last=channels_last)
    given = batch()
    out = pickle.loads(pickle.dumps(transform))(given)
    assert list(out) == ["cls", "image"] and out["cls"] is given["cls"]
    values = out["image"]
    assert values.dtype == (dtype or torch.float32) and values.shape == (2, 3, 5, 7)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert values.is_contiguous(memory_format=layout)
    np.testing.assert_allclose(values.double().numpy(), EXPECTED, atol=apart)
    np.testing.assert_array_equal(given["image"].numpy(), PIXELS)


def test_other_numbers_of_channels_and_fields() -> None:
    grey = torch.from_numpy(PIXELS[..., :1].copy())
    out = shardkit.normalize(mean=[0.5], std=[0.25], field="jpg")({"jpg": grey})
    expected = (PIXELS[..., :1] / 255 - 0.5) / 0.25
    np.testing.assert_allclose(out["jpg"].numpy(), expected.transpose(0, 3, 1, 2), atol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "uint8 tensor in field 'image'"),
        ({"image": [1]}, "uint8 tensor"),
        ({"image": torch.zeros(2, 5, 7, 3)}, "uint8 tensor"),
        (
            {"image": torch.zeros(2, 3, 5, 7, dtype=torch.uint8)},
            r"\(B, H, W, 3\).*got \(2, 3, 5, 7\)",
        ),
        ({"image": torch.zeros(5, 7, 3, dtype=torch.uint8)}, r"got \(5, 7, 3\)"),
    ],
)
def test_what_is_no_batch_of_pictures(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shardkit.normalize()(given)


@pytest.mark.parametrize("std", [(1, 1), (1, 1, 0), (1, 1, -1)])
def test_deviations_that_make_no_sense(std: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="std above 0"):
        shardkit.normalize(std=std)


def test_on_a_prefetchers_device() -> None:
    made = shardkit.CudaPrefetcher([batch(), batch()], "cpu", transform=shardkit.normalize())
    for out in made:
        np.testing.assert_allclose(out["image"].numpy(), EXPECTED, atol=1e-5)
