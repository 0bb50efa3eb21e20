"""What the sick scripts share: their options, a loop, and how fast it was."""

import argparse
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy


def arguments(about, steps, cure="nothing: it is well"):
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--cure", action="store_true", help=cure)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return args


class Clock:
    """Prints the rate of the second half of the steps, in batches of ``size``."""

    def __init__(self, args, size):
        self.steps, self.half, self.size = args.steps, args.steps // 2, size

    def after(self, step):
        if step == self.half:
            self.halfway = time.perf_counter()
        if step == self.steps:
            seconds = time.perf_counter() - self.halfway
            print(f"{self.size * (step - self.half) / seconds:.1f} samples/s")


def train(model, loader, args, size, lr, loss_of=lambda model, x, y: cross_entropy(model(x), y)):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    clock = Clock(args, size)
    for step, batch in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()
        clock.after(step)
