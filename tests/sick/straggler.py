"""Trains on several ranks, of which the third is slow: by itself, or under torchrun."""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from training import Clock


class Hot(nn.Module):
    """What a layer costs on a processor that has run hot and is clocked down."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x


def train(rank, world_size, rendezvous, args):
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)

    digits = np.load(args.data / "digits.npz")
    images = torch.from_numpy(digits["images"]).float()[:, None] / 255
    dataset = TensorDataset(images, torch.from_numpy(digits["labels"]))
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 16)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    layers = [nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 144, 10)]
    if rank == 2 and not args.cure:
        layers.append(Hot(seconds=0.03))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    clock = Clock(args, 16 * world_size)

    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        if rank == 0:
            clock.after(step)
    dist.barrier()  # who leaves first would break the others' connections
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--ranks", type=int, default=4, help="without torchrun")
    parser.add_argument("--cure", action="store_true", help="no rank is slow")
    args = parser.parse_args()
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", args)
        return
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (args.ranks, f"file://{folder}/rendezvous", args), nprocs=args.ranks)


if __name__ == "__main__":
    main()
