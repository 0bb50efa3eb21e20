"""Trains on JPEGs that the loop itself decodes, where a worker could do it meanwhile."""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training import arguments, train


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
    args = arguments(__doc__, steps=200, cure="decode in a worker")

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
    train(model, loader, args, size=8, lr=0.01)


if __name__ == "__main__":
    main()
