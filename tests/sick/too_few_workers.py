"""Trains on JPEGs that the loop itself decodes, where a worker could do it meanwhile."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        with Image.open(self.paths[i]) as image:
            small = image.convert("RGB").resize((96, 96), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)
        return pixels.float() / 255, int(self.paths[i].name[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--cure", action="store_true", help="decode in a worker")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    dataset = Pictures(args.data / "pictures")
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 8)
    workers = 1 if args.cure else 0
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(12, 20, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(20 * 16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step == args.steps // 2:
            halfway = time.perf_counter()
    seconds = time.perf_counter() - halfway
    print(f"{8 * (step - args.steps // 2) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
