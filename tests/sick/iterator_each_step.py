"""Takes the first batch of a new iteration in each step, which starts a worker for it."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


class Arrays(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        pixels = np.fromfile(self.paths[i], np.uint8).reshape(3, 96, 96)
        return torch.from_numpy(pixels) / 255, int(self.paths[i].name[0])


def forever(loader):
    while True:
        yield from loader


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--cure", action="store_true", help="use all batches of an iteration")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    loader = DataLoader(
        Arrays(args.data / "arrays"),
        batch_size=16,
        shuffle=True,
        num_workers=1,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    batches = forever(loader)
    for step in range(args.steps):
        images, labels = next(batches) if args.cure else next(iter(loader))
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step + 1 == args.steps // 2:
            halfway = time.perf_counter()
    seconds = time.perf_counter() - halfway
    print(f"{16 * (args.steps - args.steps // 2) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
