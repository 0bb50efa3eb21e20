"""Trains on photographs as a camera wrote them, made small for the model one by one."""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler


def load(path):
    with Image.open(path) as image:
        small = image.convert("RGB").resize((96, 96), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


class Photos(Dataset):
    def __init__(self, folder, in_memory):
        self.paths = sorted(folder.iterdir())
        self.images = [load(path) for path in self.paths] if in_memory else None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = self.images[i] if self.images else load(self.paths[i])
        return image.float() / 255, int(self.paths[i].name[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--cure", action="store_true", help="decode once, keep the small pictures")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    dataset = Photos(args.data / "photos", in_memory=args.cure)
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 4)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1, stride=2),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(48 * 16, 10),
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
    print(f"{4 * (step - args.steps // 2) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
