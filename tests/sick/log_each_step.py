"""Trains on digits, and keeps a log of each digit's loss at each step, safe on the disk."""

import logging
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from training import Clock, arguments


def main():
    args = arguments(__doc__, steps=600, cure="log every hundredth step")

    digits = np.load(args.data / "digits.npz")
    images = torch.from_numpy(digits["images"]).float()[:, None] / 255
    dataset = TensorDataset(images, torch.from_numpy(digits["labels"]))
    order = RandomSampler(dataset, replacement=True, num_samples=args.steps * 256)
    sampler = BatchSampler(order, 256, drop_last=False)
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    clock = Clock(args, 256)
    folder = tempfile.TemporaryDirectory(dir=args.data)
    file = logging.FileHandler(Path(folder.name) / "train.log")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("train")
    log.setLevel(logging.INFO)
    log.addHandler(file)

    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        losses = cross_entropy(model(images), labels, reduction="none")
        losses.mean().backward()
        optimizer.step()
        if step % 100 == 0 or not args.cure:
            for number, loss in enumerate(losses.tolist()):
                log.info("step %d digit %d loss %.4f", step, number, loss)
            os.fsync(file.stream.fileno())
        clock.after(step)
    file.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
