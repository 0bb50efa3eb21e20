"""Trains on photographs as a camera wrote them, made small for the model one by one."""

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training import arguments, train


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
    args = arguments(__doc__, steps=100, cure="decode once, keep the small pictures")

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
    train(model, loader, args, size=4, lr=0.01)


if __name__ == "__main__":
    main()
