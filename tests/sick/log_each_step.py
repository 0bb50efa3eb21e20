"""Trains on digits, and keeps a log of each digit's loss at each step, safe on the disk."""

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--cure", action="store_true", help="log every hundredth step")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

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
        if step == args.steps // 2:
            halfway = time.perf_counter()
    seconds = time.perf_counter() - halfway
    file.close()
    folder.cleanup()
    print(f"{256 * (step - args.steps // 2) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
