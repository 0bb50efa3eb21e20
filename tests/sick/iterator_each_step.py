"""Takes the first batch of a new iteration in each step, which starts a worker for it."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset
from training import Clock, arguments


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
    args = arguments(__doc__, steps=120, cure="use all batches of an iteration")

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
    clock = Clock(args, 16)

    batches = forever(loader)
    for step in range(args.steps):
        images, labels = next(batches) if args.cure else next(iter(loader))
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        clock.after(step + 1)


if __name__ == "__main__":
    main()
