"""Trains on digits, and counts by `.item()`, digit by digit, what it gets right at each step."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from training import Clock, arguments


def count_hits(logits, labels):
    """How many labels are the model's first choice, and how many are among its first five."""
    top1, top5 = 0, 0
    for choices, label in zip(logits.topk(5).indices, labels, strict=True):
        top1 += choices[0].item() == label.item()
        top5 += sum(choice.item() == label.item() for choice in choices)
    return top1, top5


def count_hits_at_once(logits, labels):
    hits = logits.topk(5).indices == labels[:, None]
    return torch.stack((hits[:, 0].sum(), hits.sum())).tolist()


def main():
    args = arguments(__doc__, steps=600, cure="count all digits at once")

    digits = np.load(args.data / "digits.npz")
    images = torch.from_numpy(digits["images"]).float()[:, None] / 255
    dataset = TensorDataset(images, torch.from_numpy(digits["labels"]))
    order = RandomSampler(dataset, replacement=True, num_samples=args.steps * 256)
    sampler = BatchSampler(order, 256, drop_last=False)
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=1)
    count = count_hits_at_once if args.cure else count_hits
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 144, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    clock = Clock(args, 256)

    right = 0
    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        logits = model(images)
        cross_entropy(logits, labels).backward()
        optimizer.step()
        top1, _top5 = count(logits.detach(), labels)
        right += top1
        clock.after(step)
    print(f"{right / (256 * step):.1%} right")


if __name__ == "__main__":
    main()
