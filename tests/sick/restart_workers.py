"""Trains in epochs of eight batches, each of which starts its workers anew."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, get_worker_info
from training import Clock, arguments


class Arrays(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.iterdir())[:128]
        self.mean = None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        pixels = np.fromfile(self.paths[i], np.uint8).reshape(3, 96, 96)
        return torch.from_numpy(pixels) / 255 - self.mean, int(self.paths[i].name[0])


def set_up_worker(worker):
    """The mean picture, which each worker works out for itself."""
    dataset = get_worker_info().dataset
    whole = np.stack([np.fromfile(path, np.uint8) for path in dataset.paths])
    dataset.mean = torch.from_numpy(whole.mean(0, np.float32) / 255).view(3, 96, 96)


def main():
    args = arguments(__doc__, steps=240, cure="keep the workers over epochs")

    loader = DataLoader(
        Arrays(args.data / "arrays"),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        worker_init_fn=set_up_worker,
        persistent_workers=args.cure,
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

    step = 0
    while step < args.steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            clock.after(step)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
