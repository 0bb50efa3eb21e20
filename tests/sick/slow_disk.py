"""Trains on files of a share that gives 20 MB/s to each reader."""

import io
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training import arguments, train

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
    args = arguments(__doc__, steps=300, cure="read the files once, into memory")

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
    train(model, loader, args, size=16, lr=0.01)


if __name__ == "__main__":
    main()
