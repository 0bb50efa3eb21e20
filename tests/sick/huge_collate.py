"""Trains on recordings that are padded to the longest of their batch, and then cut short."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, RandomSampler, default_collate
from training import arguments, train

FRAMES = 100


class Recordings(Dataset):
    """Spectrograms of 40 bands and up to 8000 frames."""

    def __init__(self, longest):
        self.longest = longest
        self.frames = torch.rand(8000, 40)
        self.lengths = torch.randint(4000, 8000, (200,)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return self.frames[: self.lengths[i]][: self.longest], i % 10


def pad(samples):
    sounds = pad_sequence([sound for sound, _ in samples], batch_first=True)
    return sounds, default_collate([label for _, label in samples])


def loss_of(model, sounds, labels):
    return cross_entropy(model(sounds[:, :FRAMES].transpose(1, 2)), labels)


def main():
    args = arguments(__doc__, steps=300, cure="cut each recording before padding")

    dataset = Recordings(longest=FRAMES if args.cure else None)
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 12)
    loader = DataLoader(dataset, batch_size=12, sampler=sampler, num_workers=2, collate_fn=pad)
    model = nn.Sequential(nn.Conv1d(40, 64, 5), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 96, 10))
    train(model, loader, args, size=12, lr=0.01, loss_of=loss_of)


if __name__ == "__main__":
    main()
