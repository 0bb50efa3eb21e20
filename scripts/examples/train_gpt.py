"""Train a GPT on a packed token dataset, in one process or many, and resume it exactly.

    python scripts/examples/train_gpt.py texts-npy
    torchrun --nproc_per_node=4 scripts/examples/train_gpt.py texts-npy --checkpoint run.pt --resume

Runs unchanged on CPUs (gloo) and GPUs (nccl). It is meant to be copied.

``--global-batch-size`` counts the sequences of all ranks together. A run that was stopped anywhere,
then resumed on any number of ranks that divides it, sees the same tokens in the same batches as one
that never stopped. On CPUs its losses are the same to the last bit on as many ranks as before, to
rounding on another number; GPU kernels may add in another order each time.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from gpt import GPT
from meter import Meter
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it
from training import Run, World, add_options, check_options, run_ranks

import shardkit
from shardkit.errors import UsageError

Batch = dict[str, Any]

VAL_SPLITS = ("val", "valid", "validation", "dev")

NO_LABEL = -100
"""Where there is nothing to predict: at the end of a document, in padding."""


def loss_of(run: Run, net: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Summed over this rank's labels, and how many those are."""
    labels = batch["labels"].flatten()
    with run.autocast():
        logits = net(batch["inputs"], batch.get("position_ids"))
        loss = F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=NO_LABEL, reduction="sum")
    return loss, (labels != NO_LABEL).sum()


def train_step(run: Run, net: nn.Module, batch: Batch) -> Tensor:
    for group in run.optimizer.param_groups:
        group["lr"] = run.learning_rate
    loss, count = loss_of(run, net, batch)
    # Ranks may have different numbers of labels, even none. DDP divides by the number of ranks.
    loss = loss * run.world.size / run.world.sum(count).clamp(min=1)
    run.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    run.scaler.unscale_(run.optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad()
    run.step += 1
    return loss.detach()


def train(run: Run, net: nn.Module, val: shardkit.Loader | None) -> None:
    for epoch in range(run.loader.epoch, run.args.epochs):
        run.loader.set_epoch(epoch)  # one that was begun before a resume goes on where it was
        meter = Meter(run.world.device)
        with closing(meter.watch(run.loader)) as batches:  # whatever happens, its workers end here
            for batch in batches:
                loss = train_step(run, net, batch)
                if run.step % run.args.log_every == 0:
                    report(run, loss, meter)
                if run.step % run.args.checkpoint_every == 0:
                    run.save()
                if run.step == run.args.steps:
                    return
        if val is not None:
            run.world.say(f"epoch {epoch}: loss {evaluate(run, val):.9g} on val")


def report(run: Run, loss: Tensor, meter: Meter) -> None:
    """Means over the ranks."""
    steps_per_s, wait = meter.read()
    numbers = torch.stack([loss.float(), loss.new_tensor(wait).float()])
    loss_mean, wait_mean = (run.world.sum(numbers) / run.world.size).tolist()
    tokens_per_s = steps_per_s * run.args.global_batch_size * run.args.seq_len
    run.world.say(
        f"epoch {run.loader.epoch} step {run.step}: loss {loss_mean:.9g},"
        f" {tokens_per_s:,.0f} tokens/s, waited {wait_mean:.1%}"
    )


@torch.inference_mode()
def evaluate(run: Run, val: shardkit.Loader) -> float:
    """Mean loss of a label. All ranks have equally many batches; padding is not counted."""
    run.model.eval()
    total = torch.zeros(2, dtype=torch.float64, device=run.world.device)
    for batch in val:
        batch["labels"] = batch["labels"].where(batch["valid"][:, None], NO_LABEL)
        total += torch.stack(loss_of(run, run.model, batch))
    run.model.train()
    loss, count = run.world.sum(total).tolist()
    return float(loss / count)


def start(args: argparse.Namespace, world: World) -> None:
    vocab_size, _ = about(args.dataset)
    vocab_size = args.vocab_size or vocab_size
    if vocab_size is None:
        raise UsageError(f"{args.dataset} does not say how large its vocabulary is: --vocab-size")
    common: dict[str, Any] = {
        "batch_size": world.share(args.global_batch_size),
        "workers": args.workers,
        "worker_type": args.worker_type,
        "device": world.device,
    }
    windows: dict[str, Any] = {
        "seq_len": args.seq_len,
        "boundaries": args.boundaries,
        "eos": args.eos,
    }
    dataset = shardkit.TokenDataset(args.dataset, **windows)
    loader = shardkit.Loader(dataset, shuffle="full", seed=args.seed, **common)
    val = None
    _, split = about(args.val or args.dataset)
    if args.val or split:
        held_out = shardkit.TokenDataset(args.val or args.dataset, split, **windows)
        val = shardkit.Loader(held_out, last="pad", **common)
    run = make_run(args, world, loader, vocab_size)
    if not run.is_done:
        empty = torch.zeros(1, args.seq_len, dtype=torch.int64, device=world.device)
        train(run, run.wrapped(empty), val)
        run.save()


def about(dataset: Path) -> tuple[int | None, str | None]:
    """The size of the vocabulary, and the split to evaluate on, if there is one. The files of
    nanoGPT and Megatron, which TokenDataset opens, too, say neither."""
    if not dataset.is_dir():
        return None, None
    info = shardkit.info(dataset)
    split = next((name for name in VAL_SPLITS if name in info.splits), None)
    return (info.corpus.get("tokens") or {}).get("vocab_size"), split


def make_run(
    args: argparse.Namespace, world: World, loader: shardkit.Loader, vocab_size: int
) -> Run:
    torch.manual_seed(args.seed)
    whole = -(-vocab_size // 64) * 64  # GPUs are faster at such sizes; no label is ever among these
    model = GPT(whole, args.seq_len, args.width, args.depth, args.heads).to(world.device)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    # Both CPU and CUDA have a fused AdamW: one kernel for all parameters.
    optimizer = torch.optim.AdamW(groups, args.lr, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler(world.device.type, enabled=args.precision == "fp16")
    run = Run(args, world, model, optimizer, scaler, loader)
    run.resume()
    return run


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("dataset", type=Path, help="a packed token dataset")
    add("--val", type=Path, help="evaluate on this; by default on the dataset's own split for it")
    add("--seq-len", type=int, default=1024, help="tokens of a sequence")
    add("--boundaries", choices=("ignore", "mask", "fit"), default="ignore")
    add("--vocab-size", type=int, help="if the dataset does not say")
    add("--eos", type=int, metavar="ID", help="what ends a document, in a file of nanoGPT's")
    add("--epochs", type=int, default=1)
    add("--global-batch-size", type=int, default=64, help="sequences of all ranks together")
    add("--lr", type=float, default=6e-4)
    add("--width", type=int, default=768, help="a multiple of --heads")
    add("--depth", type=int, default=12)
    add("--heads", type=int, default=12)
    add("--workers", type=int, default=1, help="of each rank")
    add_options(parser)
    args = parser.parse_args(argv)
    check_options(parser, args)
    if min(args.width, args.depth, args.heads) < 1 or args.width % args.heads:
        parser.error(f"--width is a multiple of --heads, got {args.width} and {args.heads}")
    return args


def main(argv: list[str] | None = None) -> None:
    run_ranks(start, parse(argv))


if __name__ == "__main__":
    main()
