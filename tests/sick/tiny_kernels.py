"""Trains an LSTM of 16 units, written out by hand, on digits read row by row."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from training import arguments, train


class LSTM(nn.Module):
    """Like nn.LSTM(batch_first=True), one gate and one row at a time."""

    def __init__(self, inputs, units):
        super().__init__()
        self.units = units
        self.of_input = nn.ModuleList(nn.Linear(inputs, units) for _ in range(4))
        self.of_state = nn.ModuleList(nn.Linear(units, units) for _ in range(4))

    def forward(self, rows):
        state = torch.zeros(len(rows), self.units)
        cell = torch.zeros(len(rows), self.units)
        states = []
        for row in rows.unbind(1):
            gates = [a(row) + b(state) for a, b in zip(self.of_input, self.of_state, strict=True)]
            cell = gates[0].sigmoid() * cell + gates[1].sigmoid() * gates[2].tanh()
            state = gates[3].sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, dim=1), (state, cell)


class Reader(nn.Module):
    def __init__(self, lstm):
        super().__init__()
        self.lstm = lstm
        self.head = nn.Linear(16, 10)

    def forward(self, images):
        states, _ = self.lstm(images)
        return self.head(states[:, -1])


def main():
    args = arguments(__doc__, steps=400, cure="use nn.LSTM")

    digits = np.load(args.data / "digits.npz")
    images = torch.from_numpy(digits["images"]).float() / 255
    dataset = TensorDataset(images, torch.from_numpy(digits["labels"]))
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 16)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = Reader(nn.LSTM(28, 16, batch_first=True) if args.cure else LSTM(28, 16))
    train(model, loader, args, size=16, lr=0.1)


if __name__ == "__main__":
    main()
