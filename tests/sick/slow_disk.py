"""Trains on files of a share that gives 20 MB/s to each reader."""

import argparse
import io
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler

BYTES_PER_S = 20e6


class SlowFile(io.RawIOBase):
    """A file that takes its time."""

    def __init__(self, path):
        self.file = io.FileIO(path)

    def readable(self):
        return True

    def readinto(self, buffer):
        count = self.file.readinto(buffer)
        time.sleep(count / BYTES_PER_S)
        return count

    def close(self):
        self.file.close()
        super().close()


def read_image(path):
    with SlowFile(path) as file:
        data = bytearray(file.readall())
    return torch.frombuffer(data, dtype=torch.uint8).view(3, 96, 96)


class Arrays(Dataset):
    def __init__(self, folder, in_memory):
        self.paths = sorted(folder.iterdir())
        self.images = [read_image(path) for path in self.paths] if in_memory else None

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = self.images[i] if self.images else read_image(self.paths[i])
        return image.float() / 255, int(self.paths[i].name[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--cure", action="store_true", help="read the files once, into memory")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)

    dataset = Arrays(args.data / "arrays", in_memory=args.cure)
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 16)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
    model(torch.zeros(1, 3, 96, 96))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for step, (images, labels) in enumerate(loader, start=1):
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step == args.steps // 2:
            halfway = time.perf_counter()
    seconds = time.perf_counter() - halfway
    print(f"{16 * (step - args.steps // 2) / seconds:.1f} samples/s")


if __name__ == "__main__":
    main()
