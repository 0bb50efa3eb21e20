"""Trains a model with a large table of embeddings, and saves it whole every 20 steps."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from training import Clock, arguments


class Model(nn.Module):
    """Looks pairs of pixels up in a table of 65,536 rows, one for each pair of values."""

    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(1 << 16, 192, mode="mean", sparse=True)
        self.head = nn.Linear(192, 10)

    def forward(self, pairs):
        return self.head(self.table(pairs))


def main():
    args = arguments(__doc__, steps=600, cure="save every 1000 steps")

    digits = np.load(args.data / "digits.npz")
    pixels = torch.from_numpy(digits["images"]).flatten(1).long()
    pairs = pixels[:, 0::6] * 256 + pixels[:, 1::6]
    dataset = TensorDataset(pairs, torch.from_numpy(digits["labels"]))
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 32)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    clock = Clock(args, 32)
    folder = tempfile.TemporaryDirectory(dir=args.data)
    every = 1000 if args.cure else 20

    for step, (pairs, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = cross_entropy(model(pairs), labels)
        loss.backward()
        optimizer.step()
        if step % every == 0:
            state = {"step": step, "model": model.state_dict(), "sgd": optimizer.state_dict()}
            torch.save(state, Path(folder.name) / "last.pt")
        clock.after(step)
    folder.cleanup()


if __name__ == "__main__":
    main()
