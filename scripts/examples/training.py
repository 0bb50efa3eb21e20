"""What the training scripts share: ranks, a run that is saved and resumed, its learning rate."""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import shardkit
from shardkit.errors import UsageError


@dataclass(frozen=True)
class World:
    """This process among all ranks."""

    rank: int
    size: int
    device: torch.device

    def say(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def share(self, global_batch_size: int) -> int:
        """This rank's part of a batch."""
        if global_batch_size % self.size:
            raise UsageError(f"{self.size} ranks do not divide a batch of {global_batch_size}")
        return global_batch_size // self.size


def end_with_torchrun() -> None:
    """Ask Linux to end this rank when torchrun ends, even by SIGKILL, which it cannot pass on: its
    ranks would train on, and hold their GPUs, with nobody to stop them.

    Call it first, in a rank's main thread. What was started otherwise, ``nohup python ... &`` say,
    may outlive its parent.
    """
    if sys.platform != "linux" or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    torchrun = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != torchrun:  # it ended before we asked
        raise SystemExit(1)


PR_SET_PDEATHSIG = 1
"""Of linux/prctl.h. What counts is the end of the thread that started us: torchrun's main one."""


def join_world(device: str | None) -> World:
    """The ranks that torchrun started, or this process alone."""
    rank, local, size = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))
    )
    if device == "cpu" or (device is None and not torch.cuda.is_available()):
        if size > 1:
            dist.init_process_group("gloo")
        return World(rank, size, torch.device("cpu"))
    if not torch.cuda.is_available():
        raise UsageError("torch sees no CUDA device here: leave out --device cuda")
    if local >= torch.cuda.device_count():
        raise SystemExit(f"rank {rank} has no GPU of its own: start fewer ranks, or --device cpu")
    here = torch.device("cuda", local)
    torch.cuda.set_device(here)
    if size > 1:
        dist.init_process_group("nccl", device_id=here)
    return World(rank, size, here)


@dataclass
class Run:
    """What a checkpoint holds, and what it takes to go on."""

    args: argparse.Namespace
    world: World
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    loader: shardkit.Loader
    step: int = 0

    def save(self) -> None:
        """By rank 0. The file is whole at any moment: the old one or the new.

        A model with dropout needs torch's random state in it, too.
        """
        if not self.args.checkpoint or self.world.rank:
            return
        state = {name: getattr(self, name).state_dict() for name in STATEFUL}
        new = Path(f"{self.args.checkpoint}.new")
        with open(new, "wb") as file:
            torch.save({**state, "step": self.step}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self.args.checkpoint)

    def load(self) -> None:
        """By every rank, however many there are now."""
        state = torch.load(self.args.checkpoint, map_location="cpu", weights_only=True)
        try:
            for name in STATEFUL:
                getattr(self, name).load_state_dict(state[name])
        except RuntimeError as error:
            raise UsageError(
                f"{self.args.checkpoint} holds another model: use the options it was made with"
            ) from error
        self.step = state["step"]

    def resume(self) -> None:
        """From --checkpoint, if that is asked for and it is there."""
        path = self.args.checkpoint
        if not self.args.resume:
            return
        if not path.exists():
            self.world.say(f"{path} is not there yet: beginning at step 0")
            return
        self.load()
        self.world.say(f"{path}: {'done' if self.is_done else 'going on'} after step {self.step}")

    @property
    def is_done(self) -> bool:
        return bool(self.step == self.args.steps or self.loader.epoch >= self.args.epochs)

    @property
    def learning_rate(self) -> float:
        return learning_rate(self.step, self.args.epochs * len(self.loader), self.args.lr)

    def autocast(self) -> torch.autocast:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.args.precision)
        return torch.autocast(self.world.device.type, dtype, enabled=dtype is not None)

    def wrapped(self, empty: Tensor) -> nn.Module:
        """The model as it is trained; checkpoints hold the plain one, which fits any world.

        ``empty`` is a batch that the model takes, of any values.
        """
        net = self.model
        if self.world.size > 1:
            # DDP holds its group for ever, and with it gloo's threads; one that has not yet let go
            # of a tensor of ours when Python ends aborts (pytorch#179291; 5 of 10 runs on busy
            # cores). The default group, which World.sum uses, is free to end with
            # destroy_process_group.
            group = dist.new_group()
            net = nn.parallel.DistributedDataParallel(
                net, process_group=group, gradient_as_bucket_view=True
            )
            # After its first step DDP regroups gradients, which all-reduce then adds in another
            # order. A step that changes nothing puts that before the first real one, resumed or
            # not.
            with self.autocast():
                loss = net(empty).float().sum()
            loss.backward()
            self.optimizer.zero_grad()
        if self.args.compile:
            net = torch.compile(net)  # type: ignore[assignment]
        return net


STATEFUL = ("loader", "model", "optimizer", "scaler")
"""The loader first: it says so if the checkpoint is of another dataset or seed."""


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warm-up over a twentieth of the steps, then a cosine. Of the step alone: nothing to save."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def run_ranks(start: Callable[[argparse.Namespace, World], None], args: argparse.Namespace) -> None:
    """``start`` on every rank; what shardkit refuses is one line."""
    end_with_torchrun()
    try:
        world = join_world(args.device)
        start(args, world)
    except shardkit.ShardkitError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    # Not in a finally: after a failure this would wait for ranks that are gone. Then the process
    # ends, which ends its workers; torchrun ends the other ranks.
    if world.size > 1:
        dist.destroy_process_group()


# --- options ------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those that every training has."""
    add = parser.add_argument
    add("--steps", type=int, help="stop after this many, counted from the very first")
    add("--seed", type=int, default=0)
    add("--precision", choices=("fp32", "bf16", "fp16"), default="bf16")
    add("--checkpoint", type=Path, help="file to save to, every --checkpoint-every and at the end")
    add("--checkpoint-every", type=int, default=500, metavar="STEPS")
    add("--resume", action="store_true", help="go on from --checkpoint if it is there")
    add("--log-every", type=int, default=50, metavar="STEPS")
    add("--worker-type", choices=("thread", "process"), default="thread")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add("--compile", action="store_true", help="torch.compile the model")


def check_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    if args.resume and not args.checkpoint:
        parser.error("--resume needs --checkpoint")
    if args.checkpoint and not args.checkpoint.parent.is_dir():
        parser.error(f"--checkpoint: no folder {args.checkpoint.parent}")
    if min(args.log_every, args.checkpoint_every) < 1:
        parser.error("--log-every and --checkpoint-every are at least 1")
