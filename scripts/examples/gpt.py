"""GPT-2 (Radford et al. 2019) of any size, in plain torch; no dropout, so a run is its seed's."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        # (3, B, heads, S, width / heads)
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        out: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Inputs (B, S) -> logits (B, S, vocabulary); ``width`` is a multiple of ``heads``."""

    def __init__(self, vocab_size: int, seq_len: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(seq_len, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.ndim == 2:
                # What is added to the residual stream, 2 * depth times, is smaller (GPT-2, 2.3).
                is_added = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * depth if is_added else 1))

    def forward(self, inputs: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """``position_ids`` (B, S), from 0 in each document: then no document sees another."""
        mask = None if position_ids is None else document_mask(position_ids)
        if position_ids is None:
            position_ids = torch.arange(inputs.shape[1], device=inputs.device)
        x = self.tokens(inputs) + self.positions(position_ids)
        for block in self.blocks:
            x = block(x, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


def document_mask(position_ids: Tensor) -> Tensor:
    """(B, 1, S, S) bool: whether token i sees token j, of its own document and not after it.

    S x S per sequence: fine for some thousand tokens. Flash attention's variable-length call needs
    none; it takes the batch's ``cu_seqlens`` and ``max_seqlen``.
    """
    document = (position_ids == 0).cumsum(1)
    is_same = document[:, :, None] == document[:, None, :]
    return is_same.tril()[:, None]
