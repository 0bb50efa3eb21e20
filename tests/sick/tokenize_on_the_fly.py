"""Trains a small language model on text files, each tokenized whole to cut one window from it."""

import random

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, RandomSampler
from training import arguments, train

LENGTH = 64


class Texts(Dataset):
    def __init__(self, data, once):
        self.paths = sorted((data / "texts").iterdir())
        self.tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self.tokens = [self.tokenize(path) for path in self.paths] if once else None

    def tokenize(self, path):
        return torch.tensor(self.tokenizer.encode(path.read_text()).ids)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        tokens = self.tokens[i] if self.tokens else self.tokenize(self.paths[i])
        start = random.randrange(len(tokens) - LENGTH)
        return tokens[start : start + LENGTH + 1]


class Model(nn.Module):
    def __init__(self, vocabulary=2000, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.mix = nn.Conv1d(width, width, 4)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        past = nn.functional.pad(self.embed(tokens).transpose(1, 2), (3, 0))
        return self.head(self.mix(past).relu().transpose(1, 2))


def loss_of_next(model, *samples):
    tokens = torch.stack(samples)
    logits = model(tokens[:, :-1])
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main():
    args = arguments(__doc__, steps=200, cure="tokenize all files once, before")

    dataset = Texts(args.data, once=args.cure)
    sampler = RandomSampler(dataset, replacement=True, num_samples=args.steps * 8)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
    train(Model(), loader, args, size=8, lr=0.01, loss_of=loss_of_next)


if __name__ == "__main__":
    main()
