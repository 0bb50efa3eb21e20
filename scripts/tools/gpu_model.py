"""ResNet-50 (He et al. 2016), in plain torch, and its training step: torchvision may be missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gpu_setting import Batch, Setting, Step
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it

BLOCKS = (3, 4, 6, 3)
"""Of each stage."""

NUM_CLASSES = 1000


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *(conv(inputs, width, 1), nn.ReLU(inplace=True)),
            *(conv(width, width, 3, stride), nn.ReLU(inplace=True)),
            conv(width, outputs, 1),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet(blocks: Sequence[int] = BLOCKS, width: int = 64) -> nn.Module:
    """``width``: of the first stage's inner channels. As it stands, ResNet-50."""
    layers: list[nn.Module] = [
        *(conv(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    ]
    inputs = width
    for stage, num in enumerate(blocks):
        for block in range(num):
            stride = 2 if stage and block == 0 else 1
            layers.append(Bottleneck(inputs, width << stage, stride))
            inputs = 4 * width << stage
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, NUM_CLASSES)
    )


def training_step(setting: Setting) -> Step:
    """Forward, backward and SGD on ``batch["image"]``, (B, 3, S, S) normalised. It never looks at
    the loss, so the host may run ahead, as it does in a loop that logs now and then."""
    torch.backends.cudnn.benchmark = True
    model: Any = resnet((1, 1, 1, 1), 8) if setting.is_quick else resnet()
    model.to(setting.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)

    def step(batch: Batch) -> None:
        with torch.autocast(setting.device.type, setting.dtype):
            loss = F.cross_entropy(model(batch["image"]), batch["cls"])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def fixed_batch(setting: Setting) -> Batch:
    """One that is on the device already."""
    size, num = setting.size, setting.batch_size
    pixels = torch.randn(num, 3, size, size, device=setting.device)
    labels = torch.randint(NUM_CLASSES, (num,), device=setting.device)
    return {"image": pixels.to(memory_format=torch.channels_last), "cls": labels}
