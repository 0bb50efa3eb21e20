"""Trains on small pictures, whose colours an augmentation turns pixel by pixel, in Python."""

import colorsys
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training import arguments, train


def turn_hue(image, shift):
    turned = np.empty_like(image)
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[row, column])
            turned[row, column] = colorsys.hsv_to_rgb((hue + shift) % 1, saturation, value)
    return turned


def turn_hue_at_once(image, shift):
    """Nearly the same, as one rotation about the grey axis of the colour cube."""
    cos, sin = np.cos(2 * np.pi * shift), np.sin(2 * np.pi * shift) / np.sqrt(3)
    grey = np.full((3, 3), (1 - cos) / 3)
    axis = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    rotation = cos * np.eye(3) + grey + sin * axis
    return (image @ rotation.T.astype(np.float32)).clip(0, 1)


class Patches(Dataset):
    def __init__(self, folder, at_once):
        self.turn = turn_hue_at_once if at_once else turn_hue
        paths = sorted(folder.iterdir())
        whole = [np.frombuffer(path.read_bytes(), np.uint8).reshape(3, 96, 96) for path in paths]
        self.images = [image[:, :32, :32].transpose(1, 2, 0) for image in whole]
        self.labels = [int(path.name[0]) for path in paths]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.turn(self.images[i].astype(np.float32) / 255, random.random())
        return torch.from_numpy(image).permute(2, 0, 1), self.labels[i]


def main():
    args = arguments(__doc__, steps=200, cure="turn all pixels at once, by numpy")

    dataset = Patches(args.data / "arrays", at_once=args.cure)
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 16)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 15 * 15, 10),
    )
    train(model, loader, args, size=16, lr=0.01)


if __name__ == "__main__":
    main()
