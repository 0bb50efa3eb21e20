"""Trains a convolutional network that keeps its processor busy; its data is ready in time."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training import arguments, train


class Arrays(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        pixels = np.fromfile(self.paths[i], np.uint8).reshape(3, 96, 96)
        return torch.from_numpy(pixels).float() / 255, int(self.paths[i].name[0])


def main():
    args = arguments(__doc__, steps=200)

    dataset = Arrays(args.data / "arrays")
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 8)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=1)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )
    train(model, loader, args, size=8, lr=0.01)


if __name__ == "__main__":
    main()
