"""ResNet-18 of any width, with GroupNorm: BatchNorm's statistics are those of one rank's share of a
batch, so they, and the losses, would depend on the number of ranks."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        # At least 8 channels a group: at 1 x 1 pixel, two would always come out as +1 and -1.
        nn.GroupNorm(math.gcd(32, outputs // 8), outputs),
    )


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(inputs, outputs, 3, stride), nn.ReLU(inplace=True), conv(outputs, outputs, 3)
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18(num_classes: int, width: int) -> nn.Module:
    """``width``: channels of the first stage, a multiple of 8."""
    layers: list[nn.Module] = [conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 1 if stage == 0 else 2), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes)
    )
